/*
 * The stage, and the commands for its processes.
 */
#include "tests/lib/stage.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct fsdp_spec BYTES = {FSDP_U8, 1, {STAGE_SIZE}};

struct stage stage;

/* --- in any process ------------------------------------------------------ */

void open_client(void)
{
	struct fsdp_connect_options options = {.path = stage.shared->socket};

	must(fsdp_connect(&options, &stage.client) == 0);
}

struct fsdp_tensor *alloc(void)
{
	struct fsdp_device gpu = gpu_name(0);
	struct fsdp_tensor *tensor = NULL;

	must(fsdp_alloc_on(stage.client, &gpu, &BYTES, 1, NULL, 0, &tensor) ==
	     0);
	return tensor;
}

int publish_on(struct fsdp_tensor *tensor, const char *name, void *stream)
{
	struct fsdp_publication it = {.tensor = tensor,
				      .name = name,
				      .flags = name ? FSDP_REPLACE : 0,
				      .stream = stream};

	return fsdp_publish(stage.client, &it, 1);
}

int get_on(const char *name, void *stream, int32_t timeout_ms,
	   struct fsdp_tensor **ret)
{
	const struct fsdp_get_options options = {.timeout_ms = timeout_ms,
						 .stream = stream};

	return fsdp_get(stage.client, &name, 1, &options, ret);
}

void remove_name(const char *name)
{
	must(fsdp_remove(stage.client, &name, 1) == 0);
}

bool maps_timelines_writable(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	bool is_found = false;
	char line[512];

	must(maps);
	while (fgets(line, sizeof(line), maps))
		is_found |=
			strstr(line, "fsdp-timelines") && strstr(line, " rw");
	(void)fclose(maps);
	return is_found;
}

uint64_t n_slots(void)
{
	struct figures figures;

	figures_read(stage.client, &figures);
	return figures.slots;
}

bool await_slots(uint64_t n)
{
	struct figures wanted;

	memset(&wanted, 0xff, sizeof(wanted));
	wanted.slots = n;
	return figures_await(stage.client, &wanted);
}

void open_gate(void)
{
	sem_post(&stage.shared->gate);
}

/* --- in the producer ----------------------------------------------------- */

static CUstream stream;
static struct fsdp_tensor *produced;

static int connect_producer(void)
{
	open_client();
	return 0;
}

int produce(void)
{
	uint8_t zeros[STAGE_SIZE] = {0};

	if (!stream)
		stream = stream_make(gpu_nth(0));
	produced = alloc();
	must(fsdp_copy_in(produced, 0, zeros, sizeof(zeros)) == 0);
	stream_hold(stream, &stage.shared->gate);
	stream_fill(stream, produced, STAGE_VALUE);
	return publish_on(produced, "t/a", stream);
}

int produce_ticket(void)
{
	must(produce() == 0);
	return fsdp_ticket_make(produced, 2, 60000, &stage.shared->ticket);
}

int produce_lets_go(void)
{
	fsdp_free(produced);
	return 0;
}

int produce_finishes(void)
{
	if (!stream_finish(stream))
		return -EIO;
	/* If events give the order, a call tells the broker about it. */
	return fsdp_ping(stage.client);
}

/* --- the stage ----------------------------------------------------------- */

void stage_open_with(const char *config)
{
	const struct daemon_options options = {.is_supervised = true,
					       .config = config};

	gpu_open();
	daemon_start_with(&stage.daemon, &options);
	stage.shared = shared_memory(sizeof(*stage.shared));
	strcpy(stage.shared->socket, daemon_socket(&stage.daemon));
	must(sem_init(&stage.shared->gate, 1, 0) == 0);
	actor_start(&stage.producer, NULL);
	open_client();
	must(actor_run(&stage.producer, connect_producer) == 0);
}

void stage_open(void)
{
	stage_open_with(NULL);
}

void stage_close(void)
{
	actor_kill(&stage.producer);
	fsdp_close(stage.client);
	daemon_stop(&stage.daemon);
	gpu_close();
}
