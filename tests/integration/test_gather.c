/*
 * Tests unshard, wait and reshard: which values the ranks see, what the limiter
 * permits, and what remains when a process dies in between.
 *
 * Ranks are processes. The test tells each rank what to do next, so the ranks
 * act in the order that is written here.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <errno.h>
#include <signal.h>
#include <string.h>

/* The shards are uneven, and among four ranks some are empty. One parameter is
 * a vector, and nothing is cast. */
static const struct fsdp_param_spec PLAIN[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "small", .spec = {FSDP_F32, 2, {2, 3}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {7}}},
};

/* One parameter is sharded along its second dimension, and some dtypes are not
 * cast. */
static const struct fsdp_param_spec MIXED[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {3, 8}}, .shard_dim = 1},
	{.name = "double", .spec = {FSDP_F64, 1, {9}}},
	{.name = "table", .spec = {FSDP_I32, 1, {6}}, .is_frozen = true},
};

/* This parameter has 64 KiB whole, and 32 KiB as bf16. */
static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {128, 128}}},
};

#define CAST .policy = {.param_dtype = FSDP_BF16}

static const struct layer KINDS[] = {
	LAYER("in place", PLAIN),
	LAYER("cast", PLAIN, CAST),
	LAYER("flat", PLAIN, .policy = {.layout = FSDP_LAYOUT_FLAT}),
	LAYER("mixed", MIXED, CAST),
};

static const struct layer CASTS[] = {
	LAYER("l0", LARGE, CAST),
	LAYER("l1", LARGE, CAST),
	LAYER("l2", LARGE, CAST),
	LAYER("l3", LARGE, CAST),
};

static const struct layer WITH_ROOT[] = {
	LAYER("root", LARGE,
	      .policy = {.param_dtype = FSDP_BF16, .stays_unsharded = true}),
	LAYER("l1", LARGE, CAST),
	LAYER("l2", LARGE, CAST),
	LAYER("l3", LARGE, CAST),
};

CHECKED_SUITE(gather, crew_setup, crew_teardown, .timeout = 300);

static void start(uint32_t n, const struct crew *crew)
{
	struct crew copy = *crew;

	if (!copy.layers) {
		copy.layers = CASTS;
		copy.n_layers = 4;
	}
	crew_start(n, &copy);
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
}

/* --- what a rank is told ------------------------------------------------- */

static int look1(void)
{
	return rank_note(fsdp_wait(&trainer()->works[1], 0));
}

static int look2(void)
{
	return rank_note(fsdp_wait(&trainer()->works[2], 0));
}

static int look3(void)
{
	return rank_note(fsdp_wait(&trainer()->works[3], 0));
}

/* --- cycles -------------------------------------------------------------- */

static int use(size_t layer)
{
	int r = trainer_unshard(layer);

	if (r == 0 && !trainer_sees_whole(layer))
		r = -EIO;
	if (r == 0)
		r = trainer_reshard(layer);
	return r;
}

/* Run forward and backward over all layers, commit, and do the same again. */
static int run_cycles(void)
{
	int r = 0;

	for (int step = 0; r == 0 && step < 3; step++) {
		for (size_t i = 0; r == 0 && i < 4; i++)
			r = use(i);
		for (size_t i = 4; r == 0 && i-- > 0;)
			r = use(i);
		if (r == 0)
			r = trainer_commit();
	}
	return r;
}

static void check_cycles(uint32_t n, uint32_t n_shards)
{
	struct crew crew = {.layers = KINDS, .n_layers = 4};

	crew.options.n_shards = n_shards;
	start(n, &crew);
	cr_assert(eq(int, ranks_run(&ranks, run_cycles), 0));
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));
}

Test(gather, one_rank_sees_its_committed_values)
{
	check_cycles(1, 0);
}

Test(gather, two_ranks_see_the_shards_of_each_other)
{
	check_cycles(2, 0);
}

Test(gather, four_ranks_with_uneven_and_empty_shards_see_whole_parameters)
{
	check_cycles(4, 0);
}

