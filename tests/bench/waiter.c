/*
 * Row publish_to_waiter: the time from the call of fsdp_publish() until a
 * process that slept in fsdp_get() for that name has the tensor. The floor is
 * the same relay without a broker: publisher, server and waiter, each asleep in
 * a receive. In both, the waiter reports that it is about to wait, and has
 * SETTLE_US to fall asleep.
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "floor.h"
#include "fsdp.h"

#define BLOCK     32
#define SETTLE_US 300

struct waiting {
	const char *socket; /* ours */
	int floor_fd;       /* floor */
	size_t n;
	uint32_t request_size;
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

static void floor_block(const struct floor *floor, struct floor_sizes publish,
			uint32_t get_reply_size, const struct child *waiter,
			struct samples *samples)
{
	uint64_t start;

	for (size_t i = 0; i < BLOCK; i++) {
		await_settled(waiter);
		start = now_ns();
		floor_call_and_forward(floor->socks[0], publish,
				       get_reply_size);
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

void publish_to_waiter(const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct floor_sizes publish, get;
	struct child ours, theirs;
	struct fsdp_client *client;
	struct waiting waiting;
	struct daemon daemon;
	struct floor floor;

	floor_start(&floor, bench);
	daemon_start(&daemon, bench, &(struct daemon_options){0});
	client = client_open(daemon.socket);
	get = floor_weigh_get(daemon.socket);
	publish = weigh_publish(client);
	waiting = (struct waiting){.socket = daemon.socket,
				   .floor_fd = floor.socks[1],
				   .n = (bench->n_pairs + 1) * BLOCK,
				   .request_size = get.request};
	child_start(&ours, bench->second_cpu, wait_ours, &waiting);
	child_start(&theirs, bench->second_cpu, wait_floor, &waiting);
	for (unsigned i = 0; i <= bench->n_pairs; i++) {
		floor_block(&floor, publish, get.reply, &theirs, &pairs.floor);
		ours_block(client, i * BLOCK, &ours, &pairs.ours);
		if (i == 0)
			pairs_deinit(&pairs); /* the first only warms up */
		else
			pairs_close(&pairs);
	}
	child_wait(&ours);
	child_wait(&theirs);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
	fsdp_close(client);
	daemon_stop(&daemon);
	floor_stop(&floor);
}
