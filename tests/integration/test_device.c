/*
 * Tests tensors on a device, of the fake driver or a real one: making, sharing
 * between two processes, copying and freeing.
 */
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/device.h"
#include "tests/lib/gpu.h"
#include "tests/lib/strike.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEMBERS 1000

static const struct fsdp_spec BYTES = {FSDP_U8, 1, {4096}};

static struct daemon daemon_;
static struct actor other;
static struct fsdp_client *client;
static struct fsdp_device gpu;

/* The test and the other process share this. */
static struct shared {
	char socket[80], name[64];
	struct fsdp_ticket ticket;
	uint64_t n;
	uint32_t first;
	char sentence[256];
} * shared;

/* --- in any process ------------------------------------------------------ */

static void open_client(void)
{
	struct fsdp_connect_options options = {.path = shared->socket};

	must(fsdp_connect(&options, &client) == 0);
}

static struct fsdp_tensor *make(const struct fsdp_spec *spec, uint8_t value)
{
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};
	uint8_t *bytes;

	must(fsdp_alloc_on(client, &gpu, spec, 1, NULL, 0, &tensor) == 0);
	fsdp_tensor_info(tensor, &info);
	bytes = malloc(info.size);
	memset(bytes, value, info.size);
	must(fsdp_copy_in(tensor, 0, bytes, info.size) == 0);
	free(bytes);
	return tensor;
}

static int publish(struct fsdp_tensor *tensor, const char *name, uint32_t flags)
{
	struct fsdp_publication it = {
		.tensor = tensor, .name = name, .flags = flags};

	return fsdp_publish(client, &it, 1);
}

static void put(const char *name, uint8_t value)
{
	struct fsdp_tensor *tensor = make(&BYTES, value);

	must(publish(tensor, name, FSDP_REPLACE) == 0);
	fsdp_free(tensor);
}

static struct fsdp_tensor *get(const char *name)
{
	struct fsdp_tensor *tensor = NULL;

	must(fsdp_get(client, &name, 1, NULL, &tensor) == 0);
	return tensor;
}

/* --- in the other process ------------------------------------------------ */

static int other_opens(void)
{
	open_client();
	return 0;
}

static int other_reads(void)
{
	struct fsdp_tensor *tensor = get(shared->name);
	uint8_t first;

	must(fsdp_copy_out(&first, tensor, 0, 1) == 0);
	shared->first = first;
	must(!fsdp_data_mut(tensor));
	must(holds_value(tensor, first));
	fsdp_free(tensor);
	return 0;
}

static int other_redeems(void)
{
	struct fsdp_tensor *tensor = NULL;
	int r = fsdp_ticket_redeem(client, &shared->ticket, 1, &tensor);

	if (r < 0)
		return r;
	r = fsdp_tensor_wait(tensor, NULL, 0);
	must(r < 0 || holds_value(tensor, 5));
	fsdp_free(tensor);
	return r;
}

/* A fault of the device ends the use of CUDA in the process. */
static int other_tries_to_write_a_member(void)
{
	struct fsdp_tensor *tensor = get("model/7");
	CUstream stream = stream_make(gpu_nth(0));

	must(strike(gpu_nth(0), (CUdeviceptr)(uintptr_t)fsdp_data(tensor),
		    stream) == 0);
	return stream_finish(stream) ? 0 : -EFAULT;
}

static int count_requests(const struct fsdp_peer *peer, void *data)
{
	if (peer->pid == (uint32_t)getpid())
		*(uint64_t *)data = peer->n_requests;
	return 0;
}

static uint64_t n_requests(void)
{
	uint64_t n = 0;

	must(fsdp_clients(client, count_requests, &n) == 0);
	return n;
}

static int other_attaches(void)
{
	struct fsdp_tensor **tensors = NULL;
	uint64_t before = n_requests();
	size_t n = 0;

	must(fsdp_bundle_get(client, "model/", NULL, &tensors, &n) == 0);
	/* The status request is not counted. */
	shared->n = n_requests() - before - 1;
	must(n == MEMBERS);
	for (size_t i = 0; i < n; i++)
		must(holds_value(tensors[i], (uint8_t)(i % 251)));
	must(gpu_is_count(getpid(), "MemMap", 1));
	/* The members are contiguous in one mapping. */
	must((uintptr_t)fsdp_data(tensors[MEMBERS - 1]) -
		     (uintptr_t)fsdp_data(tensors[0]) ==
	     (MEMBERS - 1) * 512);
	for (size_t i = 0; i < n; i++)
		fsdp_free(tensors[i]);
	free(tensors);
	return 0;
}

