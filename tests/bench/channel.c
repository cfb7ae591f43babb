/*
 * Rows channel_*: items from a producer to a consumer.
 *
 *   channel_one_way        a sleeping consumer gets the item; the floor is a
 *                          message on a socket
 *   channel_64KiB          items are sent as fast as possible and their bytes
 *                          are not touched; the floor is a token and a credit
 *                          on a socket
 *   channel_64KiB_filled   the same with filled items; the floor is memset of
 *                          the same buffers
 *   channel_1MiB           filled items; the floor is the same bytes through a
 *                          pipe
 *   channel_wakes          how often a consumer falls asleep for each item, if
 *                          items come seldom
 *   channel_wakes_busy     the same if they come as fast as possible
 *
 * Producer and consumer run on CPUs of their own. The broker shares the
 * consumer's CPU and is idle.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "fsdp.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAME      "bench/channel"
#define N_SLOTS   8
#define SETTLE_US 300 /* time in which the consumer falls asleep */
#define ONE_WAY   32  /* items in a block */

enum way { CHANNEL, SOCKET, PIPE };

struct flow {
	const char *socket; /* of the broker */
	enum way way;
	size_t size; /* bytes of an item */
	bool is_filled;
	size_t n;   /* number of items after which the consumer reports */
	int fds[2]; /* SOCKET: both ends; PIPE: to read, to write */
	struct child consumer;
	struct fsdp_client *client;
	struct fsdp_channel *channel;
	uint8_t *memory; /* SOCKET, PIPE: N_SLOTS items */
	double *latency; /* in shared memory: time stamp of the last item, ns */
};

/* --- consumers ----------------------------------------------------------- */

static struct fsdp_channel *open_channel(struct fsdp_client *client,
					 size_t size,
					 enum fsdp_channel_role role)
{
	struct fsdp_channel_options options = {
		.capacity = size, .n_slots = N_SLOTS, .timeout_ms = 10000};
	struct fsdp_channel *channel;

	must(fsdp_channel_open(client, NAME, &options, role, &channel),
	     "open the channel");
	return channel;
}

static void note_latency(const struct flow *flow, const void *data)
{
	uint64_t stamp;

	memcpy(&stamp, data, sizeof(stamp));
	*flow->latency = (double)(now_ns() - stamp);
}

static void receive_item(const struct flow *flow, struct fsdp_channel *channel)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_item *item;

	must(fsdp_item_receive(channel, -1, &item), "receive");
	must(fsdp_item_view(item, 0, &view), "view");
	note_latency(flow, view.data);
	must(fsdp_item_release(item), "release");
}

/* Receive a token, which contains the time stamp, and return it as the
 * credit. */
static void receive_token(const struct flow *flow)
{
	uint64_t stamp;

	message_receive(flow->fds[1], &stamp, sizeof(stamp));
	note_latency(flow, &stamp);
	if (flow->n > 1)
		message_send(flow->fds[1], &stamp, sizeof(stamp));
}

static void receive_bytes(const struct flow *flow)
{
	for (size_t done = 0; done < flow->size;) {
		ssize_t r = read(flow->fds[0], flow->memory + done,
				 flow->size - done);

		if (r <= 0)
			exit(0);
		done += (size_t)r;
	}
}

static void consume(int sock_fd, void *data)
{
	const struct flow *flow = data;
	struct fsdp_channel *channel = NULL;

	if (flow->way == CHANNEL)
		channel = open_channel(client_open(flow->socket), flow->size,
				       FSDP_CONSUMER);
	message_send(sock_fd, "r", 1);
	for (size_t i = 1;; i++) {
		if (flow->way == CHANNEL)
			receive_item(flow, channel);
		else if (flow->way == SOCKET)
			receive_token(flow);
		else
			receive_bytes(flow);
		if (i % flow->n == 0)
			message_send(sock_fd, "d", 1);
	}
}

/* --- producers ----------------------------------------------------------- */

