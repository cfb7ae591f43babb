/* Plans: where the reference's examples lie, that nothing overlaps, and that
 * ranks that differ are told where. */
#include "collective/bucket.h"
#include "collective/plan.h"
#include "proto/error.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct plan_param make_param(const char *name, uint32_t dtype,
				    uint32_t n_dims, const int64_t *shape)
{
	struct plan_param param = {
		.name = name,
		.type = {.dtype = dtype, .n_dims = n_dims},
	};

	memcpy(param.type.shape, shape, n_dims * sizeof(*shape));
	tensor_type_contiguous(&param.type);
	return param;
}

#define PARAM(name, dtype, n_dims, ...)                                        \
	make_param(name, dtype, n_dims, (const int64_t[]){__VA_ARGS__})

static struct plan make(const struct plan_param *params, uint32_t n,
			const struct plan_policy *policy, uint32_t n_shards,
			uint32_t n_replicas)
{
	struct error err = ERROR_NULL;
	struct plan plan;

	cr_assert(zero(int, plan_make(params, n, policy, n_shards, n_replicas,
				      &plan, &err)),
		  "%s", err.msg);
	return plan;
}

static const struct plan_policy in_place = {.layout = PLAN_IN_PLACE};
static const struct plan_policy flat = {.layout = PLAN_FLAT};

/* ----------------------------------------------------------- wire layouts */

/*
 * What goes over a wire for f32 parameters that hold `values` one after
 * another: the shards as a plan lays them out, less the alignment between
 * chunks. Gives the number of elements.
 */
static size_t lay_out(const struct plan *plan, const float *values, float *wire)
{
	bool is_chunk[256] = {false};
	float shards[256] = {0};
	size_t n = 0;

	cr_assert(le(u64, plan->shards_size, sizeof(shards)));
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &plan->entries[i];
		const struct shard *shard = &entry->shard;

		for (uint64_t j = 0; j < shard->padded_numel; j++) {
			uint64_t rank = j / shard->chunk_numel;
			uint64_t at = entry->shard_offset +
				      rank * entry->shard_stride;

			at = at / 4 + j % shard->chunk_numel;
			is_chunk[at] = true;
			if (j < shard->numel)
				shards[at] = *values++;
		}
	}
	for (size_t i = 0; i < 256; i++) {
		if (is_chunk[i])
			wire[n++] = shards[i];
	}
	return n;
}

static void check_wire(const struct plan *plan, const float *values,
		       const float *wanted, size_t n)
{
	float wire[256];

	cr_assert(eq(sz, lay_out(plan, values, wire), n));
	for (size_t i = 0; i < n; i++)
		cr_expect(eq(flt, wire[i], wanted[i]), "element %zu", i);
}

/* cases 47 and 49 */
Test(plan, a_flat_shard_is_the_row_of_its_rank)
{
	const struct plan_param params[] = {PARAM("A", DTYPE_F32, 2, 3, 2),
					    PARAM("B", DTYPE_F32, 1, 4)};
	const float values[] = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13};
	const float rows[] = {0, 1, 2, 3, 10, 11, 4, 5, 0, 0, 12, 13};
	struct plan plan = make(params, 2, &flat, 2, 1);
	const struct plan_entry *a = &plan.entries[0], *b = &plan.entries[1];
	struct tensor_type view;

	check_wire(&plan, values, rows, 12);
	/* rank 1 sees A as (1, 2) and B as (2) at these places of its row */
	cr_assert(eq(u64, a->shard_stride, 2 * PLAN_ALIGN));
	cr_assert(eq(u64, b->shard_stride, 2 * PLAN_ALIGN));
	cr_assert(eq(u64, a->shard_offset, 0));
	cr_assert(eq(u64, b->shard_offset, PLAN_ALIGN));
	shard_type_of(&a->shard, &params[0].type, 1, &view);
	cr_assert(eq(i64, view.shape[0], 1));
	cr_assert(eq(i64, view.shape[1], 2));
	shard_type_of(&b->shard, &params[1].type, 1, &view);
	cr_assert(eq(i64, view.shape[0], 2));
	/* whole, A is the first 6 of 8 elements */
	cr_assert(eq(u64, a->shard.padded_numel, 8));
	cr_assert(eq(u64, a->full_offset, 0));
	cr_assert(eq(u64, b->full_offset, PLAN_ALIGN));
	/* gradients go the same way back */
	cr_assert(eq(u64, b->grad_offset, b->shard_offset));
	cr_assert(eq(u64, b->grad_stride, b->shard_stride));
	cr_assert(eq(u64, plan.gather_buckets[0].size, 12 * 4));
	plan_deinit(&plan);
}

