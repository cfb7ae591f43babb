/*
 * Tests that a rank on a device which waits for another rank is told of its
 * death: before the kernel reports it if the rank waits in the library, and if
 * it waits in the driver, NCCL is aborted.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/device.h"
#include "tests/lib/ending.h"
#include "tests/lib/trainer.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {6, 4}}},
};
static const struct layer LAYERS[] = {
	{.name = "layer", .params = PARAMS, .n = 1},
};

static struct daemon daemon_;
static struct ranks ranks;
static struct fsdp_client *client; /* of the test */
static pid_t thread;               /* of rank 1 */
static char plan[64];              /* where rank 1 stops */

static void setup(void)
{
	struct fsdp_connect_options connect = {0};

	daemon_start(&daemon_);
	(void)snprintf(plan, sizeof(plan), "%s/plan", daemon_.dir);
	connect.path = daemon_socket(&daemon_);
	cr_assert(zero(int, fsdp_connect(&connect, &client)));
}

static void teardown(void)
{
	ranks_stop(&ranks);
	fsdp_close(client);
	daemon_stop(&daemon_);
}

TestSuite(device_ending, .init = setup, .fini = teardown, .timeout = 300);

/* There is nothing to unshard before the first commit. */
static int join_and_commit(void)
{
	int r = trainer_join();

	return r < 0 ? r : trainer_commit();
}

static void start(enum fsdp_executor executor)
{
	crew_set(&(struct crew){
		.daemon = &daemon_,
		.comm = "test",
		/* No rank is told because it has waited for too long. */
		.options = {.executor = executor, .timeout_ms = 3600000},
		.layers = LAYERS,
		.n_layers = 1,
	});
	ranks_start(&ranks, 2);
	thread = rank_run(&ranks, 1, ending_thread);
}

static void start_and_commit(enum fsdp_executor executor)
{
	int r;

	start(executor);
	r = ranks_run(&ranks, join_and_commit);
	cr_assert(zero(int, r), "%s", ranks.notes[0].sentence);
}

static int unshard(void)
{
	return trainer_unshard(0);
}

static int reduce(void)
{
	static const struct fsdp_reduce_options defaults;

	return trainer_reduce(0, 0, &defaults, true);
}

/* Rank 0 runs the function already. */
static void end_rank_1(void)
{
	ending_begin(ranks.actors[1].pid, thread);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "died");
	cr_assert(zero(u64, status_value(client, "dead_sessions")));
	ending_end(thread);
	actor_kill(&ranks.actors[1]);
}

/* The broker knows that rank 1 has not begun to unshard. */
Test(device_ending, a_rank_that_waits_for_a_call_is_told)
{
	start_and_commit(FSDP_EXECUTOR_RANK);
	actor_begin(&ranks.actors[0], unshard);
	end_rank_1();
}

/* The request of the rank is parked until rank 1 hands in its gradients. */
Test(device_ending, a_rank_that_waits_for_the_broker_is_told)
{
	start_and_commit(FSDP_EXECUTOR_WORKER);
	actor_begin(&ranks.actors[0], reduce);
	end_rank_1();
}

static int plan_to_stop(void)
{
	return setenv("FSDP_STOP_PLAN", plan, 1);
}

/* Rank 1 stops at the failpoint the next time that it passes it. */
static void stop_rank_1_at(const char *point)
{
	if (!chaos_has_points())
		cr_skip_test("built without points");
	must(rank_run(&ranks, 1, plan_to_stop) == 0);
	plan_death(plan, point, 1);
}

static void await_stop(void)
{
	while (!plan_is_done(plan))
		nap_ms(1);
	plan_drop(plan);
}

/* Rank 1 has joined, and NCCL waits for it. */
Test(device_ending, a_rank_that_waits_for_nccl_is_told)
{
	start(FSDP_EXECUTOR_RANK);
	stop_rank_1_at("client.comm_join.received");
	ranks_begin(&ranks, trainer_join);
	await_stop();
	end_rank_1();
}

/* --- waits in the driver ---------------------------------------------------
 */

static CUstream stream; /* of rank 0 */

/* Enqueue a gather for which NCCL waits for rank 1, and work behind it. */
static int unshard_on(void)
{
	int r = trainer_begin(0);

	stream = stream_make(gpu_nth(0));
	return r < 0 ? r : fsdp_wait_on(&trainer()->works[0], stream, -1);
}

/* This needs no request, since the gather is enqueued. */
static int wait_again(void)
{
	return rank_note(fsdp_wait_on(&trainer()->works[0], stream, -1));
}

static int synchronize(void)
{
	return stream_finish(stream) ? 0 : -EIO;
}

/* NCCL notices no death, and waits for rank 1, which is stopped before its
 * first gather. Rank 0 runs the function meanwhile. */
static void begin_beside_stopped_rank(actor_fn *prepare, actor_fn *fn)
{
	setenv("FAKENCCL_DEAF", "1", 1);
	start_and_commit(FSDP_EXECUTOR_RANK);
	stop_rank_1_at("client.wait.received");
	actor_begin(&ranks.actors[1], unshard);
	if (prepare)
		cr_assert(zero(int, rank_run(&ranks, 0, prepare)));
	actor_begin(&ranks.actors[0], fn);
	await_stop();
}

Test(device_ending, a_rank_that_synchronizes_its_stream_is_released)
{
	/* Without this the rank would wait in the gather. */
	setenv("NCCL_RUNTIME_CONNECT", "0", 1);
	begin_beside_stopped_rank(unshard_on, synchronize);
	actor_kill(&ranks.actors[1]);
	cr_expect(zero(int, actor_end(&ranks.actors[0])));
	cr_expect(eq(int, rank_run(&ranks, 0, wait_again), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "died");
}

static void close_in_child(void *unused)
{
	(void)unused;
	(void)fsdp_close(trainer()->client);
}

static int fork_and_close(void)
{
	return child_wait(child_start(close_in_child, NULL));
}

Test(device_ending, a_forked_child_can_close_the_connection)
{
	start_and_commit(FSDP_EXECUTOR_RANK);
	cr_expect(zero(int, rank_run(&ranks, 0, fork_and_close)));
}

Test(device_ending, a_rank_that_waits_for_its_first_gather_to_connect_is_told)
{
	begin_beside_stopped_rank(NULL, unshard);
	actor_kill(&ranks.actors[1]);
	cr_expect(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "died");
}
