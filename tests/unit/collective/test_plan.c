/*
 * Tests plans: the offsets of the reference's examples, and the rules of
 * buckets, dtypes and meshes.
 */
#include "collective/bucket.h"
#include "collective/plan.h"
#include "collective/wire.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/plan_build.h"
#include <errno.h>
#include <string.h>

/* --- wire layouts -------------------------------------------------------- */

/*
 * Write what is sent for f32 parameters that hold `values` one after another.
 * The shards are laid out as in the plan, but without the alignment between
 * chunks. Returns the number of elements.
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

/* Return the bytes of all ranks' chunks in a bucket, without alignment. */
static uint64_t bucket_size(const struct plan *plan, enum wire_kind kind,
			    uint32_t bucket)
{
	uint64_t size = 0;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		if (wire_bucket(&plan->entries[i], kind) == bucket)
			size += wire_chunk_size(&plan->entries[i], kind);
	}
	return plan->n_shards * size;
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

	check_wire(&plan, values, rows, 12);
	/* Rank 1 has A with the shape (1, 2) and B with the shape (2) at these
	 * places of its row. */
	cr_assert(eq(u64, a->shard_stride, 2 * PLAN_ALIGN));
	cr_assert(eq(u64, b->shard_stride, 2 * PLAN_ALIGN));
	cr_assert(eq(u64, a->shard_offset, 0));
	cr_assert(eq(u64, b->shard_offset, PLAN_ALIGN));
	cr_assert(eq(i64, shard_size_of(&a->shard, 1), 1));
	cr_assert(eq(i64, shard_size_of(&b->shard, 1), 2));
	/* The whole of A is the first 6 of 8 elements. */
	cr_assert(eq(u64, a->shard.padded_numel, 8));
	cr_assert(eq(u64, a->full_offset, 0));
	cr_assert(eq(u64, b->full_offset, PLAN_ALIGN));
	/* Gradients have the same layout on their way back. */
	cr_assert(eq(u64, b->grad_offset, b->shard_offset));
	cr_assert(eq(u64, b->grad_stride, b->shard_stride));
	cr_assert(eq(u64, bucket_size(&plan, WIRE_GATHER, 0), 12 * 4));
	plan_deinit(&plan);
}

/* case 51: the reference gathers 28 bytes as uint8. Here each dtype has a
 * bucket of its own, and all of them together have the same size. */
Test(plan, mixed_dtypes_are_gathered_side_by_side)
{
	const struct plan_param params[] = {PARAM("h", DTYPE_BF16, 1, 6),
					    PARAM("f", DTYPE_F32, 1, 4)};
	struct plan plan = make(params, 2, &flat, 2, 1);

	cr_assert(eq(u32, plan.n_gather_buckets, 2));
	cr_expect(eq(u64, bucket_size(&plan, WIRE_GATHER, 0), 2 * 6));
	cr_expect(eq(u64, bucket_size(&plan, WIRE_GATHER, 1), 2 * 8));
	cr_expect(eq(u32, plan.entries[0].full_dtype, DTYPE_BF16));
	cr_expect(eq(u32, plan.entries[1].full_dtype, DTYPE_F32));
	plan_deinit(&plan);
}

/* case 59: the reference refuses them, or promotes both to f32 */
Test(plan, gradients_of_two_dtypes_are_each_reduced_in_their_own_dtype)
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
	/* widened when they are copied in */
	plan = make(params, 2, &wide, 2, 1);
	cr_expect(eq(u32, plan.entries[0].reduce_dtype, DTYPE_F32));
	cr_expect(eq(u32, plan.n_reduce_buckets, 1));
	plan_deinit(&plan);
	plan = make(params, 2, &narrow, 2, 1);
	cr_expect(eq(u32, plan.entries[1].reduce_dtype, DTYPE_BF16));
	plan_deinit(&plan);
}

/* case 19 */
Test(plan, a_flat_bucket_is_ordered_by_rank_and_then_by_entry)
{
	const struct plan_param params[] = {PARAM("A", DTYPE_F32, 1, 4),
					    PARAM("B", DTYPE_F32, 2, 2, 2)};
	const float values[] = {1, 2, 3, 4, 5, 6, 7, 8};
	const float wire[] = {1, 2, 5, 6, 3, 4, 7, 8};
	struct plan plan = make(params, 2, &flat, 2, 1);

	check_wire(&plan, values, wire, 8);
	plan_deinit(&plan);
}

Test(plan, in_place_every_parameter_is_contiguous)
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
Test(plan, sizes_for_a_real_model_are_those_computed_by_hand)
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
	cr_assert(eq(u64, bucket_size(&plan, WIRE_GATHER, 0), 64 * numel * 4));
	cr_assert(eq(u64, bucket_size(&plan, WIRE_REDUCE, 0), 64 * numel * 4));
	/* Each chunk is rounded up to PLAN_ALIGN, and nothing else is added. */
	cr_assert(eq(u64, plan.shards_size,
		     64 * (1088 + 64 + 1280 + 64 + 256 + 2048 + 64 + 1216)));
	cr_assert(eq(u64, plan.shards_size, 64 * plan.entries[0].shard_stride));
	plan_deinit(&plan);
}

/* --- rules of a plan ----------------------------------------------------- */

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
	cr_assert(eq(u64, bucket_size(&plan, WIRE_GATHER, 2), 2 * 8 * 2));
	cr_assert(eq(u64, bucket_size(&plan, WIRE_REDUCE, 0),
		     4 * ((1 << 17) + 3 * 8)));
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
Test(plan, inputs_have_their_own_dtype)
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