/* case 51: the reference gathers 28 bytes as uint8; each dtype has its own
 * bucket here, and together they are as large */
Test(plan, mixed_dtypes_are_gathered_side_by_side)
{
	const struct plan_param params[] = {PARAM("h", DTYPE_BF16, 1, 6),
					    PARAM("f", DTYPE_F32, 1, 4)};
	struct plan plan = make(params, 2, &flat, 2, 1);

	cr_assert(eq(u32, plan.n_gather_buckets, 2));
	cr_expect(eq(u64, plan.gather_buckets[0].size, 2 * 6));
	cr_expect(eq(u64, plan.gather_buckets[1].size, 2 * 8));
	cr_expect(eq(u32, plan.entries[0].full_dtype, DTYPE_BF16));
	cr_expect(eq(u32, plan.entries[1].full_dtype, DTYPE_F32));
	plan_deinit(&plan);
}

/* case 59: the reference refuses them, or promotes both to f32 */
Test(plan, gradients_of_two_dtypes_are_reduced_each_in_its_own)
{
	const struct plan_param params[] = {PARAM("h", DTYPE_BF16, 1, 6),
					    PARAM("f", DTYPE_F32, 1, 4)};
	struct plan_policy wide = {.reduce_dtype = DTYPE_F32};
	struct plan_policy narrow = {.reduce_dtype = DTYPE_BF16};
	struct plan_policy as_is = {0};
	struct plan plan = make(params, 2, &as_is, 2, 1);

	cr_expect(eq(u32, plan.entries[0].reduce_dtype, DTYPE_BF16));
	cr_expect(eq(u32, plan.entries[1].reduce_dtype, DTYPE_F32));
	cr_expect(eq(u32, plan.n_reduce_buckets, 2));
	plan_deinit(&plan);
	plan = make(params, 2, &wide, 2, 1); /* widened in the copy-in */
	cr_expect(eq(u32, plan.entries[0].reduce_dtype, DTYPE_F32));
	cr_expect(eq(u32, plan.n_reduce_buckets, 1));
	plan_deinit(&plan);
	plan = make(params, 2, &narrow, 2, 1);
	cr_expect(eq(u32, plan.entries[1].reduce_dtype, DTYPE_BF16));
	plan_deinit(&plan);
}

/* case 19 */
Test(plan, a_flat_bucket_is_rank_by_rank_in_it_entry_by_entry)
{
	const struct plan_param params[] = {PARAM("A", DTYPE_F32, 1, 4),
					    PARAM("B", DTYPE_F32, 2, 2, 2)};
	const float values[] = {1, 2, 3, 4, 5, 6, 7, 8};
	const float wire[] = {1, 2, 5, 6, 3, 4, 7, 8};
	struct plan plan = make(params, 2, &flat, 2, 1);

	check_wire(&plan, values, wire, 8);
	plan_deinit(&plan);
}

Test(plan, in_place_every_parameter_is_whole_as_it_lies)
{
	const struct plan_param params[] = {PARAM("A", DTYPE_F32, 2, 3, 2),
					    PARAM("B", DTYPE_F32, 1, 4)};
	const float values[] = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13};
	const float wire[] = {0, 1, 2, 3, 4, 5, 0, 0, 10, 11, 12, 13};
	struct plan plan = make(params, 2, &in_place, 2, 1);

	check_wire(&plan, values, wire, 12);
	cr_assert(plan.is_in_place);
	cr_assert(eq(u64, plan.shards_size, 2 * PLAN_ALIGN));
	plan_deinit(&plan);
}

