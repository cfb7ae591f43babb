/*
 * Tests the list of gathers alone: order, lateness, and the limiter's tickets.
 * No gather starts, so the tests need no memory and no engine.
 */
#include "broker/broker.h"
#include "broker/comm/gather.h"
#include "broker/comm/gather_late.h"
#include "broker/comm/gather_progress.h"
#include "broker/comm/group.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <string.h>

#define N_GROUPS 4

static struct broker broker;
static struct comm comm;
static struct group groups[N_GROUPS];
static struct error err;

static void setup_with(enum comm_limiter form)
{
	struct limiter_options options = {
		.kind = form == COMM_LIMITER_FSDP1 ? LIMITER_FSDP1
						   : LIMITER_WINDOW,
		.limit = 2,
	};

	/* Because the loop is stopping, nothing defers work to it. */
	broker.base.loop.is_stopping = true;
	broker_link(&broker);
	comm = (struct comm){
		.comms = &broker.comms,
		.state = COMM_RUNNING,
		.n_world = 2,
		.n_ranks = 2,
		.ranks = {{.rank = 0, .is_placed = true},
			  {.rank = 1, .is_placed = true}},
		.n_shards = 2,
		.n_inputs = 8,
		.timeout_ms = 1000,
		.key = "//comm/1",
		.name = "test",
		.asked.limiter = form,
	};
	cr_assert(zero(int, limiter_new(&options, &comm.limiter, NULL)));
	for (uint32_t i = 0; i < N_GROUPS; i++) {
		groups[i] = (struct group){
			.comm = &comm,
			.id = i + 1,
			.is_ready = true,
			.step = 1,
			.plan = {.n_shards = 2,
				 .n_replicas = 1,
				 .full_size = 64,
				 .input_size = 64},
			.next = i + 1 < N_GROUPS ? &groups[i + 1] : NULL,
		};
		groups[i].name[0] = (char)('a' + i);
	}
	comm.first_group = groups;
	err = ERROR_NULL;
}

static void setup(void)
{
	setup_with(COMM_LIMITER_WINDOW);
}

/* Does the set-up of one test again, with the other limiter. */
static void setup_faithful(void)
{
	limiter_free(comm.limiter);
	setup_with(COMM_LIMITER_FSDP1);
}

static void teardown(void)
{
	gathers_free(&comm);
	limiter_free(comm.limiter);
}

TestSuite(unshard, .init = setup, .fini = teardown);

static int start(uint32_t rank, uint32_t group)
{
	uint64_t sequence;

	return gather_start(&groups[group], rank, &sequence, &err);
}

static int stop(uint32_t rank, uint32_t group)
{
	return gather_stop(&groups[group], rank, 0, &err);
}

static struct limiter_state limiter(void)
{
	struct limiter_state state;

	limiter_state(comm.limiter, &state);
	return state;
}

static struct gather *last(void)
{
	return gather_of(comm.gathers.last);
}

static void set_done(struct gather *gather)
{
	gather->state = GATHER_DONE;
	gather->call.waits_since_ms = 0;
}

#define assert_says(what)                                                      \
	cr_assert(ne(ptr, strstr(err.msg, (what)), NULL), "%s", err.msg)

Test(unshard, the_next_gather_of_a_rank_is_the_first_that_it_has_not_started)
{
	cr_assert(eq(int, start(0, 0), 0));
	cr_assert(eq(int, start(0, 1), 0));
	cr_assert(eq(int, start(1, 1), -EINVAL));
	cr_assert(eq(int, start(1, 0), 0));
	cr_assert(eq(int, start(1, 2), -EINVAL));
	cr_assert(eq(int, start(1, 1), 0));
	cr_assert(eq(int, start(1, 2), 0));
	cr_assert(eq(int, start(0, 3), -EINVAL));
}

Test(unshard, a_rank_may_unshard_twice_before_another_rank_has_unsharded_once)
{
	uint64_t first, second;

	cr_assert(eq(int, gather_start(&groups[0], 0, &first, &err), 0));
	cr_assert(eq(int, stop(0, 0), 0));
	cr_assert(eq(int, gather_start(&groups[0], 0, &second, &err), 0));
	cr_assert(eq(u64, second, first + 1));
	cr_assert(eq(int, gather_start(&groups[0], 1, &second, &err), 0));
	cr_assert(eq(u64, second, first));
}

Test(unshard, a_rank_that_is_too_far_ahead_is_refused)
{
	for (int i = 0; i < GATHER_MAX; i++) {
		cr_assert(eq(int, start(0, 0), 0));
		cr_assert(eq(int, stop(0, 0), 0));
	}
	cr_assert(eq(int, start(0, 0), -EBUSY));
	cr_assert(eq(int, start(1, 0), 0));
	cr_assert(eq(int, stop(1, 0), 0));
	cr_assert(eq(int, start(0, 0), 0));
}

Test(unshard, a_gather_that_all_ranks_have_resharded_is_removed)
{
	cr_assert(eq(int, start(0, 0), 0));
	cr_assert(eq(int, start(1, 0), 0));
	cr_assert(eq(int, stop(0, 0), 0));
	cr_assert(eq(u32, limiter().n_in_flight, 1));
	cr_assert(eq(int, stop(0, 0), -EINVAL));
	cr_assert(eq(int, stop(1, 0), 0));
	cr_assert(eq(u32, limiter().n_in_flight, 0));
	cr_assert(eq(ptr, comm.gathers.first, NULL));
	cr_assert(eq(ptr, comm.gathers.last, NULL));
}