Test(gather, each_replica_has_its_own_whole_parameters)
{
	check_cycles(4, 2);
}

static int run_ahead(void)
{
	int r = 0;

	/* The next layer is prefetched before this one is resharded. */
	for (int i = 0; r == 0 && i < 100; i++) {
		if (i == 0)
			r = begin0();
		if (r == 0)
			r = trainer_begin((size_t)(i + 1) % 4);
		if (r == 0)
			r = trainer_await((size_t)i % 4);
		if (r == 0 && !trainer_sees_whole((size_t)i % 4))
			r = -EIO;
		if (r == 0)
			r = trainer_reshard((size_t)i % 4);
	}
	return r;
}

Test(gather, ranks_that_prefetch_at_different_speeds_see_the_same_values)
{
	start(4, &(struct crew){0});
	cr_assert(eq(int, ranks_run(&ranks, run_ahead), 0));
}

Test(gather, a_gather_in_place_copies_nothing)
{
	host_memory_only("on devices nothing is gathered in place");
	start(2, &(struct crew){.layers = KINDS, .n_layers = 1});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, check0), 0));
	cr_assert(eq(u64, status_value(client, "gathers"), 0));
}

Test(gather, later_ranks_use_the_copy_of_the_first_rank)
{
	host_memory_only("on devices no rank gathers without the others");
	start(2, &(struct crew){0});
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, check0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, reshard0), 0));
	cr_assert(eq(u64, status_value(client, "gathers"), 1));
}

/* --- the limiter --------------------------------------------------------- */

Test(gather, the_third_group_waits_until_all_have_resharded_the_first)
{
	/* case 1, but with ranks in place of events */
	start(2, &(struct crew){0});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard1), 0));
	cr_assert(eq(int, ranks_run(&ranks, begin2), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, look2), -ETIMEDOUT));
	assert_says(0, "waits for the limiter until 'l0' is resharded");
	cr_assert(eq(u32, comm_entry().n_in_flight, 2));
	cr_assert(eq(u32, comm_entry().n_limited, 1));
	/* On devices a row for the cast follows the parameters. */
	if (!are_on_devices())
		cr_assert(eq(u64, comm_entry().bytes_in_flight, 2 * 32768));

	cr_assert(eq(int, rank_run(&ranks, 0, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, look2), -ETIMEDOUT));
	assert_says(0, "rank 1");
	cr_assert(eq(int, rank_run(&ranks, 1, reshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, await2), 0));
	cr_assert(eq(u32, comm_entry().n_in_flight, 2));
	cr_assert(eq(u32, comm_entry().n_limited, 0));
	cr_assert(eq(u64, status_value(client, "limiter_waits"), 1));
}

Test(gather, a_waiting_gather_that_all_ranks_reshard_is_withdrawn)
{
	host_memory_only("on devices no rank gathers without the others");
	start(1, &(struct crew){.options = {.limit = 1}});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, begin1), 0));
	cr_assert(eq(int, ranks_run(&ranks, begin2), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard1), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, await2), 0));
	cr_assert(eq(u64, status_value(client, "gathers"), 2));
}

Test(gather, a_gather_larger_than_the_limit_runs_alone)
{
	struct crew crew = {.options = {.limit_bytes = 4096}};

	start(1, &crew);
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, begin1), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, look1), -ETIMEDOUT));
	cr_assert(eq(int, ranks_run(&ranks, reshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, await1), 0));
}

Test(gather, in_place_parameters_do_not_count_for_the_limiter)
{
	struct crew crew = {
		.layers = KINDS, .n_layers = 2, .options = {.limit_bytes = 1}};

	host_memory_only("on devices nothing is gathered in place");
	crew.options.limiter = FSDP_LIMITER_FSDP1;
	start(1, &crew);
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(u64, comm_entry().bytes_in_flight, 0));
	cr_assert(eq(u32, comm_entry().n_in_flight, 1));
}

