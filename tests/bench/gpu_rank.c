#include "gpu_rank.h"
#include "rank.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARAMS 4
#define WAIT_MS    60000

const struct gpu_variant gpu_variants[N_GPU_VARIANTS] = {
	{"in place", ALL_GATHER, 1, FSDP_LAYOUT_IN_PLACE, FSDP_EXECUTOR_RANK},
	{"flat", ALL_GATHER, MAX_PARAMS, FSDP_LAYOUT_FLAT, FSDP_EXECUTOR_RANK},
	{"f32", REDUCE_SCATTER, 1, FSDP_LAYOUT_IN_PLACE, FSDP_EXECUTOR_RANK},
	{"by worker", ALL_GATHER, 1, FSDP_LAYOUT_IN_PLACE,
	 FSDP_EXECUTOR_WORKER},
	{"by worker", REDUCE_SCATTER, 1, FSDP_LAYOUT_IN_PLACE,
	 FSDP_EXECUTOR_WORKER},
};

void gpu_rank_place(const struct gpu *gpu, uint32_t rank)
{
	char text[32];

	if (gpu->n_devices >= GPU_N_RANKS)
		return;
	snprintf(text, sizeof(text), "node-%u", rank);
	setenv("NCCL_HOSTID", text, 1);
	setenv("NCCL_SOCKET_IFNAME", "lo", 0);
	setenv("NCCL_IB_DISABLE", "1", 0);
}

struct rank {
	const struct gpu_mesh *mesh;
	const struct gpu_variant *variant;
	uint32_t rank;
	struct fsdp_device device;
	struct fsdp_client *client;
	struct fsdp_comm *comm;
	struct fsdp_group *group;
	char name[NAME_SIZE];
};

static void wait_for(const struct fsdp_work *work, const char *what)
{
	must(fsdp_wait(work, WAIT_MS), what);
}

void gpu_rank_iterate(void *data, const struct stage_order *order)
{
	struct rank *rank = data;
	struct fsdp_work work;

	if (order->collective == ALL_GATHER) {
		must(fsdp_unshard(rank->group, &work), "unshard");
		wait_for(&work, "wait for an unshard");
		must(fsdp_reshard(rank->group, 0), "reshard");
		return;
	}
	must(fsdp_input(rank->group, WAIT_MS), "input");
	must(fsdp_reduce(rank->group, NULL, &work), "reduce");
	wait_for(&work, "wait for a reduction");
}

static void iterate(void *data, const struct stage_order *order)
{
	const struct rank *rank = data;

	if (rank->mesh->iterate)
		rank->mesh->iterate(data, rank->rank, order);
	else
		gpu_rank_iterate(data, order);
}

/* Write the value `n` times at an address of the device. */
static void put(struct rank *rank, void *to, uint64_t n, float value)
{
	float *floats = malloc(n * sizeof(*floats));

	if (!floats)
		die("out of memory for values");
	for (uint64_t i = 0; i < n; i++)
		floats[i] = value;
	must(fsdp_group_put(rank->group, to, floats, n * sizeof(*floats)),
	     "put values");
	free(floats);
}

static void expect(struct rank *rank, const void *from, uint64_t n, float value)
{
	float *floats = malloc(n * sizeof(*floats));

	if (!floats)
		die("out of memory for values");
	must(fsdp_group_get(rank->group, floats, from, n * sizeof(*floats)),
	     "get values");
	for (uint64_t i = 0; i < n; i++)
		if (floats[i] != value)
			die("%s: element %llu is %g, not %g",
			    rank->variant->name, (unsigned long long)i,
			    (double)floats[i], (double)value);
	free(floats);
}

