/* Tests which plans the worker accepts, and the layout that it derives from
 * them. */
#include "collective/host/layout.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/host/host_fixture.h"

#include <stddef.h>

/* A valid plan of two parameters, which tests then change. */
static struct plan_entry entries[2];
static struct plan head;

static void make_good(void)
{
	struct plan_param params[2] = {
		{.name = "a", .type = {DTYPE_F32, 2, {5, 3}, {0}}},
		{.name = "b",
		 .type = {DTYPE_BF16, 2, {4, 6}, {0}},
		 .shard_dim = 1},
	};
	const struct plan_policy policy = {.layout = PLAN_FLAT};
	struct plan plan;

	for (int i = 0; i < 2; i++)
		tensor_type_contiguous(&params[i].type);
	cr_assert(zero(int, plan_make(params, 2, &policy, 2, 2, &plan, NULL)));
	memcpy(entries, plan.entries, sizeof(entries));
	head = plan;
	head.entries = entries;
	plan_deinit(&plan);
}

static int try_plan(struct error *err)
{
	struct layout *layout = NULL;
	int r = layout_new(&head, &layout, err);

	layout_free(layout);
	return r;
}

/* Each case changes one field of the second entry, or of the head, so that it
 * contradicts other fields or leads outside of the memory. */
Test(layout, an_inconsistent_plan_is_refused)
{
#define ENTRY(field) offsetof(struct plan_entry, field)
	const struct {
		size_t at;
		uint64_t value; /* of 8 bytes */
	} cases[] = {
		{ENTRY(shard.size), 7},
		{ENTRY(shard.size), UINT64_MAX},
		{ENTRY(shard.chunk), 4},
		{ENTRY(shard.n_rows), UINT64_MAX},
		{ENTRY(shard.row_numel), 2},
		{ENTRY(shard.numel), 25},
		{ENTRY(shard.chunk_numel), 11},
		{ENTRY(shard.padded_numel), 25},
		{ENTRY(shard_offset), UINT64_MAX - 63},
		{ENTRY(shard_offset), 8},
		{ENTRY(shard_stride), 8},
		{ENTRY(shard_stride), 65},
		{ENTRY(shard_stride), UINT64_MAX - 1},
		{ENTRY(full_offset), 0},
		{ENTRY(full_offset), 1 << 20},
		{ENTRY(input_offset), 1 << 20},
		{ENTRY(grad_offset), 1 << 20},
		{ENTRY(grad_stride), 1 << 20},
		{ENTRY(partial_offset), 1 << 20},
		{ENTRY(partial_stride), 1 << 20},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct error err = ERROR_NULL;

		make_good();
		cr_assert(zero(int, try_plan(NULL)));
		memcpy((char *)&entries[1] + cases[i].at, &cases[i].value, 8);
		cr_assert(eq(int, try_plan(&err), -EINVAL), "case %zu", i);
		cr_assert(strstr(err.msg, "entry 1") != NULL, "%s", err.msg);
	}
}

Test(layout, a_head_out_of_bounds_is_refused)
{
	const struct {
		size_t at;
		uint32_t value;
	} cases[] = {
		{offsetof(struct plan, n_entries), 0},
		{offsetof(struct plan, n_entries), PLAN_MAX_PARAMS + 1},
		{offsetof(struct plan, n_shards), 0},
		{offsetof(struct plan, n_shards), 3},
		{offsetof(struct plan, n_replicas), 0},
		{offsetof(struct plan, n_replicas), 33},
		{offsetof(struct plan, full_size), 65},
		{offsetof(struct plan, full_size), 64},
		{offsetof(struct plan, grads_size), 64},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_good();
		memcpy((char *)&head + cases[i].at, &cases[i].value,
		       sizeof(cases[i].value));
		cr_assert(eq(int, try_plan(NULL), -EINVAL), "case %zu", i);
	}
	make_good();
	head.input_size = UINT64_MAX - 63;
	cr_assert(eq(int, try_plan(NULL), -EINVAL));
}

Test(layout, dtypes_that_cannot_be_cast_or_added_are_refused)
{
	const uint32_t cases[][3] = {
		{0, 0, 0},
		{99, 99, 0},
		{DTYPE_I32, DTYPE_F32, DTYPE_F32},
		{DTYPE_F32, DTYPE_I32, DTYPE_I32},
		{DTYPE_F8_E4M3, DTYPE_BF16, 0},
		{DTYPE_C64, DTYPE_C64, DTYPE_C64},
		{DTYPE_F32, DTYPE_F32, DTYPE_I32},
		{DTYPE_BOOL, DTYPE_BOOL, DTYPE_BOOL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make_good();
		entries[0].dtype = cases[i][0];
		entries[0].full_dtype = cases[i][1];
		entries[0].input_dtype = cases[i][1];
		entries[0].reduce_dtype = cases[i][2];
		cr_assert(eq(int, try_plan(NULL), -EINVAL), "case %zu", i);
	}
}

Test(layout, a_range_ends_with_its_chunk_row_or_limit)
{
	/* Entry 1 has 4 rows of 6 elements, of which each rank has 3. Entry 0
	 * has 5 rows of 3 elements, which are divided into 3 and 2 rows. */
	const struct {
		int entry;
		uint64_t position, max;
		struct shard_range want;
	} cases[] = {
		{1, 0, 100, {0, 0, 3}},  {1, 4, 100, {1, 1, 2}},
		{1, 4, 1, {1, 1, 1}},    {1, 15, 9, {1, 6, 3}},
		{0, 0, 100, {0, 0, 9}},  {0, 10, 100, {1, 1, 8}},
		{0, 15, 100, {1, 6, 3}}, /* padding */
	};

	make_good();
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shard_range got =
			layout_range(&entries[cases[i].entry].shard,
				     cases[i].position, cases[i].max);

		cr_assert(eq(u32, got.shard, cases[i].want.shard));
		cr_assert(eq(u64, got.at, cases[i].want.at));
		cr_assert(eq(u64, got.n, cases[i].want.n));
	}
}
