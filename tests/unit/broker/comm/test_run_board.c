/*
 * Tests which runs get a board, and that the end of a run wakes ranks that
 * sleep on its board.
 */
#include "broker/comm/comm.h"
#include "broker/comm/run_board.h"
#include "broker/comm/run_record.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/broker_fixture.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

static struct comm comm;
static atomic_bool is_over;

static void setup(void)
{
	broker_set_up();
	comm = (struct comm){.comms = &broker->comms,
			     .id = 7,
			     .n_world = 2,
			     .n_ranks = 2,
			     .verdict = 1,
			     .uid = 1000,
			     .name = "a"};
}

static void teardown(void)
{
	run_board_close(&comm);
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_BYTES)));
}

TestSuite(run_board, .init = setup, .fini = teardown, .timeout = 300);

static int get(int *ret_fd, const char *says)
{
	struct error err = ERROR_NULL;
	int r = run_board_fd(&comm, ret_fd, &err);

	if (r < 0)
		cr_expect(ne(ptr, strstr(err.msg, says), NULL), "%s", err.msg);
	return r;
}

Test(run_board, is_the_same_for_all_ranks_of_its_run)
{
	int first = -1, second = -1;

	cr_assert(zero(int, get(&first, "")));
	cr_assert(zero(int, get(&second, "")));
	cr_expect(eq(int, first, second));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_BYTES), board_memory(2)));
	cr_expect(eq(u64, comm.board.page->run, 7));
}

Test(run_board, is_refused_without_a_verdict_and_for_several_nodes)
{
	int fd;

	comm.verdict = 0;
	cr_expect(eq(int, get(&fd, "4087 communicators"), -EOPNOTSUPP));
	comm.verdict = 1;
	comm.n_world = 3;
	cr_expect(eq(int, get(&fd, "several nodes"), -EOPNOTSUPP));
	cr_expect(zero(ptr, comm.board.page));
}

/* The run could go on after a restart of the broker. */
static void make_lasting(void)
{
	struct run_record *record;

	comm.run = catalog_alloc(&broker->store.catalog, SECTION_RUN);
	record = run_record_of(&comm);
	record->direct = COMM_DIRECT_ALL;
}

Test(run_board, outlives_the_broker_up_to_a_maximum_number_of_boards)
{
	static struct comm others[RUN_BOARDS_KEPT];
	int fd;

	make_lasting();
	for (uint32_t i = 0; i < RUN_BOARDS_KEPT; i++) {
		others[i].is_board_kept = true;
		others[i].next = broker->comms.first;
		broker->comms.first = &others[i];
	}
	cr_assert(zero(int, get(&fd, "")));
	cr_expect(not(comm.is_board_kept));
	cr_expect(run_record_of(&comm)->is_shown);
	others[0].is_board_kept = false;
	cr_assert(zero(int, get(&fd, "")));
	cr_expect(comm.is_board_kept);
	broker->comms.first = NULL;
}

#ifdef FSDP_TEST_POINTS
Test(run_board, is_not_charged_if_it_cannot_be_created)
{
	int fd;

	setenv("FSDP_FAIL_AT", "memfd.create:1:24", 1); /* 24 is EMFILE */
	cr_expect(eq(int, get(&fd, "cannot create memfd"), -EMFILE));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_BYTES)));
}
#endif

static bool look_over(const void *data)
{
	(void)data;
	return atomic_load(&is_over);
}

struct sleeper {
	enum board_goal goal;
	enum bell_outcome outcome;
	pthread_t thread;
};

static void *wait_for_end(void *data)
{
	struct sleeper *sleeper = data;
	const struct board_wait wait = {.board = &comm.board,
					.goal = sleeper->goal,
					.number = 1,
					.n_pieces = 1,
					.is_over = look_over};

	do
		sleeper->outcome = board_wait(&comm.board, &wait, INT64_MAX);
	while (sleeper->outcome == BELL_AGAIN);
	return NULL;
}

static void start(struct sleeper *sleeper, const struct bell *bell)
{
	cr_assert(zero(int, pthread_create(&sleeper->thread, NULL, wait_for_end,
					   sleeper)));
	while (atomic_load(&bell->sleepers) == 0)
		sched_yield();
}

static void expect_over(struct sleeper *sleeper)
{
	cr_assert(zero(int, pthread_join(sleeper->thread, NULL)));
	cr_expect(eq(int, sleeper->outcome, BELL_OVER));
}

Test(run_board, a_ring_wakes_all_sleepers_of_a_run_that_is_over)
{
	struct sleeper at_barrier = {.goal = BOARD_BARRIER};
	struct sleeper at_reduction = {.goal = BOARD_INPUTS};
	struct sleeper at_box = {.goal = BOARD_PUT};
	int fd;

	run_board_ring(&comm); /* there is no board yet */
	cr_assert(zero(int, get(&fd, "")));
	start(&at_barrier, &comm.board.page->barriers);
	start(&at_reduction, &comm.board.page->reductions);
	start(&at_box, &comm.board.boxes[0].put_bell);
	atomic_store(&is_over, true);
	run_board_ring(&comm);
	expect_over(&at_barrier);
	expect_over(&at_reduction);
	expect_over(&at_box);
}