Test(gather, a_root_that_stays_unsharded_does_not_count_for_the_limiter)
{
	start(2, &(struct crew){.layers = WITH_ROOT, .n_layers = 4});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard1), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard2), 0));
	cr_assert(eq(int, ranks_run(&ranks, begin3), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, look3), -ETIMEDOUT));
	assert_says(1, "until 'l1' is resharded");
	cr_assert(eq(int, ranks_run(&ranks, reshard1), 0));
	cr_assert(eq(int, ranks_run(&ranks, await3), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard2), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard3), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard0), 0));
	cr_assert(eq(u64, comm_entry().bytes_in_flight, 0));
}

Test(gather, the_fsdp1_limiter_waits_for_the_reshard_of_the_last_group_but_one)
{
	struct crew crew = {.options = {.limiter = FSDP_LIMITER_FSDP1}};

	host_memory_only("on devices no rank gathers without the others");
	/* case 1: U1 R1 U2 R2 U3. The third unshard waits on E1, which is
	 * reached when all ranks have resharded. */
	start(2, &crew);
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, unshard1), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard1), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, begin2), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, look2), -ETIMEDOUT));
	assert_says(0, "until 'l0' is resharded");
	cr_assert(eq(int, rank_run(&ranks, 1, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, await2), 0));
}

Test(gather, the_fsdp1_limiter_does_not_count_open_groups)
{
	struct crew crew = {.options = {.limiter = FSDP_LIMITER_FSDP1}};

	host_memory_only("on devices no rank gathers without the others");
	/* case 7: without reshards there is no event, so no unshard waits */
	start(1, &crew);
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard1), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard2), 0));
}

static int cycle_steps(void)
{
	return run_ahead();
}

Test(gather, the_fsdp1_limiter_does_not_block_iterations)
{
	struct crew crew = {.options = {.limiter = FSDP_LIMITER_FSDP1}};

	start(2, &crew);
	cr_assert(eq(int, ranks_run(&ranks, cycle_steps), 0));
}

/* --- order --------------------------------------------------------------- */

static int unshard_twice(void)
{
	struct trainer *self = trainer();
	struct fsdp_work again;

	must(fsdp_unshard(self->groups[0], &self->works[0]) == 0);
	must(fsdp_unshard(self->groups[0], &again) == 0);
	must(again.sequence == self->works[0].sequence);
	must(fsdp_wait(&again, -1) == 0);
	must(fsdp_unshard(self->groups[0], &again) == 0);
	must(again.sequence == self->works[0].sequence);
	return rank_note(fsdp_wait(&self->works[0], -1));
}

Test(gather, unsharding_an_unsharded_group_returns_the_same_work)
{
	start(2, &(struct crew){0});
	cr_assert(eq(int, ranks_run(&ranks, unshard_twice), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, reshard0), -EINVAL));
	cr_assert(eq(u64, status_value(client, "gathers"), 1));
}

Test(gather, an_unshard_in_another_order_is_refused_without_effect)
{
	host_memory_only("on devices no rank gathers without the others");
	start(2, &(struct crew){0});
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, unshard1), -EINVAL));
	assert_says(1, "unshards 'l1', but the ranks' next one is 'l0'");
	assert_says(1, "rank 1 (pid ");
	cr_assert(eq(int, rank_run(&ranks, 1, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, check0), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, run_ahead), 0));
}

static int commit(void)
{
	return trainer_commit();
}

static int begin_commit(void)
{
	struct trainer *self = trainer();

	return rank_note(
		fsdp_commit(self->comm, self->step + 1, &self->works[3]));
}

Test(gather, a_commit_is_refused_before_the_reshard)
{
	start(2, &(struct crew){0});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, begin_commit), -EBUSY));
	assert_says(0, "has 'l0' unsharded");
	cr_assert(eq(int, rank_run(&ranks, 1, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, begin_commit), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, begin0), -EBUSY));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, unshard1), -EINVAL));
	assert_says(0, "commit");
	cr_assert(eq(int, rank_run(&ranks, 0, begin_commit), 0));
	cr_assert(eq(int, ranks_run(&ranks, await3), 0));
}

