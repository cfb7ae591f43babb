/* Tests the layout of buckets on the wire between devices, and of each rank's
 * own memory. */
#include "collective/bucket.h"
#include "collective/wire.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <string.h>

static struct plan_param param(const char *name, uint32_t dtype, int64_t rows,
			       int64_t columns, int32_t shard_dim)
{
	struct plan_param it = {
		.name = name,
		.type = {.dtype = dtype, .n_dims = 2, .shape = {rows, columns}},
		.shard_dim = shard_dim,
	};

	tensor_type_contiguous(&it.type);
	return it;
}

static struct plan make(const struct plan_param *params, uint32_t n,
			struct plan_policy policy, uint32_t n_shards)
{
	struct error err = ERROR_NULL;
	struct plan plan;

	policy.is_per_rank = true;
	cr_assert(zero(int,
		       plan_make(params, n, &policy, n_shards, 1, &plan, &err)),
		  "%s", err.msg);
	return plan;
}

Test(wire, the_shards_of_a_rank_are_one_range)
{
	struct plan_param params[] = {
		param("a", DTYPE_F32, 5, 3, 0),
		param("b", DTYPE_BF16, 4, 8, 1),
		param("c", DTYPE_F32, 2, 1, 0),
	};
	struct plan plan = make(params, 3, (struct plan_policy){0}, 4);
	uint64_t row = plan.shards_size / 4, end = 0;

	cr_assert(eq(u64, plan.shards_size % 4, 0));
	for (uint32_t i = 0; i < 3; i++) {
		const struct plan_entry *entry = &plan.entries[i];

		cr_expect(eq(u64, entry->shard_stride, row));
		cr_expect(eq(u64, entry->grad_stride, row));
		cr_expect(ge(u64, entry->shard_offset, end));
		cr_expect(eq(u64, entry->shard_offset % PLAN_ALIGN, 0));
		end = entry->shard_offset +
		      entry->shard.chunk_numel * dtype_size(entry->dtype);
	}
	cr_expect(le(u64, end, row));
	cr_expect(not(plan.is_in_place));
	plan_deinit(&plan);
}

Test(wire, without_a_cast_a_row_is_a_range_of_the_shards)
{
	struct plan_param params[] = {
		param("a", DTYPE_F32, 5, 3, 0),
		param("b", DTYPE_F32, 7, 1, 0),
		param("c", DTYPE_F64, 2, 9, 0),
		param("d", DTYPE_F64, 3, 3, 0),
	};
	struct plan plan =
		make(params, 4, (struct plan_policy){.layout = PLAN_FLAT}, 2);
	uint64_t offsets[4], rows[2];

	cr_assert(eq(u32, plan.n_gather_buckets, 2));
	wire_place(&plan, WIRE_GATHER, offsets, rows);
	cr_expect(eq(u64, offsets[0], 0));
	cr_expect(eq(u64, offsets[2], 0));
	cr_expect(eq(u64, offsets[1],
		     plan.entries[1].shard_offset -
			     plan.entries[0].shard_offset));
	cr_expect(eq(u64, offsets[3],
		     plan.entries[3].shard_offset -
			     plan.entries[2].shard_offset));
	cr_expect(eq(u64, rows[0] + rows[1], plan.shards_size / 2));
	cr_expect(not(wire_has_cast(&plan, 0)));
	plan_deinit(&plan);
}

Test(wire, gathers_without_a_cast_need_no_scratch)
{
	struct plan_param params[] = {param("a", DTYPE_F32, 5, 3, 0)};
	struct plan plan = make(params, 1, (struct plan_policy){0}, 2);

	cr_expect(not(wire_is_flat(&plan, 0)));
	cr_expect(eq(u64, wire_gather_tail(&plan).size, 0));
	plan_deinit(&plan);
}

Test(wire, a_cast_needs_a_row_and_a_flat_gather_needs_a_wire)
{
	struct plan_param params[] = {param("a", DTYPE_F32, 64, 3, 0)};
	struct plan_policy policy = {.param_dtype = DTYPE_BF16};
	struct plan plan = make(params, 1, policy, 2);

	cr_expect(wire_has_cast(&plan, 0));
	cr_expect(eq(u64, wire_gather_tail(&plan).size, 192));
	plan_deinit(&plan);
	policy.layout = PLAN_FLAT;
	plan = make(params, 1, policy, 2);
	cr_expect(eq(u64, wire_gather_tail(&plan).wire_offset, 192));
	cr_expect(eq(u64, wire_gather_tail(&plan).size, 192 + 2 * 192));
	plan_deinit(&plan);
}