Test(unshard, a_running_gather_counts_as_in_flight_after_all_have_resharded)
{
	cr_assert(eq(int, start(0, 0), 0));
	cr_assert(eq(int, start(1, 0), 0));
	gathers_first(&comm)->state = GATHER_RUNNING;
	cr_assert(eq(int, stop(0, 0), 0));
	cr_assert(eq(int, stop(1, 0), 0));
	cr_assert(eq(u32, limiter().n_in_flight, 1));
	gathers_on_commit(&comm);
	cr_assert(eq(u32, limiter().n_in_flight, 0));
	cr_assert(eq(ptr, comm.gathers.first, NULL));
}

Test(unshard, the_first_reshard_queues_an_event_that_the_last_completes,
     .init = setup_faithful)
{
	/* case 1, by ranks: U3 waits on E1 */
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(eq(int, start(0, i), 0));
		cr_assert(eq(int, start(1, i), 0));
		set_done(last());
	}
	cr_assert(eq(int, stop(0, 0), 0));
	cr_assert(eq(int, stop(0, 1), 0));
	cr_assert(eq(u32, limiter().n_events, 2));
	cr_assert(eq(int, start(0, 2), 0));
	cr_assert(eq(u32, limiter().n_waiting, 1));
	cr_assert(eq(u32, limiter().n_events, 1));
	cr_assert(eq(int, stop(1, 0), 0));
	cr_assert(eq(u32, limiter().n_waiting, 0));
}

/* --- lateness ------------------------------------------------------------ */

Test(unshard, a_gather_that_all_ranks_have_started_has_no_deadline)
{
	cr_assert(eq(u64, calls_deadline(&comm.gathers, &comm), UINT64_MAX));
	cr_assert(eq(int, start(0, 0), 0));
	set_done(gathers_first(&comm));
	cr_assert(eq(u64, calls_deadline(&comm.gathers, &comm),
		     comm.gathers.first->since_ms + 1000));
	cr_assert(eq(int, start(1, 0), 0));
	cr_assert(eq(u64, calls_deadline(&comm.gathers, &comm), UINT64_MAX));
}

Test(unshard, a_rank_is_late_only_for_its_next_gather)
{
	struct gather *a, *b;

	cr_assert(eq(int, start(0, 0), 0));
	cr_assert(eq(int, start(0, 1), 0));
	a = gathers_first(&comm);
	b = gather_next(a);
	set_done(a);
	set_done(b);
	a->call.since_ms = 5000;
	b->call.since_ms = 4000;
	cr_assert(eq(u64, calls_deadline(&comm.gathers, &comm), 6000));
	gathers_describe_late(&comm, &err);
	assert_says("rank 1 has not unsharded 'a'");
	/* The rank's time for this gather begins when it has started the
	 * previous one. */
	cr_assert(eq(int, start(1, 0), 0));
	cr_assert(gt(u64, b->call.since_ms, 4000));
	cr_assert(eq(u64, calls_deadline(&comm.gathers, &comm),
		     b->call.since_ms + 1000));
}

Test(unshard, a_rank_that_blocks_the_limiter_is_late)
{
	struct gather *third;

	for (uint32_t i = 0; i < 3; i++) {
		cr_assert(eq(int, start(0, i), 0));
		cr_assert(eq(int, start(1, i), 0));
		if (i < 2)
			set_done(last());
	}
	third = last();
	cr_assert(eq(int, stop(1, 0), 0));
	third->call.waits_since_ms = 1;
	cr_assert(eq(u64, calls_deadline(&comm.gathers, &comm), 1001));
	gathers_describe_late(&comm, &err);
	assert_says("until 'a' is resharded, which rank 0");
	/* Any reshard restarts the wait. */
	cr_assert(eq(int, stop(0, 0), 0));
	cr_assert(gt(u64, third->call.waits_since_ms, 1));
}

/* The worker's time-out ends the wait for other nodes. */
Test(unshard, a_gather_that_waits_for_another_node_has_no_deadline)
{
	cr_assert(zero(int, catalog_create(&broker.store.catalog, &err)));
	comm.is_on_devices = true;
	comm.n_world = 3;
	groups[0].is_comparing = true; /* The worker was asked. */
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(zero(int, start(0, i)));
		cr_assert(zero(int, start(1, i)));
	}
	gathers_progress(&comm);
	cr_expect(eq(int, (int)last()->state, GATHER_WANTS_ROOM));
	cr_expect(eq(u64, calls_deadline(&comm.gathers, &comm), UINT64_MAX));
}

/* --- commits ------------------------------------------------------------- */

Test(unshard, a_commit_is_refused_while_the_rank_has_open_or_missing_gathers)
{
	cr_assert(eq(int, start(0, 0), 0));
	cr_assert(eq(int, gathers_check_commit(&comm, 0, &err), -EBUSY));
	cr_assert(eq(int, gathers_check_commit(&comm, 1, &err), -EINVAL));
	cr_assert(eq(int, stop(0, 0), 0));
	cr_assert(eq(int, gathers_check_commit(&comm, 0, &err), 0));
	cr_assert(eq(int, start(1, 0), 0));
	cr_assert(eq(int, stop(1, 0), 0));
	cr_assert(eq(int, gathers_check_commit(&comm, 1, &err), 0));
}

Test(unshard, no_gather_is_started_while_a_commit_is_pending)
{
	comm.committing = 2;
	cr_assert(eq(int, start(0, 0), -EINVAL));
	assert_says("commit step 2 next");
}
