#include "tests/lib/client.h"
#include "tests/lib/check.h"

const struct fsdp_spec VECTOR = {FSDP_F32, 1, {256}};
struct daemon daemon_;
struct fsdp_client *client;

struct fsdp_client *connect_to(const struct daemon *daemon, uint64_t budget)
{
	struct fsdp_connect_options options = {.path = daemon_socket(daemon),
					       .budget = budget};
	struct fsdp_client *made = NULL;

	cr_assert(eq(int, fsdp_connect(&options, &made), 0), "%s",
		  fsdp_error());
	return made;
}

struct fsdp_tensor *make(struct fsdp_client *of, const struct fsdp_spec *spec,
			 float first)
{
	struct fsdp_tensor *tensor = NULL;

	cr_assert(eq(int, memory_alloc(of, spec, 1, NULL, 0, &tensor), 0), "%s",
		  fsdp_error());
	if (fsdp_data_mut(tensor))
		memory_write(tensor, 0, &first, sizeof(first));
	return tensor;
}

int publish(struct fsdp_client *of, struct fsdp_tensor *tensor,
	    const char *name, uint32_t flags)
{
	struct fsdp_publication it = {
		.tensor = tensor, .name = name, .flags = flags};

	return fsdp_publish(of, &it, 1);
}

void put(struct fsdp_client *of, const char *name, float first)
{
	struct fsdp_tensor *tensor = make(of, &VECTOR, first);

	cr_assert(eq(int, publish(of, tensor, name, FSDP_REPLACE), 0), "%s",
		  fsdp_error());
	fsdp_free(tensor);
}

int get(struct fsdp_client *of, const char *name, int32_t timeout_ms,
	struct fsdp_tensor **ret)
{
	struct fsdp_get_options options = {.timeout_ms = timeout_ms};

	return fsdp_get(of, &name, 1, &options, ret);
}

float first_of(const struct fsdp_tensor *tensor)
{
	float first;

	memory_read(&first, tensor, 0, sizeof(first));
	return first;
}

static int count_entry(const struct fsdp_entry *entry, void *data)
{
	(void)entry;
	++*(int *)data;
	return 0;
}

int count_limbo(struct fsdp_client *of)
{
	int n = 0;

	cr_assert(eq(int, fsdp_limbo(of, count_entry, &n), 0), "%s",
		  fsdp_error());
	return n;
}

void client_setup(void)
{
	daemon_start(&daemon_);
	client = connect_to(&daemon_, 0);
}

void client_setup_supervised(void)
{
	daemon_start_supervised(&daemon_);
	client = connect_to(&daemon_, 0);
}

void client_teardown(void)
{
	fsdp_close(client);
	daemon_stop(&daemon_);
}

void *wait_for_name(void *data)
{
	struct waiting *it = data;
	struct fsdp_tensor *tensor = NULL;

	it->r = get(it->client, it->name, -1, &tensor);
	if (it->r == 0)
		it->value = first_of(tensor);
	return NULL;
}

static int count_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

void wait_until_parked(uint32_t n)
{
	uint32_t n_waiting;

	do {
		n_waiting = 0;
		cr_assert(eq(int,
			     fsdp_clients(client, count_waiting, &n_waiting),
			     0));
	} while (n_waiting != n);
}

int get_newer(const char *name, uint64_t version, int32_t timeout_ms,
	      uint64_t *ret_version)
{
	struct fsdp_get_options options = {.timeout_ms = timeout_ms,
					   .newer_than = version};
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct fsdp_tensor *tensor;
	int r = fsdp_get(client, &name, 1, &options, &tensor);

	if (r < 0)
		return r;
	fsdp_tensor_info(tensor, &info);
	*ret_version = info.version;
	fsdp_free(tensor);
	return 0;
}

void *read_newer(void *data)
{
	struct reading *it = data;

	it->r = get_newer(it->name, it->seen, 60000, &it->version);
	return NULL;
}