static void send_item(struct flow *flow)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {(int64_t)flow->size}};
	struct fsdp_item *item;
	uint64_t stamp;
	void *at;

	must(fsdp_item_begin(flow->channel, -1, &item), "begin");
	must(fsdp_item_part(item, &spec, &at), "part");
	if (flow->is_filled)
		memset(at, 1, flow->size);
	stamp = now_ns();
	memcpy(at, &stamp, sizeof(stamp));
	must(fsdp_item_send(item), "send");
}

static void send_token(struct flow *flow, size_t i)
{
	uint64_t stamp;

	if (flow->n > 1 && i >= N_SLOTS)
		message_receive(flow->fds[0], &stamp, sizeof(stamp));
	stamp = now_ns();
	message_send(flow->fds[0], &stamp, sizeof(stamp));
}

static void send_bytes(struct flow *flow)
{
	memset(flow->memory, 1, flow->size);
	for (size_t done = 0; done < flow->size;)
		done += (size_t)sys((int)write(flow->fds[1],
					       flow->memory + done,
					       flow->size - done),
				    "write to a pipe");
}

/* Take the credits that are outstanding when a block ends. */
static void collect_tokens(struct flow *flow)
{
	size_t n = flow->n < N_SLOTS ? flow->n : N_SLOTS;
	uint64_t stamp;

	for (size_t i = 0; flow->n > 1 && i < n; i++)
		message_receive(flow->fds[0], &stamp, sizeof(stamp));
}

/* Send `n` items and wait until the consumer has them. Returns ns for each. */
static double run_block(struct flow *flow)
{
	uint64_t start = now_ns();
	char done;

	for (size_t i = 0; i < flow->n; i++) {
		if (flow->way == CHANNEL)
			send_item(flow);
		else if (flow->way == SOCKET)
			send_token(flow, i);
		else
			send_bytes(flow);
	}
	if (flow->way == SOCKET)
		collect_tokens(flow);
	message_receive(flow->consumer.sock_fd, &done, 1);
	return (double)(now_ns() - start) / (double)flow->n;
}

static void *map_shared(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("map %zu bytes: %m", size);
	memset(memory, 1, size);
	return memory;
}

static void flow_open(struct flow *flow, const struct bench *bench,
		      const struct daemon *daemon)
{
	char ready;

	flow->socket = daemon->socket;
	flow->latency = map_shared(sizeof(*flow->latency));
	flow->memory = map_shared(flow->size);
	if (flow->way == SOCKET)
		sys(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, flow->fds),
		    "make a socket");
	if (flow->way == PIPE)
		sys(pipe(flow->fds), "make a pipe");
	child_start(&flow->consumer, bench->server_cpu, consume, flow);
	if (flow->way == CHANNEL) {
		flow->client = client_open(daemon->socket);
		flow->channel =
			open_channel(flow->client, flow->size, FSDP_PRODUCER);
	}
	message_receive(flow->consumer.sock_fd, &ready, 1);
}

static void flow_close(struct flow *flow)
{
	child_kill(&flow->consumer);
	if (flow->client)
		fsdp_close(flow->client);
}

/* --- rows ---------------------------------------------------------------- */