/* case 46's parameters, on as many ranks as a mesh has */
Test(plan, a_rank_of_a_real_model_has_its_share)
{
	const struct plan_param params[] = {
		PARAM("0", DTYPE_F32, 2, 17, 257),
		PARAM("1", DTYPE_F32, 1, 17),
		PARAM("2", DTYPE_F32, 2, 64, 312),
		PARAM("3", DTYPE_F32, 1, 64),
		PARAM("4", DTYPE_F32, 2, 64, 64),
		PARAM("5", DTYPE_F32, 2, 512, 64),
		PARAM("6", DTYPE_F32, 1, 256),
		PARAM("7", DTYPE_F32, 2, 64, 297),
	};
	const uint64_t numel = 257 + 1 + 312 + 1 + 64 + 512 + 4 + 297;
	struct plan plan = make(params, 8, &flat, 64, 1);

	cr_assert(eq(u32, plan.n_gather_buckets, 1));
	cr_assert(eq(u32, plan.gather_buckets[0].n_entries, 8));
	cr_assert(eq(u64, plan.gather_buckets[0].size, 64 * numel * 4));
	cr_assert(eq(u64, plan.reduce_buckets[0].size, 64 * numel * 4));
	/* each chunk is rounded up to PLAN_ALIGN, and nothing else is added */
	cr_assert(eq(u64, plan.shards_size,
		     64 * (1088 + 64 + 1280 + 64 + 256 + 2048 + 64 + 1216)));
	cr_assert(eq(u64, plan.shards_size, 64 * plan.entries[0].shard_stride));
	plan_deinit(&plan);
}

/* ----------------------------------------------------------- rules of a plan
 */

Test(plan, buckets_follow_dtypes_and_caps)
{
	struct plan_param params[] = {
		PARAM("a", DTYPE_F32, 1, 1 << 17), PARAM("b", DTYPE_F32, 1, 8),
		PARAM("c", DTYPE_BF16, 1, 8),      PARAM("d", DTYPE_BF16, 1, 8),
		PARAM("e", DTYPE_F32, 1, 8),
	};
	struct plan_policy policy = {
		.layout = PLAN_FLAT,
		.n_gather_caps = 1,
		.gather_caps_mb = {0.5}, /* a alone */
		.reduce_dtype = DTYPE_F32,
	};
	const uint32_t gathers[] = {0, 1, 2, 2, 3};
	const uint32_t reductions[] = {0, 0, 0, BUCKET_NONE, 0};
	struct plan plan;

	params[3].is_frozen = true;
	plan = make(params, 5, &policy, 2, 1);
	for (uint32_t i = 0; i < 5; i++) {
		cr_expect(eq(u32, plan.entries[i].gather_bucket, gathers[i]));
		cr_expect(
			eq(u32, plan.entries[i].reduce_bucket, reductions[i]));
	}
	cr_assert(eq(u32, plan.n_gather_buckets, 4));
	cr_assert(eq(u32, plan.n_reduce_buckets, 1));
	cr_assert(eq(u32, plan.reduce_buckets[0].n_entries, 4));
	cr_assert(eq(u64, plan.gather_buckets[2].size, 2 * 8 * 2));
	cr_assert(
		eq(u64, plan.reduce_buckets[0].size, 4 * ((1 << 17) + 3 * 8)));
	plan_deinit(&plan);
}

Test(plan, a_frozen_parameter_has_no_gradient_anywhere)
{
	struct plan_param params[] = {PARAM("a", DTYPE_F32, 1, 100),
				      PARAM("flags", DTYPE_BOOL, 1, 100)};
	struct plan plan;

	params[1].is_frozen = true;
	plan = make(params, 2, &in_place, 2, 2);
	cr_assert(zero(u32, plan.entries[1].reduce_dtype));
	cr_assert(zero(u64, plan.entries[1].input_offset));
	cr_assert(zero(u64, plan.entries[1].grad_stride));
	cr_assert(zero(u64, plan.entries[1].partial_stride));
	cr_assert(eq(u64, plan.input_size, 448));
	cr_assert(eq(u64, plan.grads_size, 448));
	cr_assert(eq(u64, plan.partial_size, 448));
	cr_assert(eq(u64, plan.full_size, 448 + 128));
	plan_deinit(&plan);
}

Test(plan, dtypes_of_a_policy_are_for_floating_point_only)
{
	const struct plan_param params[] = {PARAM("w", DTYPE_F32, 1, 64),
					    PARAM("n", DTYPE_I64, 1, 64)};
	const struct plan_policy policy = {.param_dtype = DTYPE_BF16,
					   .reduce_dtype = DTYPE_F32};
	struct plan plan = make(params, 2, &policy, 2, 2);

	cr_assert(eq(u32, plan.entries[0].dtype, DTYPE_F32));
	cr_assert(eq(u32, plan.entries[0].full_dtype, DTYPE_BF16));
	cr_assert(eq(u32, plan.entries[0].reduce_dtype, DTYPE_F32));
	cr_assert(eq(u32, plan.entries[1].full_dtype, DTYPE_I64));
	cr_assert(eq(u32, plan.entries[1].reduce_dtype, DTYPE_I64));
	cr_assert(eq(u64, plan.full_size, 64 * 2 + 64 * 8));
	cr_assert(eq(u64, plan.partial_size, 64 * 4 + 64 * 8));
	cr_assert(not(plan.is_in_place));
	plan_deinit(&plan);
}

