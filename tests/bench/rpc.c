/*
 * Rows rpc_* and model_attach_1000: the cost of one request.
 *
 * A block is a preparation, BLOCK calls timed one by one back to back, and a
 * clean-up. The floor of the single requests is a bare round trip with their
 * message sizes, taken from a call of ours. The rows do the following:
 *
 *   rpc_ping        fsdp_ping
 *   rpc_get         fsdp_get of a name that this process asks for the first
 *                   time (a known one costs no request: see hot_*)
 *   rpc_publish     publish a tensor under an existing name, with REPLACE
 *   rpc_release     fsdp_release_sync of the only hold, which frees the block
 *   rpc_alloc_warm  allocate 64 KiB from pages that exist
 *   rpc_get_100     one fsdp_get of 100 new names, against rpc_get
 */
#include "bench.h"
#include "child.h"
#include "daemon.h"
#include "floor.h"
#include "fsdp.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK         128
#define HUNDRED       100
#define HUNDRED_BLOCK 16
#define HUNDRED_PAIRS 21

struct rpc {
	struct fsdp_client *client;
	struct fsdp_tensor *tensors[BLOCK];
	struct fsdp_tensor *many[HUNDRED_BLOCK][HUNDRED];
	size_t n_asked; /* number of names "rpc/..." that were used */
	size_t n_hundreds_asked;
};

struct verb {
	void (*prepare)(struct rpc *rpc);
	void (*call)(struct rpc *rpc, size_t i);
	void (*clean)(struct rpc *rpc);
};

static void nothing(struct rpc *rpc)
{
	(void)rpc;
}

static void free_block(struct rpc *rpc)
{
	for (size_t i = 0; i < BLOCK; i++)
		fsdp_free(rpc->tensors[i]);
}

static void alloc_block(struct rpc *rpc)
{
	struct fsdp_spec specs[BLOCK];

	for (size_t i = 0; i < BLOCK; i++)
		specs[i] = (struct fsdp_spec){
			.dtype = FSDP_U8, .n_dims = 1, .shape = {64}};
	must(fsdp_alloc(rpc->client, specs, BLOCK, NULL, 0, rpc->tensors),
	     "alloc");
}

static void release_block(struct rpc *rpc)
{
	must(fsdp_release_sync(rpc->client, rpc->tensors, BLOCK), "release");
	free_block(rpc);
}

static void ping(struct rpc *rpc, size_t i)
{
	(void)i;
	must(fsdp_ping(rpc->client), "ping");
}

static void get(struct rpc *rpc, size_t i)
{
	char text[NAME_SIZE];
	const char *name = text;

	name_format(text, "rpc", rpc->n_asked++);
	must(fsdp_get(rpc->client, &name, 1, NULL, &rpc->tensors[i]), "get");
}

static void publish(struct rpc *rpc, size_t i)
{
	struct fsdp_publication publication = {.tensor = rpc->tensors[i],
					       .name = "replaced/00000000",
					       .flags = FSDP_REPLACE};

	must(fsdp_publish(rpc->client, &publication, 1), "publish");
}

static void release(struct rpc *rpc, size_t i)
{
	must(fsdp_release_sync(rpc->client, &rpc->tensors[i], 1), "release");
}

static void alloc_warm(struct rpc *rpc, size_t i)
{
	struct fsdp_spec spec = {
		.dtype = FSDP_U8, .n_dims = 1, .shape = {64 << 10}};

	must(fsdp_alloc(rpc->client, &spec, 1, NULL, 0, &rpc->tensors[i]),
	     "alloc");
}

/* Returns the nanoseconds of one get of names that were never asked for. */
static double time_hundred(struct rpc *rpc, size_t i)
{
	char texts[HUNDRED][NAME_SIZE];
	const char *names[HUNDRED];
	uint64_t start;

	for (size_t j = 0; j < HUNDRED; j++) {
		name_format(texts[j], "hundred",
			    rpc->n_hundreds_asked * HUNDRED + j);
		names[j] = texts[j];
	}
	rpc->n_hundreds_asked++;
	start = now_ns();
	must(fsdp_get(rpc->client, names, HUNDRED, NULL, rpc->many[i]), "get");
	return (double)(now_ns() - start);
}

