/*
 * Rows publish_to_waiter and publish_to_waiter_one_wake: the time from the call
 * of fsdp_publish() until a process that slept in fsdp_get() for that name has
 * the tensor. The floor of the first is the same relay without a broker:
 * publisher, server and waiter, each asleep in a receive. That of the second is
 * channel_one_way's: a message on a socket, which wakes the waiter alone. The
 * waiter always reports that it is about to wait, and has SETTLE_US to fall
 * asleep.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "floor.h"
#include "fsdp.h"
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK     32
#define SETTLE_US 300

struct waiting {
	const char *socket; /* ours */
	int floor_fd;       /* floor */
	size_t n;
	uint32_t request_size; /* floor; 0: it has no server */
};

/* How the floor's publisher reaches the waiter. */
struct relay {
	struct floor floor; /* without a server its sockets are one pair */
	struct floor_sizes publish, get;
	bool has_server;
};

static void wait_ours(int sock_fd, void *data)
{
	const struct waiting *waiting = data;
	struct fsdp_get_options options = {.timeout_ms = -1};
	struct fsdp_client *client = client_open(waiting->socket);
	struct fsdp_tensor *tensor;
	char text[NAME_SIZE];
	const char *name = text;
	uint64_t t = 0;

	for (size_t i = 0; i < waiting->n; i++) {
		name_format(text, "waited", i);
		message_send(sock_fd, &t, sizeof(t));
		must(fsdp_get(client, &name, 1, &options, &tensor), "get");
		t = now_ns();
		message_send(sock_fd, &t, sizeof(t));
		fsdp_free(tensor);
	}
	fsdp_close(client);
}

static void wait_floor(int sock_fd, void *data)
{
	const struct waiting *waiting = data;
	uint64_t t = 0;

	for (size_t i = 0; i < waiting->n; i++) {
		message_send(sock_fd, &t, sizeof(t));
		if (waiting->request_size)
			floor_park(waiting->floor_fd, waiting->request_size);
		floor_wait(waiting->floor_fd);
		t = now_ns();
		message_send(sock_fd, &t, sizeof(t));
	}
}

static void await_settled(const struct child *waiter)
{
	uint64_t ready;

	message_receive(waiter->sock_fd, &ready, sizeof(ready));
	sleep_us(SETTLE_US);
}

static double await_awake(const struct child *waiter, uint64_t start)
{
	uint64_t t;

	message_receive(waiter->sock_fd, &t, sizeof(t));
	return (double)(t - start);
}

static void ours_block(struct fsdp_client *client, size_t first,
		       const struct child *waiter, struct samples *samples)
{
	struct fsdp_tensor *tensors[BLOCK];
	struct fsdp_spec specs[BLOCK];
	char text[NAME_SIZE];
	uint64_t start;

	for (size_t i = 0; i < BLOCK; i++)
		specs[i] = (struct fsdp_spec){
			.dtype = FSDP_U8, .n_dims = 1, .shape = {64}};
	must(fsdp_alloc(client, specs, BLOCK, NULL, 0, tensors), "alloc");
	for (size_t i = 0; i < BLOCK; i++) {
		struct fsdp_publication publication = {.tensor = tensors[i],
						       .name = text};

		name_format(text, "waited", first + i);
		await_settled(waiter);
		start = now_ns();
		must(fsdp_publish(client, &publication, 1), "publish");
		samples_add(samples, await_awake(waiter, start));
		fsdp_free(tensors[i]);
	}
}

static void floor_publish(const struct relay *relay)
{
	if (relay->has_server)
		floor_call_and_forward(relay->floor.socks[0], relay->publish,
				       relay->get.reply);
	else
		message_send(relay->floor.socks[0], "p", 1);
}

static void floor_block(const struct relay *relay, const struct child *waiter,
			struct samples *samples)
{
	uint64_t start;

	for (size_t i = 0; i < BLOCK; i++) {
		await_settled(waiter);
		start = now_ns();
		floor_publish(relay);
		samples_add(samples, await_awake(waiter, start));
	}
}

/* Returns the message sizes of a publication. */
static struct floor_sizes weigh_publish(struct fsdp_client *client)
{
	struct fsdp_spec spec = {.dtype = FSDP_U8, .n_dims = 1, .shape = {64}};
	struct fsdp_publication publication = {.name = "waited/weighed0"};
	struct floor_sizes sizes;

	must(fsdp_alloc(client, &spec, 1, NULL, 1000, &publication.tensor),
	     "alloc");
	must(fsdp_publish(client, &publication, 1), "publish");
	sizes = floor_last_sizes();
	fsdp_free(publication.tensor);
	return sizes;
}

static void relay_open(struct relay *relay, const struct bench *bench)
{
	if (relay->has_server)
		floor_start(&relay->floor, bench);
	else
		sys(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, relay->floor.socks),
		    "make a socket");
}

static void relay_close(struct relay *relay)
{
	if (relay->has_server) {
		floor_stop(&relay->floor);
		return;
	}
	for (int i = 0; i < 2; i++)
		close(relay->floor.socks[i]);
}

static void run_pairs(const struct bench *bench, const struct relay *relay,
		      struct fsdp_client *client, const struct child *ours,
		      const struct child *theirs, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;

	for (unsigned i = 0; i <= bench->n_pairs; i++) {
		floor_block(relay, theirs, &pairs.floor);
		ours_block(client, i * BLOCK, ours, &pairs.ours);
		if (i == 0)
			pairs_deinit(&pairs); /* the first only warms up */
		else
			pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

static void run(const struct bench *bench, struct relay *relay, int floor_cpu,
		struct result *ret)
{
	struct child ours, theirs;
	struct fsdp_client *client;
	struct waiting waiting;
	struct daemon daemon;

	relay_open(relay, bench);
	daemon_start(&daemon, bench, &(struct daemon_options){0});
	client = client_open(daemon.socket);
	if (relay->has_server) {
		relay->get = floor_weigh_get(daemon.socket);
		relay->publish = weigh_publish(client);
	}
	waiting = (struct waiting){.socket = daemon.socket,
				   .floor_fd = relay->floor.socks[1],
				   .n = (bench->n_pairs + 1) * BLOCK,
				   .request_size = relay->get.request};
	child_start(&ours, bench->second_cpu, wait_ours, &waiting);
	child_start(&theirs, floor_cpu, wait_floor, &waiting);
	run_pairs(bench, relay, client, &ours, &theirs, ret);
	child_wait(&ours);
	child_wait(&theirs);
	fsdp_close(client);
	daemon_stop(&daemon);
	relay_close(relay);
}

void publish_to_waiter(const struct bench *bench, struct result *ret)
{
	struct relay relay = {.has_server = true};

	run(bench, &relay, bench->second_cpu, ret);
}

/* The floor's waiter is where the consumer of channel_one_way is. */
void publish_to_waiter_one_wake(const struct bench *bench, struct result *ret)
{
	struct relay relay = {.has_server = false};

	run(bench, &relay, bench->server_cpu, ret);
}
