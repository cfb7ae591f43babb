/*
 * Tests plans of random parameters: ranges do not overlap, and are within the
 * size.
 */
#include "collective/bucket.h"
#include "collective/plan.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/plan_build.h"
#include <stdlib.h>

#define N_PARAMS 12

static uint64_t random_state;

static uint64_t draw(uint64_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % n;
}

static struct plan_param draw_param(uint32_t i, uint32_t n_shards)
{
	static const char *const names[N_PARAMS] = {
		"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
	static const uint32_t dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32,
					  DTYPE_F64, DTYPE_I16,  DTYPE_U8};
	struct plan_param param = {.name = names[i]};

	param.type.dtype = dtypes[draw(6)];
	param.type.n_dims = (uint32_t)draw(4);
	param.is_frozen = draw(4) == 0;
	if (param.type.n_dims)
		param.shard_dim = (int32_t)draw(param.type.n_dims);
	for (uint32_t j = 0; j < param.type.n_dims; j++)
		param.type.shape[j] = (int64_t)draw(12);
	if (param.shard_dim)
		param.type.shape[param.shard_dim] *= n_shards;
	tensor_type_contiguous(&param.type);
	return param;
}

struct range {
	uint64_t begin, end;
};

static int compare_ranges(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	return (x->end > y->end) - (x->end < y->end);
}

/* One memory, and the ranges in it. */
struct space {
	struct range ranges[N_PARAMS * 8];
	size_t n;
};

static void add(struct space *space, uint64_t offset, uint64_t stride,
		uint64_t size, uint32_t n, bool is_aligned)
{
	cr_assert(zero(u64, offset % PLAN_ALIGN));
	for (uint32_t i = 0; i < n; i++) {
		uint64_t begin = offset + i * stride;

		if (is_aligned)
			cr_assert(zero(u64, begin % PLAN_ALIGN));
		if (size)
			space->ranges[space->n++] =
				(struct range){begin, begin + size};
	}
}

static void check_space(struct space *space, uint64_t size)
{
	uint64_t end = 0;

	qsort(space->ranges, space->n, sizeof(*space->ranges), compare_ranges);
	for (size_t i = 0; i < space->n; i++) {
		cr_assert(ge(u64, space->ranges[i].begin, end), "overlap");
		end = space->ranges[i].end;
	}
	cr_assert(le(u64, end, size));
	cr_assert(lt(u64, size - end, PLAN_ALIGN), "waste");
	cr_assert(zero(u64, size % PLAN_ALIGN));
	space->n = 0;
}

static void check_chunks(const struct plan *plan)
{
	bool is_flat = plan->policy.layout == PLAN_FLAT;
	struct space shards = {.n = 0}, grads = {.n = 0}, partial = {.n = 0};

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *e = &plan->entries[i];
		uint64_t numel = e->shard.chunk_numel;

		add(&shards, e->shard_offset, e->shard_stride,
		    numel * dtype_size(e->dtype), plan->n_shards, is_flat);
		if (!e->reduce_dtype)
			continue;
		add(&grads, e->grad_offset, e->grad_stride,
		    numel * dtype_size(e->dtype), plan->n_shards, is_flat);
		if (plan->n_replicas > 1)
			add(&partial, e->partial_offset, e->partial_stride,
			    numel * dtype_size(e->reduce_dtype), plan->n_shards,
			    is_flat);
	}
	check_space(&shards, plan->shards_size);
	check_space(&grads, plan->grads_size);
	check_space(&partial, plan->partial_size);
}

static void check_wholes(const struct plan *plan)
{
	struct space full = {.n = 0}, input = {.n = 0};

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *e = &plan->entries[i];
		uint64_t numel = e->shard.padded_numel;
		uint64_t size = numel * dtype_size(e->full_dtype);

		add(&full, e->full_offset, 0, size, 1, true);
		if (e->reduce_dtype)
			add(&input, e->input_offset, 0,
			    numel * dtype_size(e->input_dtype), 1, true);
		if (plan->is_in_place)
			cr_assert(eq(u64, e->shard_stride,
				     size / plan->n_shards));
	}
	check_space(&full, plan->full_size);
	check_space(&input, plan->input_size);
}

/* invariants 8.2.5 (every entry in one bucket) and 8.2.6 (alignment) */
static void check_buckets(const struct plan *plan)
{
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *e = &plan->entries[i];

		cr_assert(lt(u32, e->gather_bucket, plan->n_gather_buckets));
		if (!e->reduce_dtype) {
			cr_assert(eq(u32, e->reduce_bucket, BUCKET_NONE));
			continue;
		}
		cr_assert(lt(u32, e->reduce_bucket, plan->n_reduce_buckets));
	}
}

Test(plan_random, ranges_of_random_plans_are_disjoint_and_within_bounds)
{
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct plan_param params[N_PARAMS];
		struct plan_policy policy = {.n_gather_caps = 1,
					     .n_reduce_caps = 1};
		uint32_t n_shards, n = (uint32_t)(1 + seed % N_PARAMS);
		struct plan plan;

		random_state = seed * 0x9e3779b97f4a7c15;
		n_shards = (uint32_t)(1 + draw(8));
		policy.layout = draw(2) ? PLAN_FLAT : PLAN_IN_PLACE;
		policy.param_dtype = draw(2) ? DTYPE_BF16 : 0;
		policy.input_dtype = draw(3) ? 0 : DTYPE_F64;
		policy.reduce_dtype = draw(2) ? DTYPE_F32 : 0;
		policy.gather_caps_mb[0] = (double)draw(4) / 256;
		policy.reduce_caps_mb[0] = (double)draw(4) / 256;
		for (uint32_t i = 0; i < n; i++)
			params[i] = draw_param(i, n_shards);
		plan = make(params, n, &policy, n_shards,
			    (uint32_t)(1 + draw(3)));
		check_buckets(&plan);
		check_wholes(&plan);
		check_chunks(&plan);
		plan_deinit(&plan);
	}
}