static const struct verb verb_ping = {nothing, ping, nothing};
static const struct verb verb_get = {nothing, get, free_block};
static const struct verb verb_publish = {alloc_block, publish, free_block};
static const struct verb verb_release = {alloc_block, release, free_block};
static const struct verb verb_alloc = {nothing, alloc_warm, release_block};

static double time_call(const struct verb *verb, struct rpc *rpc, size_t i)
{
	uint64_t start = now_ns();

	verb->call(rpc, i);
	return (double)(now_ns() - start);
}

static void block(const struct verb *verb, struct rpc *rpc,
		  struct samples *samples)
{
	verb->prepare(rpc);
	for (size_t i = 0; i < BLOCK; i++)
		samples_add(samples, time_call(verb, rpc, i));
	verb->clean(rpc);
}

/* Run a block without keeping its times, so that pages, chunks and caches get
 * warm. Returns the message sizes of one call of it. */
static struct floor_sizes warm_up(const struct verb *verb, struct rpc *rpc)
{
	struct floor_sizes sizes = {0};

	verb->prepare(rpc);
	for (size_t i = 0; i < BLOCK; i++) {
		verb->call(rpc, i);
		sizes = floor_last_sizes();
	}
	verb->clean(rpc);
	return sizes;
}

static void run(const struct bench *bench, const struct verb *verb,
		struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct floor_sizes sizes;
	static struct rpc rpc;
	struct fsdp_client *owner;
	struct daemon daemon;
	struct floor floor;
	uint64_t start;

	floor_start(&floor, bench);
	daemon_start(&daemon, bench, &(struct daemon_options){0});
	owner = client_open(daemon.socket);
	rpc.client = client_open(daemon.socket);
	if (verb == &verb_get)
		publish_many(owner, "rpc", (bench->n_pairs + 1) * BLOCK, 64);
	sizes = warm_up(verb, &rpc);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		for (size_t j = 0; j < BLOCK; j++) {
			start = now_ns();
			floor_call(floor.socks[0], sizes);
			samples_add(&pairs.floor, (double)(now_ns() - start));
		}
		block(verb, &rpc, &pairs.ours);
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
	fsdp_close(rpc.client);
	fsdp_close(owner);
	daemon_stop(&daemon);
	floor_stop(&floor);
}

void rpc_ping(const struct bench *bench, struct result *ret)
{
	run(bench, &verb_ping, ret);
}

void rpc_get(const struct bench *bench, struct result *ret)
{
	run(bench, &verb_get, ret);
}

void rpc_publish(const struct bench *bench, struct result *ret)
{
	run(bench, &verb_publish, ret);
}

void rpc_release(const struct bench *bench, struct result *ret)
{
	run(bench, &verb_release, ret);
}

void rpc_alloc_warm(const struct bench *bench, struct result *ret)
{
	run(bench, &verb_alloc, ret);
}

static void hundred_block(struct rpc *rpc, struct samples *samples)
{
	for (size_t i = 0; i < HUNDRED_BLOCK; i++)
		samples_add(samples, time_hundred(rpc, i));
	for (size_t i = 0; i < HUNDRED_BLOCK; i++)
		for (size_t j = 0; j < HUNDRED; j++)
			fsdp_free(rpc->many[i][j]);
}