Test(gather, a_rank_that_lacks_an_unshard_of_the_others_cannot_commit)
{
	host_memory_only("on devices no rank gathers without the others");
	start(2, &(struct crew){0});
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, begin_commit), -EINVAL));
	assert_says(1, "unshard 'l0'");
}

Test(gather, an_unshard_before_the_first_commit_is_refused)
{
	struct crew crew = {.layers = CASTS, .n_layers = 1};

	crew_start(1, &crew);
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), -ENODATA));
	assert_says(0, "group 'l0' has no committed step yet");
	cr_assert(eq(int, rank_run(&ranks, 0, commit), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), 0));
}

/* --- smaller meshes ------------------------------------------------------ */

static int reshard0_to(uint32_t n_mesh)
{
	return rank_note(fsdp_reshard(trainer()->groups[0], n_mesh));
}

static int reshard0_to_2(void)
{
	return reshard0_to(2);
}

static int reshard0_to_1(void)
{
	return reshard0_to(1);
}

static int reshard0_to_3(void)
{
	return reshard0_to(3);
}

Test(gather, an_unshard_from_a_smaller_mesh_gathers_nothing)
{
	start(4, &(struct crew){0});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard0_to_2), 0));
	cr_assert(eq(u32, comm_entry().n_in_flight, 0));
	cr_assert(eq(u64, status_value(client, "gathers"), 1));
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, check0), 0));
	cr_assert(eq(u64, status_value(client, "gathers"), 1));

	/* After a full reshard, and after a commit, the copy is freed. */
	cr_assert(eq(int, ranks_run(&ranks, reshard0_to_2), 0));
	cr_assert(eq(int, ranks_run(&ranks, commit), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, check0), 0));
	cr_assert(eq(u64, status_value(client, "gathers"), 2));
}

Test(gather, a_mesh_that_does_not_fit_is_refused)
{
	start(4, &(struct crew){0});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0_to_3), -EINVAL));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0_to_2), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, reshard0_to_1), -EINVAL));
	assert_says(1, "all must do the same");
	cr_assert(eq(int, rank_run(&ranks, 1, reshard0_to_2), 0));
	cr_assert(eq(int, rank_run(&ranks, 2, reshard0_to_2), 0));
	cr_assert(eq(int, rank_run(&ranks, 3, reshard0_to_2), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(u64, status_value(client, "gathers"), 1));
}

/* --- deaths -------------------------------------------------------------- */

Test(gather, after_an_orderly_end_only_kept_groups_have_memory)
{
	start(2, &(struct crew){0});
	cr_assert(eq(int, ranks_run(&ranks, run_ahead), 0));
	/* The last prefetch is still open. */
	cr_assert(eq(int, ranks_run(&ranks, reshard0), 0));
	expect_memory_back();
}

Test(gather, the_error_names_a_rank_that_is_killed_during_a_gather)
{
	pid_t worker, victim;
	char text[64];

	host_memory_only("on devices the ranks do the work");
	start(2, &(struct crew){.options = {.executor = FSDP_EXECUTOR_WORKER}});
	cr_assert(eq(int, ranks_run(&ranks, run_ahead), 0));
	/* No rank has waited for the last prefetch. */
	cr_assert(status_await(client, "jobs_running", 0));
	worker = freeze_worker();
	cr_assert(eq(int, ranks_run(&ranks, begin1), 0));
	cr_assert(status_await(client, "jobs_running", 1));
	cr_assert(eq(int, rank_run(&ranks, 0, look1), -ETIMEDOUT));
	assert_says(0, "is being gathered");
	actor_begin(&ranks.actors[0], await1);
	victim = ranks.actors[1].pid;
	actor_kill(&ranks.actors[1]);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	snprintf(text, sizeof(text), "rank 1 (pid %d, ", (int)victim);
	assert_says(0, text);
	assert_says(0, "has died");
	cr_assert(eq(int, rank_run(&ranks, 0, begin2), -ECONNABORTED));
	assert_says(0, text);
	must(kill(worker, SIGCONT) == 0);
	expect_memory_back();
}