/* case 59 */
Test(plan, inputs_have_a_dtype_of_their_own)
{
	struct plan_param params[] = {PARAM("w", DTYPE_F32, 1, 64),
				      PARAM("n", DTYPE_I64, 1, 64),
				      PARAM("frozen", DTYPE_F32, 1, 64)};
	struct plan_policy policy = {.param_dtype = DTYPE_BF16,
				     .input_dtype = DTYPE_F32};
	struct plan plan;

	params[2].is_frozen = true;
	plan = make(params, 3, &policy, 2, 2);
	cr_assert(eq(u32, plan.entries[0].full_dtype, DTYPE_BF16));
	cr_assert(eq(u32, plan.entries[0].input_dtype, DTYPE_F32));
	cr_assert(eq(u32, plan.entries[0].reduce_dtype, DTYPE_F32));
	cr_assert(eq(u32, plan.entries[1].input_dtype, DTYPE_I64));
	cr_assert(zero(u32, plan.entries[2].input_dtype));
	cr_assert(eq(u64, plan.full_size, 2 * 64 * 2 + 64 * 8));
	cr_assert(eq(u64, plan.input_size, 64 * 4 + 64 * 8));
	plan_deinit(&plan);
	policy.reduce_dtype = DTYPE_F16;
	plan = make(params, 3, &policy, 2, 2);
	cr_assert(eq(u32, plan.entries[0].input_dtype, DTYPE_F32));
	cr_assert(eq(u32, plan.entries[0].reduce_dtype, DTYPE_F16));
	plan_deinit(&plan);
}

static bool is_in_place(struct plan_param param,
			const struct plan_policy *policy, uint32_t n_shards)
{
	struct plan plan = make(&param, 1, policy, n_shards, 1);
	bool result = plan.is_in_place;

	plan_deinit(&plan);
	return result;
}

Test(plan, in_place_needs_no_cast_and_no_interleaving)
{
	const struct plan_policy as_f32 = {.param_dtype = DTYPE_F32};
	struct plan_param param = PARAM("w", DTYPE_F32, 2, 4, 8);
	struct plan_param row = PARAM("w", DTYPE_F32, 2, 1, 8);
	struct plan_param half = PARAM("w", DTYPE_BF16, 2, 4, 8);

	cr_expect(is_in_place(param, &in_place, 4));
	cr_expect(is_in_place(param, &as_f32, 4)); /* what it is already */
	cr_expect(not(is_in_place(half, &as_f32, 4)));
	cr_expect(not(is_in_place(param, &flat, 4)));
	param.shard_dim = 1;
	row.shard_dim = 1;
	cr_expect(not(is_in_place(param, &in_place, 4)));
	cr_expect(is_in_place(param, &in_place, 1));
	cr_expect(is_in_place(row, &in_place, 4));
}

Test(plan, a_smaller_mesh_must_divide_the_shards)
{
	const struct plan_param param = PARAM("w", DTYPE_F32, 1, 7);
	struct plan plan = make(&param, 1, &flat, 6, 1);
	struct error err = ERROR_NULL;

	for (uint32_t i = 0; i < 8; i++)
		cr_expect(eq(int, plan_check_mesh(&plan, i, &err),
			     i && 6 % i == 0 ? 0 : -EINVAL),
			  "mesh of %u", i);
	cr_assert(strstr(err.msg, "7 ranks") != NULL);
	plan_deinit(&plan);
	plan_deinit(&plan);
}

/* --------------------------------------------------------------- hashes */

struct registration {
	struct plan_param params[3];
	uint32_t n;
	struct plan_policy policy;
};

static struct registration make_registration(void)
{
	return (struct registration){
		.params = {PARAM("a", DTYPE_F32, 2, 8, 4),
			   PARAM("b", DTYPE_F32, 2, 8, 4),
			   PARAM("c", DTYPE_F32, 1, 8)},
		.n = 2,
		.policy = {.n_gather_caps = 1, .gather_caps_mb = {1}},
	};
}

