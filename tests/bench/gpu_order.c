/*
 * Row gpu_publish_to_consume: half a round trip between two processes. Each of
 * them publishes a tensor on a stream; the other gets it on a stream of its own
 * and waits for that stream. All memory is allocated before. The floor is the
 * same order between two streams of one process, by a 64-bit write and a wait
 * for it in host memory, and a wait for the second stream.
 */
#include "child.h"
#include "cuda/fence.h"
#include "daemon.h"
#include "gpu.h"
#include "proto/error.h"
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK   16
#define WAIT_MS 20000

struct side {
	const struct gpu *gpu;
	const char *socket;
	const char *ours, *theirs; /* prefixes of names */
	struct fsdp_client *client;
	CUstream stream;
	struct fsdp_tensor *next, *got;
};

static void side_open(struct side *side)
{
	gpu_enter(0);
	side->stream = gpu_stream();
	side->client = client_open(side->socket);
}

static void prepare(struct side *side)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {4096}};

	must(fsdp_alloc_on(side->client, &side->gpu->device, &spec, 1, NULL,
			   WAIT_MS, &side->next),
	     "alloc");
}

static void publish(struct side *side, size_t i)
{
	struct fsdp_publication publication = {.tensor = side->next,
					       .stream = side->stream};
	char name[NAME_SIZE];

	name_format(name, side->ours, i);
	publication.name = name;
	must(fsdp_publish(side->client, &publication, 1), "publish");
}

static void consume(struct side *side, size_t i)
{
	const struct fsdp_get_options options = {.timeout_ms = WAIT_MS,
						 .stream = side->stream};
	char text[NAME_SIZE];
	const char *name = text;

	name_format(text, side->theirs, i);
	must(fsdp_get(side->client, &name, 1, &options, &side->got), "get");
	gpu_must(cu.StreamSynchronize(side->stream), "wait for a stream");
}

static void clean(struct side *side, size_t i)
{
	char text[NAME_SIZE];
	const char *name = text;

	fsdp_free(side->got);
	fsdp_free(side->next);
	name_format(text, side->ours, i);
	must(fsdp_remove(side->client, &name, 1), "remove");
}

static unsigned count_rounds(const struct gpu *gpu)
{
	return (gpu->bench->n_pairs + 1) * BLOCK;
}

static void answer(int sock_fd, void *data)
{
	struct side *side = data;
	char byte = 0;

	side->ours = "pong";
	side->theirs = "ping";
	side_open(side);
	for (size_t i = 0; i < count_rounds(side->gpu); i++) {
		prepare(side);
		message_send(sock_fd, &byte, 1);
		consume(side, i);
		publish(side, i);
		/* This message says that the other process has got the
		 * tensors. */
		message_receive(sock_fd, &byte, 1);
		clean(side, i);
	}
	fsdp_close(side->client);
}

static double time_ours(struct side *side, int sock_fd, size_t i)
{
	uint64_t start, end;
	char byte = 0;

	prepare(side);
	message_receive(sock_fd, &byte, 1);
	start = now_ns();
	publish(side, i);
	consume(side, i);
	end = now_ns();
	message_send(sock_fd, &byte, 1);
	clean(side, i);
	return (double)(end - start) / 2;
}

static double time_floor(const struct fence_map *map, CUstream from,
			 CUstream to)
{
	struct error err = ERROR_NULL;
	static uint64_t value;
	uint64_t start = now_ns();

	value++;
	gpu_check(fence_signal(map, from, 0, value, &err), &err);
	gpu_check(fence_wait(map, to, 0, value, &err), &err);
	gpu_must(cu.StreamSynchronize(to), "wait for a stream");
	return (double)(now_ns() - start);
}

static void measure(struct side *side, int sock_fd, struct result *ret)
{
	uint64_t size = (uint64_t)sysconf(_SC_PAGESIZE);
	void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const struct device *device = gpu_enter(0);
	struct fence_map map = FENCE_MAP_NULL;
	struct pairs pairs = PAIRS_NULL;
	struct error err = ERROR_NULL;
	CUstream from = gpu_stream();
	size_t n = 0;

	if (pages == MAP_FAILED)
		die("map a page: %m");
	gpu_check(fence_map(device, pages, size, false, &map, &err), &err);
	for (; n < BLOCK; n++) {
		time_ours(side, sock_fd, n);
		time_floor(&map, from, side->stream);
	}
	while (n < count_rounds(side->gpu)) {
		for (unsigned i = 0; i < BLOCK; i++) {
			samples_add(&pairs.floor,
				    time_floor(&map, from, side->stream));
			samples_add(&pairs.ours, time_ours(side, sock_fd, n++));
		}
		pairs_close(&pairs);
	}
	fence_unmap(&map);
	munmap(pages, size);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

void gpu_order(const struct gpu *gpu)
{
	struct gpu_line line = {.name = "gpu_publish_to_consume",
				.variant = "streams, 2 processes",
				.unit = "us"};
	struct side side = {.gpu = gpu, .ours = "ping", .theirs = "pong"};
	struct daemon daemon;
	struct child child;

	daemon_start(&daemon, gpu->bench, &(struct daemon_options){0});
	side.socket = daemon.socket;
	child_start(&child, gpu->bench->second_cpu, answer, &side);
	side_open(&side);
	measure(&side, child.sock_fd, &line.result);
	child_wait(&child);
	fsdp_close(side.client);
	daemon_stop(&daemon);
	gpu_print(gpu, &line);
}
