/*
 * Kills the broker while gathers or reductions are under way. A run whose ranks
 * do the work goes on; another one goes on or ends. The next run finds the
 * committed step and does the same work.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include "tests/lib/ending.h"
#include <errno.h>
#include <signal.h>
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

static const struct fsdp_comm_options DEFAULTS;

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

static int reshard(void)
{
	return trainer_reshard(CAST);
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

/* Start a broker and two ranks, which join by `join`. Each test run has a new
 * broker, because a supervisor gives up after several deaths. */
static void start_by(actor_fn *join, const struct fsdp_comm_options *options)
{
	struct crew crew = {
		.daemon = &chaos.daemon,
		.comm = "test",
		.layers = LAYERS,
		.n_layers = 2,
		.options = *options,
	};

	chaos_start(&chaos, NULL);
	crew_set(&crew);
	ranks_start(&ranks, 2);
	cr_assert(eq(int, ranks_run(&ranks, join), 0));
}

static void start(const struct fsdp_comm_options *options)
{
	start_by(trainer_join, options);
}

/* The next run finds the step and does the same work. */
static void run_again(const char *point, int (*work)(void))
{
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0), "%s", point);
	cr_assert(eq(int, ranks_run(&ranks, check_step), 0), "%s", point);
	cr_assert(eq(int, ranks_run(&ranks, work), 0), "%s", point);
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));
	ranks_stop(&ranks);
	chaos_stop(&chaos);
}

static void kill_broker_at(const char *point, enum fsdp_executor executor,
			   int (*work)(void))
{
	start(&(struct fsdp_comm_options){.executor = executor});
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	plan_death(chaos.plan, point, 1);
	/* If the broker dies when the work is done, a rank may have been told
	 * so or not. */
	ranks_begin(&ranks, work);
	ranks_end(&ranks);
	for (uint32_t i = 0; i < 2; i++) {
		if (runs_go_on() && executor == FSDP_EXECUTOR_RANK)
			cr_assert(zero(int, ranks.notes[i].code), "%s: %s",
				  point, ranks.notes[i].sentence);
	}
	while (!plan_is_done(chaos.plan))
		nap_ms(1);
	run_again(point, work);
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

TestSuite(collective_restart, .timeout = 300);

Test(collective_restart, a_gather_by_the_broker_s_engine_keeps_the_step)
{
	/* The first two are failpoints of the engine, which is not used on
	 * devices here. */
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
	/* The last one is a failpoint of the engine, which is not used on
	 * devices here. */
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

static int gather_until_told(void)
{
	int r;

	do {
		r = gather();
		if (r == 0)
			r = reshard();
	} while (r == 0);
	return r;
}

/* Ranks request the board before their first commit, when they have all other
 * memory. Let the keeper refuse it the first `n_failures` times. */
static void start_without_keeping_board(unsigned int n_failures)
{
	static const char line[] = "fdstore.put 1 ENOSPC\n";
	char lines[2 * sizeof(line)] = "";

	need_ranks_that_work();
	if (!chaos_has_points())
		cr_skip_test("built without points");
	start(&DEFAULTS);
	for (unsigned int i = 0; i < n_failures; i++)
		strcat(lines, line);
	plan_write(chaos.failures, lines);
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	cr_assert(plan_is_done(chaos.failures));
}

Test(collective_restart, a_run_whose_board_was_not_stored_ends_with_the_broker)
{
	start_without_keeping_board(2);
	ranks_begin(&ranks, gather_until_told);
	daemon_kill_broker(&chaos.daemon);
	ranks_end(&ranks);
	for (uint32_t i = 0; i < 2; i++)
		cr_expect(eq(int, ranks.notes[i].code, -ECONNABORTED), "%s",
			  ranks.notes[i].sentence);
	run_again("its board was lost", gather);
}

/* The keeper accepts the board when the second rank requests it. */
Test(collective_restart, a_run_whose_board_was_stored_late_continues)
{
	start_without_keeping_board(1);
	daemon_kill_broker(&chaos.daemon);
	cr_assert(eq(int, ranks_run(&ranks, gather), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard), 0));
	run_again("its board was kept late", gather);
}

/* The supervisor restarts only a broker that was killed by a signal. So this
 * one is killed after SIGTERM has made it leave its runs. */
Test(collective_restart, a_run_continues_when_the_broker_is_stopped_and_started)
{
	need_ranks_that_work();
	if (!chaos_has_points())
		cr_skip_test("built without points");
	start(&DEFAULTS);
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	cr_assert(eq(int, ranks_run(&ranks, gather), 0));
	plan_death(chaos.plan, "broker.left", 1);
	cr_assert(zero(int, kill(daemon_broker_pid(&chaos.daemon), SIGTERM)));
	while (!plan_is_done(chaos.plan))
		nap_ms(1);
	cr_assert(eq(int, ranks_run(&ranks, reduce), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard), 0));
	cr_assert(eq(int, ranks_run(&ranks, gather), 0));
	cr_assert(eq(int, ranks_run(&ranks, reshard), 0));
	run_again("broker.left", gather);
}