Test(wire, other_shard_dimensions_are_sent_flat)
{
	struct plan_param params[] = {param("a", DTYPE_F32, 4, 8, 1)};
	struct plan plan = make(params, 1, (struct plan_policy){0}, 2);

	cr_expect(wire_is_flat(&plan, 0));
	cr_expect(eq(u64, wire_gather_tail(&plan).size, 128));
	plan_deinit(&plan);
	plan = make(params, 1, (struct plan_policy){0}, 1);
	cr_expect(not(wire_is_flat(&plan, 0)));
	plan_deinit(&plan);
}

Test(wire, a_reduction_s_scratch_fits_its_largest_bucket)
{
	struct plan_param params[] = {
		param("a", DTYPE_BF16, 64, 2, 0),
		param("frozen", DTYPE_BF16, 999, 1, 0),
		param("b", DTYPE_F64, 2, 2, 0),
	};
	struct plan_policy policy = {.reduce_dtype = DTYPE_F32};
	struct plan plan;
	uint64_t offsets[3], rows[2];

	params[1].is_frozen = true;
	plan = make(params, 3, policy, 2);
	wire_place(&plan, WIRE_REDUCE, offsets, rows);
	cr_expect(eq(u64, wire_chunk_size(&plan.entries[0], WIRE_REDUCE), 256));
	cr_expect(eq(u64, wire_chunk_size(&plan.entries[1], WIRE_REDUCE), 0));
	cr_expect(eq(u32, wire_bucket(&plan.entries[1], WIRE_REDUCE),
		     BUCKET_NONE));
	cr_expect(ge(u64, rows[0], 256));
	cr_expect(eq(u64, wire_reduce_tail(&plan), 2 * rows[0]));
	plan_deinit(&plan);
}

Test(wire, integers_are_summed_in_64_bits)
{
	struct plan_param params[] = {
		param("a", DTYPE_I8, 64, 2, 0),
		param("b", DTYPE_U32, 2, 2, 0),
	};
	struct plan plan = make(params, 2, (struct plan_policy){0}, 2);

	cr_expect(
		eq(u32, wire_dtype(&plan.entries[0], WIRE_REDUCE), DTYPE_I64));
	cr_expect(eq(u32, wire_dtype(&plan.entries[0], WIRE_GATHER), DTYPE_I8));
	cr_expect(eq(u64, wire_chunk_size(&plan.entries[0], WIRE_REDUCE), 512));
	cr_expect(
		eq(u32, wire_dtype(&plan.entries[1], WIRE_REDUCE), DTYPE_U64));
	plan_deinit(&plan);
}

Test(wire, a_world_may_be_larger_than_a_node)
{
	struct plan_param params[] = {param("a", DTYPE_F32, 5, 3, 0)};
	struct plan_policy policy = {.is_per_rank = true};
	struct error err = ERROR_NULL;
	struct plan plan = make(params, 1, policy, 512);

	cr_expect(eq(u64, plan.entries[0].shard.padded_numel, 512 * 3));
	plan_deinit(&plan);
	cr_expect(eq(int, plan_make(params, 1, &policy, 4097, 1, &plan, &err),
		     -EINVAL));
	policy.is_per_rank = false;
	cr_expect(eq(int, plan_make(params, 1, &policy, 65, 1, &plan, &err),
		     -EINVAL));
}

/* The plans differ only in a value on which the ranks must agree. */
Test(wire, ranks_must_agree_on_offload_which_changes_no_offset)
{
	struct plan_param params[] = {param("a", DTYPE_F32, 5, 3, 0),
				      param("b", DTYPE_BF16, 4, 8, 1)};
	struct plan_policy policy = {.is_per_rank = true};
	const struct plan_policy offload = {.is_per_rank = true,
					    .is_offloaded = true};
	struct plan plain = make(params, 2, policy, 2);
	struct plan plan = make(params, 2, offload, 2);
	struct error err = ERROR_NULL;

	cr_expect(zero(int, memcmp(plan.entries, plain.entries,
				   2 * sizeof(*plan.entries))));
	cr_expect(ne(u64, plan.hash, plain.hash));
	plan_deinit(&plain);
	plan_deinit(&plan);
	cr_expect(eq(int,
		     plan_compare(params, 2, &offload, params, 2, &policy,
				  "rank 0", &err),
		     -EINVAL));
	cr_expect(strstr(err.msg, "place of the shards is in host memory here, "
				  "but on devices on rank 0") != NULL,
		  "%s", err.msg);
}

Test(wire, offload_is_refused_in_host_memory)
{
	struct plan_param params[] = {param("a", DTYPE_F32, 5, 3, 0)};
	const struct plan_policy policy = {.is_offloaded = true};
	struct error err = ERROR_NULL;
	struct plan plan;

	cr_expect(eq(int, plan_make(params, 1, &policy, 2, 1, &plan, &err),
		     -EINVAL));
	cr_expect(strstr(err.msg, "is in host memory") != NULL, "%s", err.msg);
}