Test(gather, the_error_names_a_rank_that_does_not_unshard)
{
	struct crew crew = {.options = {.timeout_ms = 5000}};

	host_memory_only("on devices no rank gathers without the others");
	start(2, &crew);
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, begin1), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, begin2), 0));
	/* Two groups may be whole. The unshard of the third waits for rank
	 * 1. */
	cr_assert(eq(int, rank_run(&ranks, 0, await2), -ECONNABORTED));
	assert_says(0, "rank 1");
	assert_says(0, "within 5000 ms");
	expect_memory_back();
}

Test(gather, the_error_names_a_reshard_that_the_ranks_owe_themselves)
{
	struct crew crew = {.options = {.timeout_ms = 5000, .limit = 1}};

	host_memory_only("on devices no rank gathers without the others");
	start(2, &crew);
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, begin1), 0));
	cr_assert(eq(int, rank_run(&ranks, 0, await1), -ECONNABORTED));
	assert_says(0, "until 'l0' is resharded");
	expect_memory_back();
}

Test(gather, a_worker_that_is_killed_fails_only_the_run)
{
	uint64_t starts;
	pid_t worker;

	host_memory_only("on devices the ranks do the work");
	start(2, &(struct crew){.options = {.executor = FSDP_EXECUTOR_WORKER}});
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	starts = status_value(client, "worker_starts");
	worker = freeze_worker();
	cr_assert(eq(int, ranks_run(&ranks, begin1), 0));
	cr_assert(status_await(client, "jobs_running", 1));
	ranks_begin(&ranks, await1);
	must(kill(worker, SIGKILL) == 0);
	ranks_end(&ranks);
	cr_assert(eq(int, ranks.notes[0].code, -ECONNABORTED));
	cr_assert(eq(int, ranks.notes[1].code, -ECONNABORTED));
	assert_says(0, "while group 'l1' of communicator 'test' was gathered");
	assert_says(1, "fsdp-worker");
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));

	/* The committed values are there, and a new worker gathers them. */
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, check0), 0));
	cr_assert(eq(u64, status_value(client, "worker_starts"), starts + 1));
	expect_memory_back();
}

/* --- memory -------------------------------------------------------------- */

static struct fsdp_tensor *hog;

static void take_memory(int64_t size)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {size}};

	cr_assert(eq(int, fsdp_alloc(client, &spec, 1, NULL, 0, &hog), 0), "%s",
		  fsdp_error());
}

static const struct fsdp_param_spec HUGE_PARAM[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {1024, 512}}},
};
static const struct layer HUGE_LAYER[] = {
	LAYER("huge", HUGE_PARAM, CAST),
};

Test(gather, a_gather_without_memory_waits_for_it)
{
	struct crew crew = {.layers = HUGE_LAYER, .n_layers = 1};

	host_memory_only("a limit of host memory");
	crew_use_little_memory(1);
	/* Shards take 4 MiB, gradients 2, and the whole group 1. */
	start(1, &crew);
	take_memory(9 << 20);
	cr_assert(eq(int, ranks_run(&ranks, begin0), 0));
	actor_begin(&ranks.actors[0], await0);
	fsdp_free(hog);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), 0));
	cr_assert(eq(int, ranks_run(&ranks, check0), 0));
}

static const struct fsdp_param_spec HALF_PARAM[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {256, 512}}},
};
static const struct layer SIZES[] = {
	LAYER("large", HUGE_PARAM, CAST),
	LAYER("small", HALF_PARAM, CAST),
};

/* The memory of the large group is idle, and too large for the small one. */
Test(gather, idle_memory_is_freed_for_a_gather_without_memory)
{
	struct crew crew = {.layers = SIZES, .n_layers = 2};

	host_memory_only("a limit of host memory");
	crew_use_little_memory(1);
	/* Shards take 5 MiB, gradients 2.5, and the whole groups 1 and 0.25. */
	start(1, &crew);
	cr_assert(eq(int, ranks_run(&ranks, unshard0), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard0), 0));
	take_memory((7 << 20) + (448 << 10));
	cr_assert(eq(int, ranks_run(&ranks, unshard1), 0));
	fsdp_free(hog);
}