static void join(struct rank *rank, const struct stage_order *order)
{
	const struct gpu_variant *variant = rank->variant;
	struct fsdp_comm_options options = {.device = &rank->device,
					    .executor = variant->executor};
	struct fsdp_policy policy = {.layout = variant->layout};
	struct fsdp_param_spec params[MAX_PARAMS] = {0};
	char names[MAX_PARAMS][16];

	for (uint32_t i = 0; i < variant->n_params; i++) {
		int64_t n = (int64_t)(order->size / sizeof(float) /
				      variant->n_params);

		snprintf(names[i], sizeof(names[i]), "w%u", i);
		params[i] = (struct fsdp_param_spec){
			.name = names[i],
			.spec = {FSDP_F32, 1, {n}},
			.is_frozen = variant->collective == ALL_GATHER};
	}
	snprintf(rank->name, sizeof(rank->name), "bench/%u", order->number);
	must(fsdp_comm_join(rank->client, rank->name, GPU_N_RANKS, rank->rank,
			    &options, &rank->comm),
	     "join");
	must(fsdp_group_register(rank->comm, "layer", params, variant->n_params,
				 &policy, &rank->group),
	     "register");
}

/* Each rank's shards hold its rank + 1, and so do the parts of a gather. */
static void prepare_gather(struct rank *rank)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_work work;

	for (uint32_t i = 0; i < rank->variant->n_params; i++) {
		must(fsdp_shard(rank->group, i, &shard), "shard");
		put(rank, shard.next, shard.numel, (float)(rank->rank + 1));
	}
	must(fsdp_commit(rank->comm, 1, &work), "commit");
	wait_for(&work, "wait for a commit");
	must(fsdp_unshard(rank->group, &work), "unshard");
	wait_for(&work, "wait for an unshard");
	for (uint32_t i = 0; i < rank->variant->n_params; i++) {
		must(fsdp_param(rank->group, i, &param), "param");
		for (uint32_t j = 0; j < GPU_N_RANKS; j++)
			expect(rank,
			       (const float *)param.data +
				       param.numel / GPU_N_RANKS * j,
			       param.numel / GPU_N_RANKS, (float)(j + 1));
	}
	must(fsdp_reshard(rank->group, 0), "reshard");
}

/* Every rank passes its rank + 1. The default result is their average. */
static void prepare_reduce(struct rank *rank, const struct stage_order *order)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work;

	must(fsdp_input(rank->group, WAIT_MS), "input");
	put(rank, fsdp_input_data(rank->group, 0), order->size / sizeof(float),
	    (float)(rank->rank + 1));
	must(fsdp_reduce(rank->group, NULL, &work), "reduce");
	wait_for(&work, "wait for a reduction");
	must(fsdp_shard(rank->group, 0, &shard), "shard");
	expect(rank, shard.grad, shard.numel, (float)(GPU_N_RANKS + 1) / 2);
}

static int choose(const struct fsdp_device_entry *entry, void *data)
{
	struct rank *rank = data;

	if ((uint32_t)entry->ordinal == rank->rank % rank->mesh->gpu->n_devices)
		rank->device = entry->device;
	return 0;
}

static void prepare(void *data, const struct stage_order *order)
{
	struct rank *rank = data;

	if (!rank->client) {
		must(fsdp_devices(choose, rank), "find the devices");
		rank->client = client_open(rank->mesh->socket);
	}
	rank->variant = &gpu_variants[order->variant];
	join(rank, order);
	if (order->collective == ALL_GATHER)
		prepare_gather(rank);
	else
		prepare_reduce(rank, order);
}

static void release(void *data)
{
	const struct rank *rank = data;

	rank_leave(rank->client, rank->comm, rank->rank, rank->name);
}

void gpu_rank_serve(struct stage *stage, uint32_t rank_index, void *data)
{
	static const struct stage_acts acts = {prepare, iterate, release};
	struct rank rank = {.mesh = data, .rank = rank_index};

	gpu_rank_place(rank.mesh->gpu, rank_index);
	stage_serve(stage, rank_index, &acts, &rank);
	fsdp_close(rank.client);
}