/* The supervisor keeps two files of the broker and one chunk. It keeps the
 * board of a run only if the next broker can use it. */
#define N_KEPT 3

Test(collective_restart, the_board_is_stored_only_for_a_run_that_can_continue)
{
	const struct fsdp_comm_options fsdp1 = {.limiter = FSDP_LIMITER_FSDP1};

	need_ranks_that_work();
	start(&fsdp1);
	cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
	cr_assert(eq(int, ranks_run(&ranks, reduce), 0));
	cr_expect(keeps_await(&chaos, N_KEPT));
	run_again("the limiter needs a broker", reduce);
	start(&DEFAULTS);
	cr_assert(eq(int, ranks_run(&ranks, reduce), 0));
	cr_expect(keeps_await(&chaos, N_KEPT + 1));
	cr_assert(eq(int, ranks_run(&ranks, trainer_leave), 0));
	cr_expect(keeps_await(&chaos, N_KEPT));
	ranks_stop(&ranks);
	chaos_stop(&chaos);
}

/* --- interruptions ------------------------------------------------------- */

static int is_signalled;

/* Report a signal once. */
static int take_signal(void *data)
{
	int was_signalled = is_signalled;

	(void)data;
	is_signalled = 0;
	return was_signalled;
}

static int join_with_hook(void)
{
	const struct fsdp_connect_options options = {
		.path = daemon_socket(&chaos.daemon),
		.interrupted = take_signal};

	must(fsdp_connect(&options, &trainer()->client) == 0);
	return trainer_join();
}

static struct fsdp_work commit;

static int await_commit(void)
{
	return rank_note(fsdp_wait(&commit, -1));
}

/* Wait for a commit while the broker is away, until a signal comes. */
static int commit_without_broker(void)
{
	must(fsdp_commit(trainer()->comm, 1, &commit) == 0);
	must(kill(chaos.daemon.pid, SIGSTOP) == 0);
	must(kill(daemon_broker_pid(&chaos.daemon), SIGKILL) == 0);
	is_signalled = 1;
	return await_commit();
}

Test(collective_restart, a_signal_while_the_broker_is_away_does_not_end_the_run)
{
	need_ranks_that_work();
	start_by(join_with_hook, &DEFAULTS);
	cr_expect(eq(int, rank_run(&ranks, 0, commit_without_broker), -EINTR));
	cr_assert(zero(int, kill(chaos.daemon.pid, SIGCONT)));
	cr_assert(zero(int, rank_run(&ranks, 1, trainer_commit)));
	cr_expect(zero(int, rank_run(&ranks, 0, await_commit)));
	ranks_stop(&ranks);
	chaos_stop(&chaos);
}

static int begin_next(void)
{
	return trainer_begin(CAST);
}

/* Wait for the last rank, which is ending, until a signal comes. */
static int await_next(void)
{
	is_signalled = 1;
	return trainer_await(CAST);
}

/* The waiting rank finds that the other one is ending, and asks the broker,
 * which does not reply. */
static void interrupt_without_broker(int signal_number)
{
	pid_t broker, thread;

	need_ranks_that_work();
	start_by(join_with_hook, &(struct fsdp_comm_options){.limit = 1});
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&ranks, gather)));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin_next)));
	thread = rank_run(&ranks, 1, ending_thread);
	broker = daemon_broker_pid(&chaos.daemon);
	cr_assert(zero(int, kill(chaos.daemon.pid, SIGSTOP)));
	cr_assert(zero(int, kill(broker, signal_number)));
	ending_begin(ranks.actors[1].pid, thread);
	cr_expect(eq(int, rank_run(&ranks, 0, await_next), -EINTR));
	ending_end(thread);
	actor_kill(&ranks.actors[1]);
	cr_assert(zero(int, kill(broker, SIGCONT)));
	cr_assert(zero(int, kill(chaos.daemon.pid, SIGCONT)));
	ranks_stop(&ranks);
	chaos_stop(&chaos);
}

Test(collective_restart, a_waiting_rank_is_interrupted_if_the_broker_has_died)
{
	interrupt_without_broker(SIGKILL);
}

Test(collective_restart, a_waiting_rank_is_interrupted_if_the_broker_hangs)
{
	interrupt_without_broker(SIGSTOP);
}
