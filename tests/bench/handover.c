/*
 * Rows handover_*: memory goes from a producer to a consumer and comes back.
 *
 * One hand-over is counted from the first line to the last:
 *
 *   producer   calls fsdp_alloc, fills, calls fsdp_publish under a new name
 *   consumer   wakes up in fsdp_get, reads a word of every 4 KiB, releases,
 *              sends the producer a message, waits for the next name
 *   producer   releases, calls fsdp_remove of the name: the block is free again
 *
 * The floor has the same three processes and the same messages, of the same
 * sizes, without a broker: three bare round trips, of which the second also
 * wakes the consumer; the same copy into shared memory that stays mapped; and
 * the same reading. Both fill by memcpy or streaming stores, whichever is
 * quicker here for the size.
 */
#include "bench.h"
#include "child.h"
#include "copy.h"
#include "daemon.h"
#include "floor.h"
#include "fsdp.h"
#include "wire.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PAGE 4096
#define WARM 32

/* The resources that a process has used. */
struct usage {
	uint64_t faults, mmaps, fds;
};

struct consuming {
	const char *socket; /* ours */
	int floor_fd;       /* for the floor */
	const void *memory; /* for the floor */
	size_t size;
	uint32_t request_size; /* floor: of a get */
	size_t n, n_warm; /* hand-overs; the usage after `n_warm` is sent */
};

struct handover {
	struct fsdp_client *client;
	struct child consumer, floor_consumer;
	struct floor floor;
	struct floor_sizes alloc, publish, get, remove;
	copy_fn *copy;
	void *source, *memory; /* `memory`: shared memory of the floor */
	size_t size;
	size_t n_done;
};

static uint64_t count_open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t n = 0;

	if (!dir)
		die("open /proc/self/fd: %m");
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Faults are read last at the start and first at the end, so that reading the
 * other values causes no faults that count. */
static struct usage usage_start(void)
{
	struct usage usage;
	struct rusage r;

	usage.fds = wire.n_fds + count_open_fds();
	usage.mmaps = wire.n_mmaps;
	getrusage(RUSAGE_SELF, &r);
	usage.faults = (uint64_t)(r.ru_minflt + r.ru_majflt);
	return usage;
}

static struct usage usage_since(const struct usage *start)
{
	struct usage usage;
	struct rusage r;

	getrusage(RUSAGE_SELF, &r);
	usage.faults = (uint64_t)(r.ru_minflt + r.ru_majflt) - start->faults;
	usage.mmaps = wire.n_mmaps - start->mmaps;
	usage.fds = wire.n_fds + count_open_fds() - start->fds;
	return usage;
}

static void consume(const void *data, size_t size)
{
	const volatile uint64_t *words = data;

	for (size_t i = 0; i < size / sizeof(*words);
	     i += PAGE / sizeof(*words))
		(void)words[i];
}

static void consume_ours(int sock_fd, void *data)
{
	const struct consuming *consuming = data;
	struct fsdp_get_options options = {.timeout_ms = -1};
	struct fsdp_client *client = client_open(consuming->socket);
	struct fsdp_tensor *tensor;
	struct usage start = {0};
	char text[NAME_SIZE];
	const char *name = text;

	for (size_t i = 0; i < consuming->n; i++) {
		if (i == consuming->n_warm)
			start = usage_start();
		name_format(text, "handover", i);
		must(fsdp_get(client, &name, 1, &options, &tensor), "get");
		consume(fsdp_data(tensor), consuming->size);
		fsdp_free(tensor);
		message_send(sock_fd, "d", 1);
	}
	start = usage_since(&start);
	message_send(sock_fd, &start, sizeof(start));
	fsdp_close(client);
}

static void consume_floor(int sock_fd, void *data)
{
	const struct consuming *consuming = data;

	for (size_t i = 0; i < consuming->n; i++) {
		floor_park(consuming->floor_fd, consuming->request_size);
		floor_wait(consuming->floor_fd);
		consume(consuming->memory, consuming->size);
		message_send(sock_fd, "d", 1);
	}
}

static void *map_pages(size_t size, int flags)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_ANONYMOUS | flags, -1, 0);

	if (memory == MAP_FAILED)
		die("map %zu bytes: %m", size);
	madvise(memory, size, MADV_HUGEPAGE);
	memset(memory, 1, size);
	return memory;
}

static void give_ours(struct handover *handover)
{
	struct fsdp_spec spec = {.dtype = FSDP_U8,
				 .n_dims = 1,
				 .shape = {(int64_t)handover->size}};
	struct fsdp_publication publication = {0};
	char text[NAME_SIZE];
	const char *name = text;
	char done;

	name_format(text, "handover", handover->n_done++);
	must(fsdp_alloc(handover->client, &spec, 1, NULL, 10000,
			&publication.tensor),
	     "alloc");
	handover->alloc = floor_last_sizes();
	handover->copy(fsdp_data_mut(publication.tensor), handover->source,
		       handover->size);
	publication.name = text;
	must(fsdp_publish(handover->client, &publication, 1), "publish");
	handover->publish = floor_last_sizes();
	message_receive(handover->consumer.sock_fd, &done, 1);
	fsdp_free(publication.tensor);
	must(fsdp_remove(handover->client, &name, 1), "remove");
	handover->remove = floor_last_sizes();
}