static void rename_b(struct registration *r)
{
	r->params[1].name = "x";
}
static void retype_b(struct registration *r)
{
	r->params[1].type.dtype = DTYPE_I32;
}
static void reshape_b(struct registration *r)
{
	r->params[1].type = PARAM("", DTYPE_F32, 2, 4, 8).type;
}
static void flatten_b(struct registration *r)
{
	r->params[1].type = PARAM("", DTYPE_F32, 1, 32).type;
}
static void turn_b(struct registration *r)
{
	r->params[1].shard_dim = -1;
}
static void freeze_b(struct registration *r)
{
	r->params[1].is_frozen = true;
}
static void add_c(struct registration *r)
{
	r->n = 3;
}
static void drop_b(struct registration *r)
{
	r->n = 1;
}
static void cast_params(struct registration *r)
{
	r->policy.param_dtype = DTYPE_BF16;
}
static void cast_inputs(struct registration *r)
{
	r->policy.input_dtype = DTYPE_F32; /* as they are */
}
static void cast_grads(struct registration *r)
{
	r->policy.reduce_dtype = DTYPE_BF16;
}
static void flatten(struct registration *r)
{
	r->policy.layout = PLAN_FLAT;
}
static void add_cap(struct registration *r)
{
	r->policy.gather_caps_mb[r->policy.n_gather_caps++] = 1;
}
static void change_cap(struct registration *r)
{
	r->policy.gather_caps_mb[0] = 2;
}
static void cap_reductions(struct registration *r)
{
	r->policy.n_reduce_caps = 1;
	r->policy.reduce_caps_mb[0] = 4000; /* changes no bucket */
}
static void stay(struct registration *r)
{
	r->policy.stays_unsharded = true;
}

/* What rank 1 does differently, and what it is told. */
static const struct {
	void (*change)(struct registration *);
	const char *sentence;
} changes[] = {
	{rename_b, "parameter 1 is \"x\" here, but \"b\" on rank 0"},
	{retype_b, "\"b\" has the dtype i32 here, but f32 on rank 0"},
	{reshape_b, "\"b\" has the shape [4, 8] here, but [8, 4] on rank 0"},
	{flatten_b, "\"b\" has the shape [32] here, but [8, 4] on rank 0"},
	{turn_b, "\"b\" has the shard dimension 1 here, but 0 on rank 0"},
	{freeze_b, "\"b\" is frozen here, but trainable on rank 0"},
	{add_c, "parameter 2, \"c\", is here, but not on rank 0"},
	{drop_b, "parameter 1, \"b\", is on rank 0, but not here"},
	{cast_params, "param dtype is bf16 here, but not set on rank 0"},
	{cast_inputs, "input dtype is f32 here, but not set on rank 0"},
	{cast_grads, "reduce dtype is bf16 here, but not set on rank 0"},
	{flatten, "layout is flat here, but in place on rank 0"},
	{add_cap, "2 caps of gather buckets here, but 1 on rank 0"},
	{change_cap, "cap of gather bucket 0 is 2 MiB here, but 1 MiB on"},
	{cap_reductions, "1 caps of reduce buckets here, but 0 on rank 0"},
	{stay, "group is to stay unsharded here, but to be resharded on"},
};

static uint64_t hash_of(const struct registration *r, uint32_t n_shards,
			uint32_t n_replicas)
{
	struct plan plan =
		make(r->params, r->n, &r->policy, n_shards, n_replicas);
	uint64_t hash = plan.hash;

	plan_deinit(&plan);
	return hash;
}

static int compare(const struct registration *mine,
		   const struct registration *theirs, struct error *err)
{
	return plan_compare(mine->params, mine->n, &mine->policy,
			    theirs->params, theirs->n, &theirs->policy,
			    "rank 0", err);
}

Test(plan, whatever_differs_is_hashed_and_told)
{
	const struct registration theirs = make_registration();

	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
		struct registration mine = make_registration();
		struct error err = ERROR_NULL;

		changes[i].change(&mine);
		cr_expect(ne(u64, hash_of(&mine, 2, 2), hash_of(&theirs, 2, 2)),
			  "change %zu", i);
		cr_expect(eq(int, compare(&mine, &theirs, &err), -EINVAL));
		cr_expect(strstr(err.msg, changes[i].sentence) != NULL,
			  "\"%s\" has no \"%s\"", err.msg, changes[i].sentence);
	}
}