/* --- the tests ----------------------------------------------------------- */

static void setup(void)
{
	const struct daemon_options options = {
		.is_supervised = true,
		.config = "[memory]\nwarm_ms = 10ms\n",
	};

	gpu_open();
	setenv("FAKECUDA_COUNT", "1", 1);
	daemon_start_with(&daemon_, &options);
	shared = shared_memory(sizeof(*shared));
	strcpy(shared->socket, daemon_socket(&daemon_));
	actor_start(&other, NULL);
	open_client();
	must(actor_run(&other, other_opens) == 0);
	gpu = gpu_name(0);
}

static void teardown(void)
{
	actor_kill(&other);
	fsdp_close(client);
	daemon_stop(&daemon_);
	gpu_close();
}

TestSuite(device, .init = setup, .fini = teardown, .timeout = 300);

Test(device, a_published_tensor_is_read_by_another_process)
{
	put("t/a", 42);
	strcpy(shared->name, "t/a");
	cr_assert(zero(int, actor_run(&other, other_reads)));
	cr_expect(eq(u32, shared->first, 42));
}

Test(device, the_owner_cannot_write_a_published_tensor)
{
	struct fsdp_tensor *tensor = make(&BYTES, 1);
	uint8_t byte = 2;

	cr_assert(ne(ptr, fsdp_data_mut(tensor), NULL));
	cr_assert(zero(int, publish(tensor, "t/a", 0)));
	cr_expect(eq(ptr, fsdp_data_mut(tensor), NULL));
	cr_expect(eq(int, fsdp_copy_in(tensor, 0, &byte, 1), -EACCES));
	fsdp_free(tensor);
}

Test(device, the_device_of_a_tensor_can_be_queried)
{
	struct fsdp_tensor *tensor = make(&BYTES, 1), *host = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};
	char text[FSDP_DEVICE_TEXT];
	struct fsdp_device again;

	fsdp_tensor_info(tensor, &info);
	cr_expect(zero(int, memcmp(&info.device, &gpu, sizeof(gpu))));
	cr_expect(not(info.is_tainted));
	fsdp_device_format(&info.device, text);
	cr_expect(zero(int,
		       strncmp(text, gpu_nth(0)->is_mig ? "MIG-" : "GPU-", 4)),
		  "%s", text);
	cr_assert(zero(int, fsdp_device_parse(text, &again)));
	cr_expect(zero(int, memcmp(&again, &gpu, sizeof(gpu))));

	cr_assert(zero(int, fsdp_alloc(client, &BYTES, 1, NULL, 0, &host)));
	fsdp_tensor_info(host, &info);
	fsdp_device_format(&info.device, text);
	cr_expect(eq(str, text, "host"));
	fsdp_free(host);
	fsdp_free(tensor);
}

static int keep_device(const struct fsdp_entry *entry, void *data)
{
	if (strcmp(entry->info->name, "t/a") == 0)
		*(struct fsdp_device *)data = entry->info->device;
	return 0;
}

Test(device, a_listing_shows_the_device_of_each_tensor)
{
	struct fsdp_device listed = {0};

	put("t/a", 1);
	cr_assert(zero(int, fsdp_list(client, "t/", keep_device, &listed)));
	cr_expect(zero(int, memcmp(&listed, &gpu, sizeof(gpu))));
}

struct seen {
	uint32_t n;
	bool is_gpu;
};

static int note_device(const struct fsdp_device_entry *entry, void *data)
{
	struct seen *seen = data;

	seen->is_gpu =
		seen->is_gpu || memcmp(&entry->device, &gpu, sizeof(gpu)) == 0;
	return (uint32_t)entry->ordinal == seen->n++ && entry->size > 0 &&
			       *entry->name && entry->may_be_shared
		       ? 0
		       : -EINVAL;
}

Test(device, devices_can_be_listed)
{
	struct seen seen = {0};

	cr_assert(zero(int, fsdp_devices(note_device, &seen)));
	cr_expect(eq(u32, seen.n, n_gpus()));
	cr_expect(seen.is_gpu);
}

/* --- handles ------------------------------------------------------------- */

