/*
 * Rows direct_*: operations that ranks do without the broker.
 *
 * Rows direct_reduce_* are reduce-scatters of that size with 2 and with 4
 * ranks, and show the worse result. The floor is the same reduction by
 * fsdp-worker, measured in turns. Rows worker_* are all-reduces and flat
 * gathers with the same floor. `fsdp-bench collectives` has more sizes and
 * dtypes, and compares with MPI.
 *
 * Row direct_unshard_in_place is an unshard in place with its wait, the address
 * of a parameter and the reshard. The floor is our quickest call of this kind:
 * the same thread acquires and releases one tensor that it knows. One sample is
 * the mean over many of both, in CPU time, as in the rows hot_*.
 */
#include "bench.h"
#include "daemon.h"
#include "fsdp.h"
#include "rank.h"
#include "side.h"
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
	uint64_t start = cpu_ns();

	pass(direct);
	samples_add(samples, (double)(cpu_ns() - start) / N_CALLS);
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
	struct repeats repeats;
	struct direct direct;
	struct daemon daemon;

	daemon_start(&daemon, bench, &(struct daemon_options){0});
	direct.client = client_open(daemon.socket);
	publish_many(direct.client, "floor", 1, 64);
	must(fsdp_get(direct.client, &name, 1, NULL, &direct.tensor), "get");
	open_group(&direct);
	pass_floor(&direct);
	pass_unshard(&direct);
	repeats = repeats_begin(bench, bench->n_pairs);
	while (pairs_next(&pairs, &repeats)) {
		for (int j = 0; j < PASSES; j++) {
			time_pass(&direct, pass_floor, &pairs.floor);
			time_pass(&direct, pass_unshard, &pairs.ours);
		}
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1, ret);
	pairs_deinit(&pairs);
	must(fsdp_release(direct.tensor), "release");
	fsdp_comm_leave(direct.comm);
	fsdp_close(direct.client);
	daemon_stop(&daemon);
}

/* --- beside fsdp-worker -------------------------------------------------- */

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)

static void open_side(struct side *side, const struct bench *bench,
		      struct rank_options *ranks, const struct variant *variant,
		      uint64_t size)
{
	static uint32_t number;
	const struct stage_order order = {
		.collective = variant->collective,
		.variant = (uint32_t)(variant - variants),
		.number = number++,
		.size = size,
	};

	party_start(&side->party, bench,
		    ranks->executor == FSDP_EXECUTOR_RANK ? "ranks" : "worker",
		    ranks->n_ranks, ANYWHERE, rank_serve, ranks);
	side_open(side, &order);
}

static void compare_executors(const struct bench *bench,
			      const struct daemon *daemon, uint32_t n_ranks,
			      const struct variant *variant, uint64_t size,
			      struct result *ret)
{
	struct rank_options ranks = {.socket = daemon->socket,
				     .n_ranks = n_ranks,
				     .executor = FSDP_EXECUTOR_RANK};
	struct rank_options worker = ranks;
	struct side ours, floor;

	worker.executor = FSDP_EXECUTOR_WORKER;
	open_side(&ours, bench, &ranks, variant, size);
	open_side(&floor, bench, &worker, variant, size);
	sides_compare(&ours, &floor, bench, ret);
}

static void run_row(const struct bench *bench, const struct variant *variant,
		    uint64_t size, struct result *ret)
{
	struct result result;
	struct daemon daemon;

	*ret = (struct result){0};
	daemon_start(&daemon, bench,
		     &(struct daemon_options){.is_unpinned = true});
	for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks += 2) {
		compare_executors(bench, &daemon, n_ranks, variant, size,
				  &result);
		if (result.ratio > ret->ratio)
			*ret = result;
	}
	daemon_stop(&daemon);
}

#define ROW(row, collective, variant, size)                                    \
	void row(const struct bench *bench, struct result *ret)                \
	{                                                                      \
		run_row(bench, variant_find(collective, variant), size, ret);  \
	}

ROW(direct_reduce_1kib, REDUCE_SCATTER, "f32", KIB)
ROW(direct_reduce_64kib, REDUCE_SCATTER, "f32", 64 * KIB)
ROW(direct_reduce_1mib, REDUCE_SCATTER, "f32", MIB)
ROW(direct_reduce_4mib, REDUCE_SCATTER, "f32", 4 * MIB)
ROW(direct_reduce_64mib, REDUCE_SCATTER, "f32", 64 * MIB)
ROW(worker_gather_4mib, ALL_GATHER, "f32 flat", 4 * MIB)
ROW(worker_gather_64mib, ALL_GATHER, "f32 flat", 64 * MIB)
ROW(worker_all_reduce_4mib, ALL_REDUCE, "f32", 4 * MIB)
ROW(worker_all_reduce_64mib, ALL_REDUCE, "f32", 64 * MIB)
