#include "rank.h"
#include "bench.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_PARAMS 4
#define WAIT_MS    60000

/* If another rank still has a group unsharded, a gather of that group shares
 * its memory, and moves nothing. The limiter lets a rank be two gathers ahead
 * of another one. So with three groups the last gather of a group is over
 * before its next one. */
#define N_LAYERS 3

/* clang-format off */
const struct variant variants[N_VARIANTS] = {
	{"f32 in place", ALL_GATHER, FSDP_F32, FSDP_F32, 0,
	 1, FSDP_LAYOUT_IN_PLACE, true, true},
	{"f32 flat", ALL_GATHER, FSDP_F32, FSDP_F32, 0,
	 MAX_PARAMS, FSDP_LAYOUT_FLAT, true, true},
	{"f32 to bf16", ALL_GATHER, FSDP_F32, FSDP_BF16, 0,
	 1, FSDP_LAYOUT_IN_PLACE, false, true},
	{"bf16 in place", ALL_GATHER, FSDP_BF16, FSDP_BF16, 0,
	 1, FSDP_LAYOUT_IN_PLACE, false, false},
	{"bf16 flat", ALL_GATHER, FSDP_BF16, FSDP_BF16, 0,
	 MAX_PARAMS, FSDP_LAYOUT_FLAT, false, false},
	{"f32", REDUCE_SCATTER, FSDP_F32, FSDP_F32, 0,
	 1, FSDP_LAYOUT_IN_PLACE, true, true},
	{"bf16 to f32", REDUCE_SCATTER, FSDP_F32, FSDP_BF16, FSDP_F32,
	 1, FSDP_LAYOUT_IN_PLACE, false, true},
	{"bf16", REDUCE_SCATTER, FSDP_BF16, FSDP_BF16, 0,
	 1, FSDP_LAYOUT_IN_PLACE, false, false},
	{"f32", ALL_REDUCE, FSDP_F32, FSDP_F32, 0,
	 1, FSDP_LAYOUT_IN_PLACE, true, true},
	{"bf16 to f32", ALL_REDUCE, FSDP_F32, FSDP_BF16, FSDP_F32,
	 1, FSDP_LAYOUT_IN_PLACE, false, false},
	{"bf16", ALL_REDUCE, FSDP_BF16, FSDP_BF16, 0,
	 1, FSDP_LAYOUT_IN_PLACE, false, false},
};
/* clang-format on */

const struct variant *variant_find(enum collective collective, const char *name)
{
	for (size_t i = 0; i < N_VARIANTS; i++)
		if (variants[i].collective == collective &&
		    strcmp(variants[i].name, name) == 0)
			return &variants[i];
	return NULL;
}

/* Returns the bytes of the whole parameters as they are stored. */
static uint64_t stored_size(const struct variant *variant, uint64_t size)
{
	return size / fsdp_dtype_size(variant->whole) *
	       fsdp_dtype_size(variant->stored);
}

/* The shards of a single parameter without a cast form the whole parameter
 * where they are. */
static bool is_in_place(const struct variant *variant)
{
	return variant->n_params == 1 && variant->stored == variant->whole;
}

uint64_t variant_moved(const struct variant *variant, uint32_t n_ranks,
		       uint64_t size)
{
	uint64_t stored = stored_size(variant, size);

	switch (variant->collective) {
	case ALL_GATHER:
		return is_in_place(variant) ? 0 : stored + size;
	case REDUCE_SCATTER:
		return n_ranks * size + stored;
	default:
		return n_ranks * (size + stored);
	}
}

uint64_t variant_memory(const struct variant *variant, uint32_t n_ranks,
			uint64_t size)
{
	uint64_t stored = stored_size(variant, size);

	switch (variant->collective) {
	case ALL_GATHER: /* current, next and two buffers */
		return N_LAYERS * 2 * stored + 2 * size;
	case REDUCE_SCATTER: /* current, next and gradients */
		return 3 * stored + n_ranks * size;
	default:
		return n_ranks * (3 * stored + size);
	}
}

/* --- a rank -------------------------------------------------------------- */

struct rank {
	const struct rank_options *options;
	uint32_t rank;
	struct fsdp_client *client;
	struct fsdp_comm *comm;
	struct fsdp_group *groups[N_LAYERS];
	uint32_t next; /* group to gather next */
	char name[NAME_SIZE];
};

static uint32_t count_groups(const struct variant *variant)
{
	return variant->collective == ALL_GATHER ? N_LAYERS : 1;
}

/* Returns a small integer, which both dtypes hold exactly. */
static void fill(void *to, enum fsdp_dtype dtype, uint64_t n, float value)
{
	float *floats = to;
	uint16_t *halves = to;
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	if (dtype == FSDP_F32)
		for (uint64_t i = 0; i < n; i++)
			floats[i] = value;
	else
		for (uint64_t i = 0; i < n; i++)
			halves[i] = (uint16_t)(bits >> 16);
}