void rpc_get_100(const struct bench *bench, struct result *ret)
{
	unsigned n =
		bench->n_pairs < HUNDRED_PAIRS ? bench->n_pairs : HUNDRED_PAIRS;
	struct pairs pairs = PAIRS_NULL;
	static struct rpc rpc;
	struct fsdp_client *owner;
	struct daemon daemon;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	owner = client_open(daemon.socket);
	publish_many(owner, "rpc", (n + 1) * BLOCK, 64);
	publish_many(owner, "hundred", n * HUNDRED_BLOCK * HUNDRED, 64);
	rpc.client = client_open(daemon.socket);
	warm_up(&verb_get, &rpc);
	for (unsigned i = 0; i < n; i++) {
		block(&verb_get, &rpc, &pairs.floor);
		hundred_block(&rpc, &pairs.ours);
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
	fsdp_close(rpc.client);
	fsdp_close(owner);
	daemon_stop(&daemon);
}

/* --- model_attach_1000 --------------------------------------------------- */

#define N_MEMBERS   1000
#define MEMBER_SIZE 4096
#define ATTACH_GETS 64

struct attach {
	const char *socket;
	size_t first; /* index of the first name that the floor gets */
};

struct attach_times {
	double attach_ns, get_ns;
};

static void make_bundle(struct fsdp_client *client)
{
	struct fsdp_bundle_options options = {
		.access = {.gid = FSDP_GID_DEFAULT},
		.size_hint = N_MEMBERS * MEMBER_SIZE,
	};
	struct fsdp_tensor *tensors[N_MEMBERS];
	struct fsdp_spec spec = {
		.dtype = FSDP_U8, .n_dims = 1, .shape = {MEMBER_SIZE}};
	struct fsdp_bundle *bundle;
	char text[NAME_SIZE];
	const char *name = text;

	must(fsdp_bundle_begin(client, "model/", &options, &bundle),
	     "begin a bundle");
	for (size_t i = 0; i < N_MEMBERS; i++) {
		name_format(text, "model", i);
		must(fsdp_bundle_alloc(bundle, &name, &spec, 1, &tensors[i]),
		     "alloc a member");
		memset(fsdp_data_mut(tensors[i]), 1, MEMBER_SIZE);
	}
	must(fsdp_bundle_commit(bundle, NULL), "commit");
	for (size_t i = 0; i < N_MEMBERS; i++)
		fsdp_free(tensors[i]);
}

/*
 * Measures a process that has just connected. Its time includes the request,
 * the mapping of the chunk, and 1,000 handles from a heap that has to grow for
 * them. It excludes connecting, and reading the tensors.
 */
static void attach(int sock_fd, void *data)
{
	const struct attach *attach = data;
	struct attach_times times;
	struct samples gets = SAMPLES_NULL;
	static struct rpc rpc;
	struct fsdp_tensor **tensors;
	uint64_t start;
	size_t n;

	rpc.client = client_open(attach->socket);
	rpc.n_asked = attach->first;
	must(fsdp_ping(rpc.client), "ping");
	start = now_ns();
	must(fsdp_bundle_get(rpc.client, "model/", NULL, &tensors, &n),
	     "get the bundle");
	times.attach_ns = (double)(now_ns() - start);
	if (n != N_MEMBERS || *(const char *)fsdp_data(tensors[n - 1]) != 1)
		die("the bundle is not what was put in");
	get(&rpc, 0);
	for (size_t i = 0; i < ATTACH_GETS; i++)
		samples_add(&gets, time_call(&verb_get, &rpc, i));
	times.get_ns = samples_quantile(&gets, 0.5);
	message_send(sock_fd, &times, sizeof(times));
	fsdp_close(rpc.client);
}

/* One process makes one pair. The floor consists of the gets that it makes
 * afterwards. */
void model_attach_1000(const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct attach_times times;
	struct fsdp_client *owner;
	struct daemon daemon;
	struct attach data = {daemon.socket, 0};
	struct child child;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	owner = client_open(daemon.socket);
	make_bundle(owner);
	publish_many(owner, "rpc", bench->n_pairs * (ATTACH_GETS + 1), 64);
	fsdp_close(owner);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		data.first = i * (ATTACH_GETS + 1);
		child_start(&child, bench->client_cpu, attach, &data);
		message_receive(child.sock_fd, &times, sizeof(times));
		child_wait(&child);
		samples_add(&pairs.floor, times.get_ns);
		samples_add(&pairs.ours, times.attach_ns);
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
	daemon_stop(&daemon);
}