Test(device, a_view_shows_part_of_a_tensor)
{
	const struct fsdp_spec half = {FSDP_U8, 1, {2048}};
	struct fsdp_tensor *base = make(&BYTES, 1), *view = NULL;
	uint8_t bytes[2048];

	memset(bytes, 9, sizeof(bytes));
	cr_assert(zero(int, fsdp_copy_in(base, 2048, bytes, sizeof(bytes))));
	cr_assert(zero(int, fsdp_view(base, &half, NULL, 2048, &view)), "%s",
		  fsdp_error());
	cr_expect(holds_value(view, 9));
	cr_expect(eq(u64, (uint64_t)(uintptr_t)fsdp_data(view),
		     (uint64_t)(uintptr_t)fsdp_data(base) + 2048));
	fsdp_free(base);
	cr_expect(holds_value(view, 9), "it keeps the memory by itself");
	fsdp_free(view);
}

Test(device, a_cached_tensor_is_held_again_without_a_request)
{
	struct fsdp_tensor *tensor;
	uint64_t before;

	put("t/a", 3);
	tensor = get("t/a");
	before = n_requests();
	cr_assert(zero(int, fsdp_release(tensor)));
	cr_assert(zero(int, fsdp_acquire(tensor)));
	fsdp_free(get("t/a"));
	cr_expect(eq(u64, n_requests() - before, 1), "only the question");
	cr_expect(holds_value(tensor, 3));
	fsdp_free(tensor);
}

Test(device, a_ticket_passes_a_tensor_to_another_process)
{
	struct fsdp_tensor *tensor = make(&BYTES, 5);

	cr_assert(zero(int, publish(tensor, NULL, 0)));
	cr_assert(
		zero(int, fsdp_ticket_make(tensor, 1, 60000, &shared->ticket)));
	fsdp_free(tensor);
	cr_expect(zero(int, actor_run(&other, other_redeems)));
	cr_expect(eq(int, actor_run(&other, other_redeems), -ENOENT));
}

Test(device, a_tensor_without_elements_can_be_used_like_any_other)
{
	const struct fsdp_spec none = {FSDP_F32, 2, {0, 4}};
	struct fsdp_tensor *tensor = NULL;
	CUstream stream = stream_make(gpu_nth(0));
	struct fsdp_publication it = {.name = "t/none", .stream = stream};

	cr_assert(zero(
		int, fsdp_alloc_on(client, &gpu, &none, 1, NULL, 0, &tensor)));
	cr_expect(eq(ptr, (void *)fsdp_data(tensor), NULL));
	it.tensor = tensor;
	cr_assert(zero(int, fsdp_publish(client, &it, 1)), "%s", fsdp_error());
	cr_expect(zero(int, fsdp_release_on(tensor, stream)));
	fsdp_free(tensor);
	tensor = get("t/none");
	cr_expect(zero(int, fsdp_tensor_check(tensor)));
	cr_expect(zero(int, fsdp_copy_out(NULL, tensor, 0, 0)));
	fsdp_free(tensor);
}

Test(device, released_memory_is_unmapped_and_freed)
{
	struct fsdp_tensor *tensor = make(&BYTES, 1);
	long before = gpu_count(getpid(), "MemUnmap");
	struct figures none;

	figures_read(client, &none);
	cr_assert(eq(u64, none.chunks, 1));
	fsdp_free(tensor);
	memset(&none, 0xff, sizeof(none));
	none.slots = none.chunks = 0;
	cr_expect(figures_await(client, &none));
	cr_assert(zero(int, fsdp_ping(client)));
	cr_expect(gpu_is_count(getpid(), "MemUnmap", before + 1));
}

/* --- bundles ------------------------------------------------------------- */

struct model {
	char names[MEMBERS][16];
	const char *pointers[MEMBERS];
	struct fsdp_spec specs[MEMBERS];
	struct fsdp_tensor *tensors[MEMBERS];
};

/* The i-th member has 64 bytes of the value i % 251. */
static int read_member(size_t i, void *into, size_t size, void *data)
{
	const size_t *first = data;

	memset(into, (int)((*first + i) % 251), size);
	return 0;
}

static struct model *stage_model(struct fsdp_bundle *bundle)
{
	struct model *model = calloc(1, sizeof(*model));