static float load(const void *from, enum fsdp_dtype dtype, uint64_t i)
{
	const uint16_t *halves = from;
	uint32_t bits;
	float value;

	if (dtype == FSDP_F32)
		return ((const float *)from)[i];
	bits = (uint32_t)halves[i] << 16;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static void wait_for(const struct fsdp_work *work, const char *what)
{
	must(fsdp_wait(work, WAIT_MS), what);
}

static void iterate(void *data, const struct stage_order *order)
{
	struct rank *rank = data;
	struct fsdp_group *group = rank->groups[0];
	struct fsdp_work work;

	if (order->collective == ALL_GATHER) {
		group = rank->groups[rank->next++ % N_LAYERS];
		must(fsdp_unshard(group, &work), "unshard");
		wait_for(&work, "wait for an unshard");
		must(fsdp_reshard(group, 0), "reshard");
		return;
	}
	must(fsdp_input(group, WAIT_MS), "input");
	must(fsdp_reduce(group, NULL, &work), "reduce");
	wait_for(&work, "wait for a reduction");
}

static void join(struct rank *rank, const struct stage_order *order,
		 const struct variant *variant)
{
	struct fsdp_comm_options options = {
		.n_shards = variant->collective == ALL_REDUCE ? 1 : 0,
		.executor = rank->options->executor,
	};
	struct fsdp_policy policy = {
		.param_dtype = variant->whole,
		.reduce_dtype = variant->reduce,
		.layout = variant->layout,
	};
	struct fsdp_param_spec params[MAX_PARAMS] = {0};
	char names[MAX_PARAMS][16];
	int64_t n = (int64_t)(order->size / fsdp_dtype_size(variant->whole) /
			      variant->n_params);

	for (uint32_t i = 0; i < variant->n_params; i++) {
		snprintf(names[i], sizeof(names[i]), "w%u", i);
		params[i] = (struct fsdp_param_spec){
			.name = names[i],
			.spec = {variant->stored, 1, {n}},
			.is_frozen = variant->collective == ALL_GATHER};
	}
	snprintf(rank->name, sizeof(rank->name), "bench/%u", order->number);
	must(fsdp_comm_join(rank->client, rank->name, rank->options->n_ranks,
			    rank->rank, &options, &rank->comm),
	     "join");
	for (uint32_t i = 0; i < count_groups(variant); i++) {
		char name[16];

		snprintf(name, sizeof(name), "layer%u", i);
		must(fsdp_group_register(rank->comm, name, params,
					 variant->n_params, &policy,
					 &rank->groups[i]),
		     "register");
	}
}

/* Each rank's shards hold its rank + 1. */
static void fill_shards(const struct rank *rank, struct fsdp_group *group,
			const struct variant *variant)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};

	for (uint32_t i = 0; i < variant->n_params; i++) {
		must(fsdp_shard(group, i, &shard), "shard");
		fill(shard.next, shard.dtype, shard.numel,
		     (float)(rank->rank + 1));
	}
}

static void commit(struct rank *rank, const struct variant *variant)
{
	struct fsdp_work work;

	for (uint32_t i = 0; i < N_LAYERS; i++)
		fill_shards(rank, rank->groups[i], variant);
	must(fsdp_commit(rank->comm, 1, &work), "commit");
	wait_for(&work, "wait for a commit");
}

static void check_gather(const struct rank *rank, struct fsdp_group *group,
			 const struct variant *variant)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_work work;
	uint64_t chunk;

	must(fsdp_unshard(group, &work), "unshard");
	wait_for(&work, "wait for an unshard");
	for (uint32_t i = 0; i < variant->n_params; i++) {
		must(fsdp_param(group, i, &param), "param");
		chunk = param.numel / rank->options->n_ranks;
		for (uint64_t j = 0; j < param.numel; j++)
			if (load(param.data, param.dtype, j) !=
			    (float)(j / chunk + 1))
				die("an all-gather's result is wrong");
	}
	must(fsdp_reshard(group, 0), "reshard");
}

/* Every rank passes its rank + 1. The default result is their average. */
static void check_reduce(struct rank *rank, const struct stage_order *order,
			 const struct variant *variant)
{
	float expected = (float)(rank->options->n_ranks + 1) / 2;
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	struct fsdp_work work;

	must(fsdp_input(rank->groups[0], WAIT_MS), "input");
	fill(fsdp_input_data(rank->groups[0], 0), variant->whole,
	     order->size / fsdp_dtype_size(variant->whole),
	     (float)(rank->rank + 1));
	must(fsdp_reduce(rank->groups[0], NULL, &work), "reduce");
	wait_for(&work, "wait for a reduction");
	must(fsdp_shard(rank->groups[0], 0, &shard), "shard");
	for (uint64_t i = 0; i < shard.numel; i++)
		if (load(shard.grad, shard.dtype, i) != expected)
			die("a reduction's result is wrong");
}

static void prepare(void *data, const struct stage_order *order)
{
	const struct variant *variant = &variants[order->variant];
	struct rank *rank = data;

	if (!rank->client)
		rank->client = client_open(rank->options->socket);
	join(rank, order, variant);
	if (order->collective == ALL_GATHER) {
		commit(rank, variant);
		for (uint32_t i = 0; i < N_LAYERS; i++)
			check_gather(rank, rank->groups[i], variant);
	} else {
		check_reduce(rank, order, variant);
	}
}

void rank_leave(struct fsdp_client *client, struct fsdp_comm *comm,
		uint32_t rank, const char *name)
{
	int r;

	fsdp_comm_leave(comm);
	if (rank != 0)
		return;
	while ((r = fsdp_comm_remove(client, name)) == -EBUSY)
		sleep_us(500); /* other ranks still use it */
	must(r, "remove a communicator");
}

static void release(void *data)
{
	const struct rank *rank = data;

	rank_leave(rank->client, rank->comm, rank->rank, rank->name);
}

void rank_serve(struct stage *stage, uint32_t rank_index, void *data)
{
	static const struct stage_acts acts = {prepare, iterate, release};
	struct rank rank = {.options = data, .rank = rank_index};

	stage_serve(stage, rank_index, &acts, &rank);
	fsdp_close(rank.client);
}
