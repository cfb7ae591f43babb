/*
 * Kills the broker while it or the ranks gather or reduce. The run ends or
 * continues, and the next run finds the committed step and does the same work.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/crew.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {128, 128}}},
};

static const struct fsdp_param_spec PLAIN[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {7}}},
};

enum { CAST, IN_PLACE };

static const struct layer LAYERS[] = {
	LAYER("cast", LARGE, .policy = {.param_dtype = FSDP_BF16}),
	LAYER("in place", PLAIN),
};

static struct chaos chaos;

static int check_step(void)
{
	return trainer()->step == 1 ? 0 : -EIO;
}

static int gather(void)
{
	int r = trainer_unshard(CAST);

	if (r < 0)
		return r;
	return trainer_sees_whole(CAST) ? 0 : -EIO;
}

static double mean(size_t param, uint64_t index)
{
	double sum = 0;

	for (uint32_t rank = 0; rank < rank_world(); rank++)
		sum += gradient_of(rank, param, index, 0);
	return sum / rank_world();
}

static int reduce(void)
{
	int r = trainer_reduce(IN_PLACE, 0, NULL, true);

	if (r < 0)
		return r;
	return trainer_sees_gradients(IN_PLACE, mean) ? 0 : -EIO;
}

static void kill_broker_at(const char *point, enum fsdp_executor executor,
			   int (*work)(void))
{
	struct crew crew = {
		.daemon = &chaos.daemon,
		.comm = "test",
		.layers = LAYERS,
		.n_layers = 2,
		.options = {.executor = executor},
	};

	/* Each run has a new broker, because the supervisor restarts only so
	 * many. */
	chaos_start(&chaos, NULL);
	crew_set(&crew);
	ranks_start(&ranks, 2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	plan_death(chaos.plan, point, 1);
	/* A broker that is killed after the work may have told a rank. */
	ranks_begin(&ranks, work);
	ranks_end(&ranks);
	while (!plan_is_done(chaos.plan))
		nap_ms(1);
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));

	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0), "%s", point);
	cr_assert(eq(int, ranks_run(&ranks, check_step), 0), "%s", point);
	cr_assert(eq(int, ranks_run(&ranks, work), 0), "%s", point);
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));
	ranks_stop(&ranks);
	chaos_stop(&chaos);
}

static void kill_broker_at_each(const char *const *points, size_t n,
				enum fsdp_executor executor, int (*work)(void))
{
	if (!chaos_has_points())
		cr_skip_test("built without points");
	for (size_t i = 0; i < n; i++)
		kill_broker_at(points[i], executor, work);
}

static void need_ranks_that_work(void)
{
	host_memory_only("on devices the ranks have no board");
	if (getenv("FSDP_TEST_EXECUTOR"))
		cr_skip_test("fsdp-worker does the work");
}

TestSuite(collective_restart, .timeout = 120);

Test(collective_restart, a_gather_by_the_broker_s_engine_keeps_the_step)
{
	/* The first two are failpoints of the engine, which does not work here
	 * on devices. */
	static const char *const points[] = {
		"gather.submitted",  "gather.done",
		"verb.unshard.done", "verb.unshard.committed",
		"verb.wait.done",    "verb.wait.committed"};

	if (are_on_devices())
		kill_broker_at_each(points + 2, 4, FSDP_EXECUTOR_RANK, gather);
	else
		kill_broker_at_each(points, 6, FSDP_EXECUTOR_WORKER, gather);
}

Test(collective_restart, a_gather_by_ranks_keeps_the_step)
{
	static const char *const points[] = {"verb.gather_buffer.done",
					     "verb.gather_buffer.committed"};

	need_ranks_that_work();
	kill_broker_at_each(points, 2, FSDP_EXECUTOR_RANK, gather);
}

Test(collective_restart, a_reduction_by_the_broker_s_engine_keeps_the_step)
{
	/* The last one is a failpoint of the engine, which does not work here
	 * on devices. */
	static const char *const points[] = {
		"verb.input.done",  "verb.input.committed",
		"verb.reduce.done", "verb.reduce.committed",
		"reduce.submitted", "reduce.done"};

	if (are_on_devices())
		kill_broker_at_each(points, 5, FSDP_EXECUTOR_RANK, reduce);
	else
		kill_broker_at_each(points, 6, FSDP_EXECUTOR_WORKER, reduce);
}

Test(collective_restart, a_reduction_by_ranks_keeps_the_step)
{
	static const char *const points[] = {
		"verb.input.done", "verb.input.committed",
		"verb.comm_place.done", "verb.comm_place.committed"};

	need_ranks_that_work();
	kill_broker_at_each(points, 4, FSDP_EXECUTOR_RANK, reduce);
}
