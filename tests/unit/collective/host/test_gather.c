/* Compares gathers of shards to whole parameters with a copy of one element
 * after another. */
#include "collective/host/gather.h"
#include "tests/lib/check.h"
#include "tests/unit/collective/host/host_fixture.h"

static const uint32_t dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F64,
				  DTYPE_I32, DTYPE_U8,   DTYPE_C64, DTYPE_BOOL};

struct memory {
	uint8_t *shards, *full, *want;
	uint64_t shards_size, full_size;
};

/* Fill the shards of all entries with numbers, and their padding with noise. */
static void memory_make(struct dice *dice, const struct group *group,
			struct memory *memory)
{
	const struct plan *plan = &group->plan;

	memory->shards_size = plan->shards_size * plan->n_replicas;
	memory->full_size = plan->full_size * plan->n_replicas;
	memory->shards = memory_new(memory->shards_size);
	memory->full = memory_new(memory->full_size);
	memory->want = memory_new(memory->full_size);
	for (uint64_t i = 0; i < memory->shards_size; i++)
		memory->shards[i] = (uint8_t)dice_next(dice);
	memset(memory->want, 0, memory->full_size);
}

static bool memory_drop(struct memory *memory)
{
	bool is_whole = memory_free(memory->shards, memory->shards_size);

	is_whole &= memory_free(memory->full, memory->full_size);
	return memory_free(memory->want, memory->full_size) && is_whole;
}

static void gather_entry(const struct plan_entry *entry, const uint8_t *shards,
			 uint8_t *full)
{
	uint32_t from = entry->dtype, to = entry->full_dtype, rank;

	for (uint64_t i = 0; i < entry->shard.numel; i++) {
		uint64_t at = group_find(&entry->shard, i, &rank);
		const uint8_t *in = shards + entry->shard_offset +
				    rank * entry->shard_stride +
				    at * dtype_size(from);
		uint8_t *out = full + entry->full_offset + i * dtype_size(to);
		union number x;

		if (from == to) {
			memcpy(out, in, dtype_size(to));
			continue;
		}
		x = number_load(from, in);
		x.f = round_float(to, x.f);
		number_store(to, out, x);
	}
}

static void run_all(const struct gather *gather, struct dice *dice)
{
	uint64_t n = gather_count_tasks(gather), first = dice_next(dice);

	/* The tasks may run in any order. */
	for (uint64_t i = 0; i < n; i++)
		gather_run(gather, (first + i) % n);
}

static const struct kernels *some_kernels(struct dice *dice)
{
	const struct kernels *kernels =
		kernels_get(dice_throw(dice, N_KERNEL_LEVELS));

	return kernels ? kernels : kernels_get(KERNEL_GENERIC);
}

static void check_group(struct dice *dice, const struct group *group)
{
	const struct plan *plan = &group->plan;
	struct memory memory;
	struct gather gather;

	memory_make(dice, group, &memory);
	gather = (struct gather){
		.layout = group->layout,
		.kernels = some_kernels(dice),
		.shards = memory.shards,
		.full = memory.full,
		.task_size = dice_throw(dice, 2)
				     ? GATHER_TASK_SIZE
				     : gather_task_size(
					       plan, 1 + dice_throw(dice, 8)),
	};
	run_all(&gather, dice);
	for (uint32_t g = 0; g < plan->n_replicas; g++) {
		for (uint32_t i = 0; i < plan->n_entries; i++)
			gather_entry(&plan->entries[i],
				     memory.shards + g * plan->shards_size,
				     memory.want + g * plan->full_size);
	}
	cr_assert(
		eq(int, memcmp(memory.full, memory.want, memory.full_size), 0));
	cr_assert(memory_drop(&memory));
}

