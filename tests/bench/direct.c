/*
 * Rows direct_*: what ranks do without the broker.
 *
 * An unshard in place with its wait, the address of a parameter and the
 * reshard. The floor is our quickest call of this kind: the same thread
 * acquires and releases one tensor that it knows. One sample is the mean over
 * many of both.
 */
#include "bench.h"
#include "daemon.h"
#include "fsdp.h"
#include <stdint.h>

#define N_CALLS 10000
#define PASSES  5

struct direct {
	struct fsdp_client *client;
	struct fsdp_tensor *tensor;
	struct fsdp_comm *comm;
	struct fsdp_group *group;
};

typedef void pass_fn(struct direct *direct);

static void pass_floor(struct direct *direct)
{
	for (int i = 0; i < N_CALLS; i++) {
		must(fsdp_acquire(direct->tensor), "acquire");
		must(fsdp_release(direct->tensor), "release");
	}
}

static void pass_unshard(struct direct *direct)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_work work;

	for (int i = 0; i < N_CALLS; i++) {
		must(fsdp_unshard(direct->group, &work), "unshard");
		must(fsdp_wait(&work, -1), "wait");
		must(fsdp_param(direct->group, 0, &param), "param");
		must(fsdp_reshard(direct->group, 0), "reshard");
	}
}

static void time_pass(struct direct *direct, pass_fn *pass,
		      struct samples *samples)
{
	uint64_t start = now_ns();

	pass(direct);
	samples_add(samples, (double)(now_ns() - start) / N_CALLS);
}

static void open_group(struct direct *direct)
{
	const struct fsdp_param_spec param = {
		.name = "weight",
		.spec = {FSDP_F32, 2, {64, 64}},
		.is_frozen = true,
	};
	struct fsdp_work work;

	must(fsdp_comm_join(direct->client, "direct", 1, 0, NULL,
			    &direct->comm),
	     "join");
	must(fsdp_group_register(direct->comm, "layer", &param, 1, NULL,
				 &direct->group),
	     "register");
	must(fsdp_commit(direct->comm, 1, &work), "commit");
	must(fsdp_wait(&work, -1), "wait for the commit");
}

void direct_unshard_in_place(const struct bench *bench, struct result *ret)
{
	const char *name = "floor/00000000";
	struct pairs pairs = PAIRS_NULL;
	struct direct direct;
	struct daemon daemon;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	direct.client = client_open(daemon.socket);
	publish_many(direct.client, "floor", 1, 64);
	must(fsdp_get(direct.client, &name, 1, NULL, &direct.tensor), "get");
	open_group(&direct);
	pass_floor(&direct);
	pass_unshard(&direct);
	for (unsigned i = 0; i < bench->n_pairs; i++) {
		for (int j = 0; j < PASSES; j++)
			time_pass(&direct, pass_floor, &pairs.floor);
		for (int j = 0; j < PASSES; j++)
			time_pass(&direct, pass_unshard, &pairs.ours);
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1, ret);
	pairs_deinit(&pairs);
	must(fsdp_release(direct.tensor), "release");
	fsdp_comm_leave(direct.comm);
	fsdp_close(direct.client);
	daemon_stop(&daemon);
}