static void run_pairs(const struct bench *bench, struct flow *ours,
		      struct flow *floor, size_t n_blocks,
		      void (*sample)(struct flow *flow, struct samples *ret),
		      struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct daemon daemon;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	flow_open(ours, bench, &daemon);
	flow_open(floor, bench, &daemon);
	for (unsigned i = 0; i <= bench->n_pairs; i++) {
		for (size_t j = 0; j < n_blocks; j++)
			sample(floor, &pairs.floor);
		for (size_t j = 0; j < n_blocks; j++)
			sample(ours, &pairs.ours);
		if (i == 0)
			/* the first block only warms up caches */
			pairs_deinit(&pairs);
		else
			pairs_close(&pairs);
	}
	flow_close(ours);
	flow_close(floor);
	daemon_stop(&daemon);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

static void sample_latency(struct flow *flow, struct samples *ret)
{
	sleep_us(SETTLE_US);
	(void)run_block(flow);
	samples_add(ret, *flow->latency);
}

void channel_one_way(const struct bench *bench, struct result *ret)
{
	struct flow ours = {.way = CHANNEL, .size = 64, .n = 1};
	struct flow floor = {.way = SOCKET, .size = 64, .n = 1};

	run_pairs(bench, &ours, &floor, ONE_WAY, sample_latency, ret);
}

static void sample_block(struct flow *flow, struct samples *ret)
{
	samples_add(ret, run_block(flow));
}

void channel_64kib(const struct bench *bench, struct result *ret)
{
	struct flow ours = {.way = CHANNEL, .size = 64 << 10, .n = 2048};
	struct flow floor = {.way = SOCKET, .size = 64 << 10, .n = 2048};

	run_pairs(bench, &ours, &floor, 1, sample_block, ret);
}

void channel_1mib(const struct bench *bench, struct result *ret)
{
	struct flow ours = {
		.way = CHANNEL, .size = 1 << 20, .n = 64, .is_filled = true};
	struct flow floor = {.way = PIPE, .size = 1 << 20, .n = 64};

	run_pairs(bench, &ours, &floor, 1, sample_block, ret);
}

/* Fill buffers that are as warm as those of a channel. */
static double fill_alone(uint8_t *memory, size_t size, size_t n)
{
	uint64_t start = now_ns();

	for (size_t i = 0; i < n; i++) {
		memset(memory + i % N_SLOTS * size, 1, size);
		__asm__ volatile("" ::"r"(memory) : "memory");
	}
	return (double)(now_ns() - start) / (double)n;
}

void channel_64kib_filled(const struct bench *bench, struct result *ret)
{
	struct flow ours = {
		.way = CHANNEL, .size = 64 << 10, .n = 512, .is_filled = true};
	uint8_t *memory = map_shared(N_SLOTS * ours.size);
	struct pairs pairs = PAIRS_NULL;
	struct daemon daemon;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	flow_open(&ours, bench, &daemon);
	(void)run_block(&ours);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		samples_add(&pairs.floor,
			    fill_alone(memory, ours.size, ours.n));
		samples_add(&pairs.ours, run_block(&ours));
		pairs_close(&pairs);
	}
	flow_close(&ours);
	daemon_stop(&daemon);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

/* Measures how often the consumer went to sleep for each item. It sleeps once
 * more for its report after each block. */
static void count_wakes(const struct bench *bench, struct flow *flow,
			bool is_seldom, double limit, struct result *ret)
{
	struct samples samples = SAMPLES_NULL;
	struct daemon daemon;
	uint32_t n_threads;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	flow_open(flow, bench, &daemon);
	(void)run_block(flow);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		uint64_t before =
			process_switches(flow->consumer.pid, &n_threads);

		for (size_t j = 0; j < (is_seldom ? ONE_WAY : 1); j++) {
			if (is_seldom)
				sleep_us(SETTLE_US);
			(void)run_block(flow);
		}
		samples_add(&samples,
			    (double)(process_switches(flow->consumer.pid,
						      &n_threads) -
				     before) /
				    (double)(is_seldom ? ONE_WAY : flow->n));
	}
	flow_close(flow);
	daemon_stop(&daemon);
	absolute_result(&samples, samples_quantile(&samples, 0.5), limit, ret);
	samples_deinit(&samples);
}

void channel_wakes(const struct bench *bench, struct result *ret)
{
	struct flow flow = {.way = CHANNEL, .size = 64, .n = 1};

	count_wakes(bench, &flow, true, 1, ret);
}

void channel_wakes_busy(const struct bench *bench, struct result *ret)
{
	struct flow flow = {
		.way = CHANNEL, .size = 64 << 10, .n = 2048, .is_filled = true};

	count_wakes(bench, &flow, false, 0.05, ret);
}