Test(plan, the_same_said_otherwise_hashes_the_same)
{
	struct registration mine = make_registration();
	struct registration theirs = make_registration();
	char name[] = "a";

	mine.params[0].name = name; /* another pointer */
	mine.params[0].shard_dim = -2;
	mine.params[1].shard_dim = 1;
	theirs.params[1].shard_dim = -1;
	mine.policy.gather_caps_mb[0] = -0.0;
	theirs.policy.gather_caps_mb[0] = 0;
	mine.policy.gather_caps_mb[5] = 7; /* not counted */
	cr_assert(eq(u64, hash_of(&mine, 2, 2), hash_of(&theirs, 2, 2)));
	cr_assert(zero(int, compare(&mine, &theirs, NULL)));
}

Test(plan, another_mesh_is_another_hash)
{
	const struct registration mine = make_registration();

	cr_assert(ne(u64, hash_of(&mine, 2, 2), hash_of(&mine, 4, 1)));
	cr_assert(ne(u64, hash_of(&mine, 2, 2), hash_of(&mine, 2, 1)));
	cr_assert(ne(u64, hash_of(&mine, 2, 2), 0));
}

/* ------------------------------------------------------- random properties */

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

/* One space of memory, and what was placed in it. */
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
	uint32_t n_gathers = 0, n_reductions = 0, n_trainable = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *e = &plan->entries[i];

		cr_assert(lt(u32, e->gather_bucket, plan->n_gather_buckets));
		if (!e->reduce_dtype) {
			cr_assert(eq(u32, e->reduce_bucket, BUCKET_NONE));
			continue;
		}
		n_trainable++;
		cr_assert(lt(u32, e->reduce_bucket, plan->n_reduce_buckets));
	}
	for (uint32_t i = 0; i < plan->n_gather_buckets; i++)
		n_gathers += plan->gather_buckets[i].n_entries;
	for (uint32_t i = 0; i < plan->n_reduce_buckets; i++)
		n_reductions += plan->reduce_buckets[i].n_entries;
	cr_assert(eq(u32, n_gathers, plan->n_entries));
	cr_assert(eq(u32, n_reductions, n_trainable));
}

Test(plan, nothing_overlaps_and_everything_is_within_its_size)
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

/* --------------------------------------------------------------- refusals */

static void check_refused(const struct registration *r, uint32_t n_shards,
			  uint32_t n_replicas, int code, const char *word)
{
	struct plan plan = {.hash = 77};
	struct error err = ERROR_NULL;

	cr_expect(eq(int,
		     plan_make(r->params, r->n, &r->policy, n_shards,
			       n_replicas, &plan, &err),
		     code));
	cr_expect(strstr(err.msg, word) != NULL, "\"%s\" has no \"%s\"",
		  err.msg, word);
	cr_expect(eq(u64, plan.hash, 77), "written on failure");
}

Test(plan, a_mesh_has_1_to_64_ranks)
{
	const struct registration r = make_registration();

	check_refused(&r, 0, 1, -EINVAL, "no ranks");
	check_refused(&r, 1, 0, -EINVAL, "no ranks");
	check_refused(&r, 13, 5, -EINVAL, "more than 64");
	check_refused(&r, UINT32_MAX, UINT32_MAX, -EINVAL, "more than 64");
}

Test(plan, parameters_have_names_of_their_own)
{
	struct registration r = make_registration();

	r.params[1].name = "a";
	check_refused(&r, 2, 1, -EINVAL, "two parameters are named \"a\"");
	r.params[1].name = "";
	check_refused(&r, 2, 1, -EINVAL, "parameter 1 has no name");
	r.params[1].name = NULL;
	check_refused(&r, 2, 1, -EINVAL, "parameter 1 has no name");
	r.n = 0;
	check_refused(&r, 2, 1, -EINVAL, "0 parameters");
	r.n = PLAN_MAX_PARAMS + 1;
	check_refused(&r, 2, 1, -EINVAL, "1025 parameters");
}