	for (size_t i = 0; i < MEMBERS; i++) {
		snprintf(model->names[i], sizeof(model->names[i]), "model/%zu",
			 i);
		model->pointers[i] = model->names[i];
		model->specs[i] = (struct fsdp_spec){FSDP_U8, 1, {64}};
	}
	for (size_t i = 0; i < MEMBERS; i += 250) {
		must(fsdp_bundle_alloc(bundle, model->pointers + i,
				       model->specs + i, 250,
				       model->tensors + i) == 0);
		must(fsdp_fill(model->tensors + i, 250, read_member, &i) == 0);
	}
	return model;
}

static void free_model(struct model *model)
{
	for (size_t i = 0; i < MEMBERS; i++)
		fsdp_free(model->tensors[i]);
	free(model);
}

static struct fsdp_bundle *begin_model(void)
{
	const struct fsdp_bundle_options options = {
		.access = {.gid = FSDP_GID_DEFAULT},
		.size_hint = MEMBERS * 512,
		.device = gpu};
	struct fsdp_bundle *bundle = NULL;

	must(fsdp_bundle_begin(client, "model/", &options, &bundle) == 0);
	return bundle;
}

Test(device, a_model_of_a_thousand_tensors_is_attached_in_one_request)
{
	struct fsdp_bundle *bundle = begin_model();
	struct model *model = stage_model(bundle);
	const void *before = fsdp_data(model->tensors[7]);

	cr_assert(zero(int, fsdp_bundle_commit(bundle, NULL)), "%s",
		  fsdp_error());
	cr_expect(
		eq(ptr, (void *)fsdp_data(model->tensors[7]), (void *)before));
	cr_expect(holds_value(model->tensors[7], 7));
	cr_assert(zero(int, actor_run(&other, other_attaches)));
	cr_expect(eq(u64, shared->n, 1));
	free_model(model);
}

Test(device, writing_a_committed_model_is_a_fault)
{
	struct fsdp_bundle *bundle = begin_model();
	struct model *model = stage_model(bundle);

	need_kernels();
	cr_assert(zero(int, fsdp_bundle_commit(bundle, NULL)), "%s",
		  fsdp_error());
	cr_assert(eq(int, actor_run(&other, other_tries_to_write_a_member),
		     -EFAULT));
	cr_expect(holds_value(model->tensors[7], 7));
	cr_expect(eq(ptr, fsdp_data_mut(model->tensors[7]), NULL));
	free_model(model);
}

Test(device, an_aborted_model_leaves_no_memory)
{
	struct fsdp_bundle *bundle = begin_model();
	struct model *model = stage_model(bundle);
	struct figures none;

	free_model(model);
	fsdp_bundle_abort(bundle);
	memset(&none, 0xff, sizeof(none));
	none.slots = none.chunks = none.bundles = 0;
	cr_expect(figures_await(client, &none));
}

/* --- copies -------------------------------------------------------------- */

struct source {
	size_t n_calls;
	uint8_t next;
	int r;
};

/* Write bytes whose values continue from one call to the next. */
static int read_counting(size_t i, void *into, size_t size, void *data)
{
	struct source *source = data;
	uint8_t *bytes = into;

	(void)i;
	if (source->n_calls++ > 0 && source->r < 0)
		return source->r;
	for (size_t j = 0; j < size; j++)
		bytes[j] = source->next++;
	return 0;
}

Test(device, tensors_filled_piece_by_piece_have_all_bytes_in_order)
{
	/* This is larger than two of the pinned buffers, and not a multiple of
	 * one. */
	const struct fsdp_spec large = {FSDP_U8, 1, {(40 << 20) + 77}};
	const size_t size = (size_t)large.shape[0];
	struct fsdp_tensor *tensors[3] = {NULL};
	struct source source = {0};
	uint8_t *bytes = malloc(size);
	bool is_right = true;

	cr_assert(zero(int, fsdp_alloc_on(client, &gpu, &large, 1, NULL, 0,
					  &tensors[0])),
		  "%s", fsdp_error());
	cr_assert(
		zero(int, fsdp_alloc(client, &BYTES, 1, NULL, 0, &tensors[1])));
	cr_assert(zero(int, fsdp_alloc_on(client, &gpu, &BYTES, 1, NULL, 0,
					  &tensors[2])));
	cr_assert(zero(int, fsdp_fill(tensors, 3, read_counting, &source)),
		  "%s", fsdp_error());
	cr_assert(zero(int, fsdp_copy_out(bytes, tensors[0], 0, size)));
	for (size_t i = 0; i < size; i++)
		is_right = is_right && bytes[i] == (uint8_t)i;
	cr_expect(is_right);
	cr_assert(zero(int, fsdp_copy_out(bytes, tensors[2], 4000, 96)));
	cr_expect(eq(u8, bytes[0], (uint8_t)(size + 4096 + 4000)));
	cr_expect(
		eq(u8, *(const uint8_t *)fsdp_data(tensors[1]), (uint8_t)size));
	for (size_t i = 0; i < 3; i++)
		fsdp_free(tensors[i]);
	free(bytes);
}