static void give_floor(struct handover *handover)
{
	int fd = handover->floor.socks[0];
	char done;

	floor_call(fd, handover->alloc);
	handover->copy(handover->memory, handover->source, handover->size);
	floor_call_and_forward(fd, handover->publish, handover->get.reply);
	message_receive(handover->floor_consumer.sock_fd, &done, 1);
	floor_call(fd, handover->remove);
}

static void handover_open(struct handover *handover, const struct bench *bench,
			  const struct daemon *daemon, size_t size,
			  size_t n_warm, size_t n)
{
	struct consuming consuming;

	*handover = (struct handover){.size = size};
	floor_start(&handover->floor, bench);
	handover->source = map_pages(size, MAP_PRIVATE);
	handover->memory = map_pages(size, MAP_SHARED);
	handover->copy = copy_choose(handover->memory, handover->source, size);
	handover->get = floor_weigh_get(daemon->socket);
	consuming = (struct consuming){.socket = daemon->socket,
				       .floor_fd = handover->floor.socks[1],
				       .memory = handover->memory,
				       .size = size,
				       .request_size = handover->get.request,
				       .n_warm = n_warm,
				       .n = n_warm + n};
	child_start(&handover->consumer, bench->second_cpu, consume_ours,
		    &consuming);
	child_start(&handover->floor_consumer, bench->second_cpu, consume_floor,
		    &consuming);
	handover->client = client_open(daemon->socket);
}

static void handover_close(struct handover *handover, struct usage *ret)
{
	message_receive(handover->consumer.sock_fd, ret, sizeof(*ret));
	child_wait(&handover->consumer);
	child_kill(&handover->floor_consumer);
	fsdp_close(handover->client);
	floor_stop(&handover->floor);
}

static double time_one(struct handover *handover,
		       void (*give)(struct handover *handover))
{
	uint64_t start = now_ns();

	give(handover);
	return (double)(now_ns() - start);
}

static void run(const struct bench *bench, size_t size, size_t block,
		struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct handover handover;
	struct daemon daemon;
	struct usage usage;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	handover_open(&handover, bench, &daemon, size, WARM,
		      (size_t)bench->n_pairs * block);
	for (size_t i = 0; i < WARM; i++)
		give_ours(&handover);
	give_floor(&handover);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		for (size_t j = 0; j < block; j++)
			samples_add(&pairs.floor,
				    time_one(&handover, give_floor));
		for (size_t j = 0; j < block; j++)
			samples_add(&pairs.ours,
				    time_one(&handover, give_ours));
		pairs_close(&pairs);
	}
	handover_close(&handover, &usage);
	daemon_stop(&daemon);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

void handover_1mib(const struct bench *bench, struct result *ret)
{
	run(bench, 1 << 20, 32, ret);
}

void handover_64mib(const struct bench *bench, struct result *ret)
{
	run(bench, 64 << 20, bench->is_quick ? 4 : 8, ret);
}

/* --- handover_steady_* ---------------------------------------------------- */

/* After this many hand-overs, everything that may grow up to a limit has
 * reached its limit. */
#define STEADY_WARM 2048
#define STEADY      128

/* Counts what STEADY hand-overs of 1 MiB use in both processes. */
static struct usage measure_steady(const struct bench *bench)
{
	struct usage start, mine, theirs;
	struct handover handover;
	struct daemon daemon;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	handover_open(&handover, bench, &daemon, 1 << 20, STEADY_WARM, STEADY);
	for (size_t i = 0; i < STEADY_WARM; i++)
		give_ours(&handover);
	start = usage_start();
	for (size_t i = 0; i < STEADY; i++)
		give_ours(&handover);
	mine = usage_since(&start);
	handover_close(&handover, &theirs);
	daemon_stop(&daemon);
	return (struct usage){mine.faults + theirs.faults,
			      mine.mmaps + theirs.mmaps, mine.fds + theirs.fds};
}

/* The limit is 0, so the ratio is the value itself. */
static void steady_result(uint64_t count, struct result *ret)
{
	double value = (double)count / STEADY;

	*ret = (struct result){.median = value,
			       .p99 = value,
			       .floor = 0,
			       .ratio = value,
			       .n = STEADY};
}

void handover_steady_faults(const struct bench *bench, struct result *ret)
{
	steady_result(measure_steady(bench).faults, ret);
}

void handover_steady_mmaps(const struct bench *bench, struct result *ret)
{
	steady_result(measure_steady(bench).mmaps, ret);
}

void handover_steady_fds(const struct bench *bench, struct result *ret)
{
	steady_result(measure_steady(bench).fds, ret);
}