Test(plan, parameters_that_cannot_be_cut_are_named)
{
	struct registration r = make_registration();

	r.params[1].shard_dim = 1;
	check_refused(&r, 3, 1, -EINVAL, "\"b\": dimension 1");
	r.params[1].shard_dim = 7;
	check_refused(&r, 2, 1, -EINVAL, "\"b\": there is no dimension 7");
	r.params[1].shard_dim = 0;
	r.params[1].type.strides[0] = 1;
	check_refused(&r, 2, 1, -EINVAL, "\"b\": it is not contiguous");
}

Test(plan, casts_between_kinds_are_refused)
{
	struct registration r = make_registration();

	r.policy.param_dtype = DTYPE_I32;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"a\": f32 cannot be cast to the param");
	r.policy.param_dtype = DTYPE_F8_E4M3;
	check_refused(&r, 2, 1, -EINVAL, "param dtype f8_e4m3");
	r.policy.param_dtype = 99;
	check_refused(&r, 2, 1, -EINVAL, "param dtype 99");
	r.policy.param_dtype = 0;
	r.policy.reduce_dtype = DTYPE_I64;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"a\": f32 cannot be cast to the reduce");
	r.policy.reduce_dtype = UINT32_MAX;
	check_refused(&r, 2, 1, -EINVAL, "reduce dtype 4294967295");
	r.policy.reduce_dtype = 0;
	r.policy.input_dtype = DTYPE_U8;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"a\": f32 cannot be cast to the input");
	r.policy.input_dtype = 98;
	check_refused(&r, 2, 1, -EINVAL, "input dtype 98");
}

Test(plan, an_8_bit_float_is_refused_under_a_param_dtype)
{
	struct registration r = make_registration();

	r.params[1].type.dtype = DTYPE_F8_E4M3;
	r.params[1].is_frozen = true;
	cr_expect(ne(u64, hash_of(&r, 2, 1), 0));
	r.policy.param_dtype = DTYPE_BF16;
	check_refused(&r, 2, 1, -EINVAL,
		      "\"b\": f8_e4m3 cannot be cast to the param dtype bf16: "
		      "casts are between f16, bf16, f32 and f64; put it in a "
		      "group without a param dtype");
}

Test(plan, gradients_that_cannot_be_reduced_are_named)
{
	const uint32_t dtypes[] = {DTYPE_BOOL, DTYPE_F8_E5M2, DTYPE_C64};

	for (size_t i = 0; i < 3; i++) {
		struct registration r = make_registration();

		r.params[1].type.dtype = dtypes[i];
		check_refused(&r, 2, 1, -EINVAL, "\"b\": its gradient");
		r.params[1].is_frozen = true;
		cr_expect(ne(u64, hash_of(&r, 2, 1), 0));
	}
}

Test(plan, policies_that_are_none_are_refused)
{
	struct registration r = make_registration();

	r.policy.gather_caps_mb[0] = NAN;
	check_refused(&r, 2, 1, -EINVAL, "gather bucket 0");
	r.policy.gather_caps_mb[0] = 0;
	r.policy.n_reduce_caps = 2;
	r.policy.reduce_caps_mb[1] = -1;
	check_refused(&r, 2, 1, -EINVAL, "reduce bucket 1");
	r.policy.n_reduce_caps = PLAN_MAX_CAPS + 1;
	check_refused(&r, 2, 1, -EINVAL, "17 caps of reduce");
	r.policy.n_reduce_caps = 0;
	r.policy.layout = 2;
	check_refused(&r, 2, 1, -EINVAL, "layout 2");
}

Test(plan, groups_over_all_bounds_are_refused)
{
	struct registration r = make_registration();

	/* each fits, and the two together do in one replica */
	r.params[0].type = PARAM("", DTYPE_F16, 1, INT64_C(1) << 58).type;
	r.params[1].type = r.params[0].type;
	cr_expect(ne(u64, hash_of(&r, 2, 1), 0));
	check_refused(&r, 2, 4, -EOVERFLOW, "with parameter \"b\"");
	/* stored it fits, cast it does not */
	r.n = 1;
	r.params[0].type = PARAM("", DTYPE_F16, 1, INT64_C(1) << 60).type;
	r.policy.param_dtype = DTYPE_F64;
	check_refused(&r, 2, 1, -EOVERFLOW, "with parameter \"a\"");
	r.policy.param_dtype = 0;
	r.policy.reduce_dtype = DTYPE_F64;
	check_refused(&r, 2, 1, -EOVERFLOW, "with parameter \"a\"");
}