Test(device, a_reader_that_fails_ends_the_copy)
{
	struct fsdp_tensor *tensors[2] = {make(&BYTES, 1), make(&BYTES, 1)};
	struct source source = {.r = -EIO};

	cr_expect(eq(int, fsdp_fill(tensors, 2, read_counting, &source), -EIO));
	cr_expect(ne(ptr, strstr(fsdp_error(), "tensors[1]"), NULL), "%s",
		  fsdp_error());
	cr_expect(holds_value(tensors[1], 1));
	fsdp_free(tensors[0]);
	fsdp_free(tensors[1]);
}

Test(device, copies_beyond_the_tensor_are_refused)
{
	struct fsdp_tensor *tensor = make(&BYTES, 1);
	uint8_t bytes[2] = {0};

	cr_expect(eq(int, fsdp_copy_in(tensor, 4095, bytes, 2), -ERANGE));
	cr_expect(eq(int, fsdp_copy_in(tensor, UINT64_MAX, bytes, 2), -ERANGE));
	cr_expect(eq(int, fsdp_copy_out(bytes, tensor, 4097, 0), -ERANGE));
	cr_expect(zero(int, fsdp_copy_out(bytes, tensor, 4094, 2)));
	cr_expect(eq(u8, bytes[1], 1));
	cr_assert(zero(int, fsdp_release(tensor)));
	cr_expect(eq(int, fsdp_copy_out(bytes, tensor, 0, 1), -EINVAL));
	fsdp_free(tensor);
}

/* --- processes ----------------------------------------------------------- */

Test(device, tensors_outlive_the_broker)
{
	struct fsdp_tensor *tensor;

	put("t/a", 42);
	tensor = get("t/a");
	daemon_kill_broker(&daemon_);
	cr_expect(holds_value(tensor, 42));
	fsdp_free(tensor);
	strcpy(shared->name, "t/a");
	cr_assert(zero(int, actor_run(&other, other_reads)));
	cr_expect(eq(u32, shared->first, 42));
	put("t/b", 43);
	strcpy(shared->name, "t/b");
	cr_assert(zero(int, actor_run(&other, other_reads)));
	cr_expect(eq(u32, shared->first, 43));
}

/* Use host memory and the device in a forked child. Host memory works there,
 * but the driver does not. */
static int use_both(void)
{
	struct fsdp_connect_options options = {.path = shared->socket};
	struct fsdp_client *mine = NULL;
	struct fsdp_tensor *tensor = NULL;
	const char *name = "t/host";
	int r;

	must(fsdp_connect(&options, &mine) == 0);
	must(fsdp_get(mine, &name, 1, NULL, &tensor) == 0);
	must(*(const uint8_t *)fsdp_data(tensor) == 7);
	fsdp_free(tensor);
	name = "t/a";
	r = fsdp_get(mine, &name, 1, NULL, &tensor);
	must(fsdp_alloc_on(mine, &gpu, &BYTES, 1, NULL, 0, &tensor) == r);
	snprintf(shared->sentence, sizeof(shared->sentence), "%s",
		 fsdp_error());
	fsdp_close(client);
	fsdp_close(mine);
	return r;
}

Test(device, a_forked_child_can_use_only_host_memory)
{
	struct fsdp_tensor *host = NULL;
	int status;
	pid_t pid;

	put("t/a", 42);
	cr_assert(zero(int, fsdp_alloc(client, &BYTES, 1, NULL, 0, &host)));
	memset(fsdp_data_mut(host), 7, 4096);
	cr_assert(zero(int, publish(host, "t/host", 0)));
	pid = fork();
	if (pid == 0)
		_exit(use_both() == -ECHILD ? 0 : 1);
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status), "%s", shared->sentence);
	cr_expect(ne(ptr, strstr(shared->sentence, "fork"), NULL), "%s",
		  shared->sentence);
	/* The child has unmapped nothing of the parent. */
	fsdp_free(host);
	host = get("t/a");
	cr_expect(holds_value(host, 42));
	fsdp_free(host);
}