Test(gather, random_groups_are_gathered_completely_with_zeroed_padding)
{
	struct dice dice = {1};

	for (int i = 0; i < 300; i++) {
		uint32_t n_shards = 1 + dice_throw(&dice, 5);
		uint32_t n_replicas = 1 + dice_throw(&dice, 3);
		struct plan_policy policy = {0};
		struct group group;

		if (dice_throw(&dice, 2))
			policy.param_dtype = dtypes[dice_throw(&dice, 4)];
		group_throw(&dice, n_shards, n_replicas, dtypes, 8, policy,
			    &group);
		check_group(&dice, &group);
		group_deinit(&group);
	}
}

/* The gather has several tasks, some of which use streaming stores, and the
 * last rank's part is smaller. */
Test(gather, large_parameters_are_split_into_tasks)
{
	const struct plan_param params[] = {
		{.name = "a", .type = {DTYPE_F32, 2, {2003, 999}, {0}}},
		{.name = "b", .type = {DTYPE_BF16, 1, {3}, {0}}},
		{.name = "c",
		 .type = {DTYPE_F32, 2, {300, 800}, {0}},
		 .shard_dim = 1},
	};
	struct dice dice = {2};

	for (int i = 0; i < 4; i++) {
		const struct plan_policy policy = {
			.layout = i % 2 ? PLAN_FLAT : PLAN_IN_PLACE,
			.param_dtype = i / 2 ? DTYPE_F64 : 0,
		};
		struct group group = {.n_params = 3};

		memcpy(group.params, params, sizeof(params));
		for (int j = 0; j < 3; j++)
			tensor_type_contiguous(&group.params[j].type);
		cr_assert(zero(int, plan_make(group.params, 3, &policy, 4, 1,
					      &group.plan, NULL)));
		group_make_layout(&group);
		cr_assert(gt(u64, group.plan.full_size, 8u << 20));
		check_group(&dice, &group);
		group_deinit(&group);
	}
}

Test(gather, contiguous_parameters_are_not_copied)
{
	struct plan_param param = {
		.name = "w",
		.type = {DTYPE_F32, 2, {7, 3}, {0}},
	};
	const struct plan_policy policy = {.layout = PLAN_IN_PLACE};
	struct group group = {0};
	struct memory memory;
	struct dice dice = {3};
	struct gather gather;

	tensor_type_contiguous(&param.type);
	cr_assert(zero(int,
		       plan_make(&param, 1, &policy, 3, 2, &group.plan, NULL)));
	group_make_layout(&group);
	cr_assert(layout_is_in_place(group.layout));
	memory_make(&dice, &group, &memory);
	gather = (struct gather){
		.layout = group.layout,
		.kernels = kernels_best(),
		.shards = memory.shards,
		.full = memory.shards,
		.task_size = GATHER_TASK_SIZE,
	};
	cr_assert(eq(u64, gather_count_tasks(&gather), 0));
	cr_assert(eq(u64, gather_count_bytes(&gather), 0));
	gather.full = memory.full;
	cr_assert(eq(u64, gather_count_tasks(&gather), 2));
	cr_assert(eq(u64, gather_count_bytes(&gather), 2 * 21 * 8));
	cr_assert(memory_drop(&memory));
	group_deinit(&group);
}

Test(gather, the_size_of_tasks_leaves_tasks_for_each_rank)
{
	struct plan plan = {.full_size = 1024, .n_replicas = 1};

	cr_expect(eq(u64, gather_task_size(&plan, 2), 16 << 10));
	plan.full_size = 256 << 10;
	cr_expect(eq(u64, gather_task_size(&plan, 2), 64 << 10));
	cr_expect(eq(u64, gather_task_size(&plan, 4), 32 << 10));
	plan.full_size = UINT64_C(1) << 40;
	cr_expect(eq(u64, gather_task_size(&plan, 64), GATHER_TASK_SIZE));
	plan.n_replicas = 2;
	plan.full_size = 128 << 10;
	cr_expect(eq(u64, gather_task_size(&plan, 2), 64 << 10));
}
