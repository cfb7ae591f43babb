/*
 * Tests gathers on the board. All ranks have one order, a gather ends when all
 * ranks have ended it, and a buffer has one owner.
 */
#include "shm/board.h"
#include "shm/gathers.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define N_RANKS 2
#define STEP    7
#define SIZE    4096

static struct board board;

static void setup(void)
{
	cr_assert(zero(int, board_create(&board, N_RANKS, 1, NULL)));
}

static void teardown(void)
{
	board_close(&board);
}

TestSuite(gathers, .init = setup, .fini = teardown);

static enum gathers_begun begin(uint32_t rank, uint64_t number, uint32_t group)
{
	struct gathers_turn turn;

	return gathers_begin(&board, rank, number, group, &turn);
}

static void begin_all(uint64_t number, uint32_t group)
{
	for (uint32_t i = 0; i < N_RANKS; i++)
		cr_assert(eq(int, begin(i, number, group),
			     i ? GATHERS_SAME : GATHERS_FIRST));
}

static void end_all(uint64_t number, uint32_t group)
{
	for (uint32_t i = 0; i < N_RANKS; i++)
		gathers_end(&board, i, number, group);
}

static void choose_size(uint64_t number, uint32_t group, uint64_t size)
{
	cr_assert(gathers_lock(&board, 0));
	cr_assert(zero(int, gathers_choose(&board, number, group, size, STEP)));
	gathers_unlock(&board);
}

static struct gathers_fill find(uint64_t number, uint32_t group)
{
	struct gathers_fill fill = {0};

	cr_assert(eq(int, gathers_find(&board, number, group, &fill),
		     GATHERS_FOUND));
	return fill;
}

static struct gathers_fill choose(uint64_t number, uint32_t group)
{
	choose_size(number, group, SIZE);
	return find(number, group);
}

/* --- the order ----------------------------------------------------------- */

Test(gathers, the_first_rank_decides_which_group_is_next)
{
	struct gathers_turn turn;

	cr_expect(not(gathers_look(&board, 1, &turn)));
	cr_expect(eq(int, begin(1, 1, 5), GATHERS_FIRST));
	cr_expect(gathers_look(&board, 1, &turn));
	cr_expect(eq(u32, turn.rank, 1));
	cr_expect(eq(u32, turn.group, 5));
	cr_expect(
		eq(int, gathers_begin(&board, 0, 1, 6, &turn), GATHERS_OTHER));
	cr_expect(eq(u32, turn.rank, 1));
	cr_expect(eq(u32, turn.group, 5));
	cr_expect(eq(int, begin(0, 1, 5), GATHERS_SAME));
}

Test(gathers, a_rank_is_not_further_ahead_than_the_recorded_sequence)
{
	for (uint64_t n = 1; n < GATHERS_PLACES; n++)
		cr_assert(eq(int, begin(0, n, (uint32_t)n % 3), GATHERS_FIRST));
	for (uint64_t n = 1; n < GATHERS_AHEAD; n++) {
		cr_assert(eq(int, begin(0, GATHERS_PLACES, 0), GATHERS_IS_FAR));
		cr_assert(eq(int, begin(1, n, (uint32_t)n % 3), GATHERS_SAME));
	}
	cr_expect(eq(int, begin(0, GATHERS_PLACES, 0), GATHERS_IS_FAR));
	cr_expect(eq(int, begin(1, GATHERS_AHEAD, 2), GATHERS_SAME));
	for (uint64_t n = 0; n < GATHERS_AHEAD; n++)
		cr_assert(eq(int, begin(0, GATHERS_PLACES + n, 0),
			     GATHERS_FIRST));
	cr_expect(eq(int, begin(1, GATHERS_AHEAD + 1, 0), GATHERS_SAME));
}

Test(gathers, a_gather_is_over_when_all_ranks_have_resharded)
{
	begin_all(1, 4);
	cr_expect(eq(u64, gathers_open(&board, 1, 4), 3));
	gathers_end(&board, 1, 1, 4);
	cr_expect(eq(u64, gathers_open(&board, 1, 4), 1));
	gathers_end(&board, 0, 1, 4);
	cr_expect(zero(u64, gathers_open(&board, 1, 4)));
	cr_expect(eq(u64, gathers_open(&board, 2, 4), 3));
}

Test(gathers, all_reshard_to_the_same_mesh)
{
	uint32_t rank = 9, mesh = 9;

	cr_expect(gathers_set_mesh(&board, 1, 3, 0, 2, &rank, &mesh));
	cr_expect(gathers_set_mesh(&board, 0, 3, 0, 2, &rank, &mesh));
	cr_expect(not(gathers_set_mesh(&board, 0, 3, 0, 1, &rank, &mesh)));
	cr_expect(eq(u32, rank, 1));
	cr_expect(eq(u32, mesh, 2));
	cr_expect(not(gathers_set_mesh(&board, 0, 3, 0, 0, &rank, &mesh)));
	/* Here the first rank that reshards chooses no mesh. */
	cr_expect(gathers_set_mesh(&board, 0, 4, 0, 0, &rank, &mesh));
	gathers_end(&board, 0, 4, 0);
	cr_expect(not(gathers_set_mesh(&board, 1, 4, 0, 2, &rank, &mesh)));
	cr_expect(eq(u32, rank, 0));
	cr_expect(zero(u32, mesh));
}

/* Lets rank 1 reshard at the moment when rank 0 touches that page of the
 * board. */
static struct {
	void *page;
	size_t size;
	bool is_done;
} trap;

static void reshard_between(int signal)
{
	uint32_t rank, mesh;

	(void)signal;
	if (trap.is_done ||
	    mprotect(trap.page, trap.size, PROT_READ | PROT_WRITE) < 0)
		_exit(1);
	trap.is_done = gathers_set_mesh(&board, 1, 3, 0, 2, &rank, &mesh);
	gathers_end(&board, 1, 3, 0);
}

static void expect_same_mesh(const _Atomic uint64_t *word, int protection)
{
	const struct sigaction action = {.sa_handler = reshard_between};
	uint32_t rank, mesh;

	trap.size = (size_t)sysconf(_SC_PAGESIZE);
	trap.page = (void *)((uintptr_t)word & ~(trap.size - 1));
	trap.is_done = false;
	cr_assert(zero(int, sigaction(SIGSEGV, &action, NULL)));
	cr_assert(zero(int, mprotect(trap.page, trap.size, protection)));
	cr_expect(gathers_set_mesh(&board, 0, 3, 0, 2, &rank, &mesh));
	cr_assert(trap.is_done);
}

Test(gathers, another_rank_reshards_to_a_mesh_before_this_rank_reads_it)
{
	expect_same_mesh(&board.page->gathers.mesh[0], PROT_NONE);
}

Test(gathers, another_rank_reshards_to_a_mesh_before_this_rank_writes_it)
{
	expect_same_mesh(&board.page->gathers.mesh[0], PROT_READ);
}

Test(gathers, another_rank_reshards_to_a_mesh_before_this_rank_reads_the_ends)
{
	expect_same_mesh(&board.page->gathers.ended[1][0], PROT_NONE);
}

Test(gathers, a_rank_finds_the_commit_of_another_rank)
{
	uint32_t rank;

	cr_expect(not(gathers_find_commit(&board, 1, &rank)));
	gathers_commit(&board, 1, 1);
	cr_expect(gathers_find_commit(&board, 1, &rank));
	cr_expect(eq(u32, rank, 1));
	cr_expect(not(gathers_find_commit(&board, 2, &rank)));
	gathers_commit(&board, 1, 0);
	cr_expect(not(gathers_find_commit(&board, 1, &rank)));
}

/* --- memory -------------------------------------------------------------- */

Test(gathers, the_lock_is_held_by_one_rank_at_a_time)
{
	cr_expect(gathers_lock(&board, 1));
	cr_expect(eq(u32, gathers_locker(&board), 1));
	cr_expect(not(gathers_lock(&board, 0)));
	gathers_unlock(&board);
	cr_expect(eq(u32, gathers_locker(&board), UINT32_MAX));
	cr_expect(gathers_lock(&board, 0));
}

Test(gathers, all_ranks_find_the_buffer_that_one_rank_chose)
{
	struct gathers_fill fill, again;

	begin_all(1, 4);
	cr_expect(zero(int, gathers_find(&board, 1, 4, &fill)));
	fill = choose(1, 4);
	again = choose(1, 4);
	cr_expect(eq(u32, fill.buffer, again.buffer));
	cr_expect(eq(u32, fill.lap, again.lap));
	cr_expect(eq(u32, fill.version, again.version));
}

Test(gathers, a_buffer_is_given_to_another_group_after_its_gather)
{
	struct gathers_fill first, second, third;

	begin_all(1, 0);
	first = choose(1, 0);
	begin_all(2, 1);
	gathers_end(&board, 0, 1, 0);
	second = choose(2, 1);
	cr_expect(ne(u32, first.buffer, second.buffer));
	gathers_end(&board, 1, 1, 0);
	begin_all(3, 2);
	third = choose(3, 2);
	cr_expect(eq(u32, first.buffer, third.buffer));
	cr_expect(eq(u32, first.version, third.version));
	cr_expect(ne(u32, first.lap, third.lap));
}

Test(gathers, a_later_gather_shares_a_buffer_that_is_still_in_use)
{
	struct gathers_fill first, second, third;

	begin_all(1, 0);
	first = choose(1, 0);
	gathers_end(&board, 0, 1, 0);
	/* Rank 0 unshards again before rank 1 has resharded. */
	begin(0, 2, 0);
	second = choose(2, 0);
	cr_expect(eq(u32, first.buffer, second.buffer));
	cr_expect(eq(u32, first.lap, second.lap));
	/* The second gather still uses the memory, so the third must not get
	 * it. */
	gathers_end(&board, 1, 1, 0);
	begin(0, 3, 1);
	third = choose(3, 1);
	cr_expect(ne(u32, first.buffer, third.buffer));
	/* Rank 1 comes to the first gather, and finds its values in the buffer
	 * of the second. */
	cr_expect(eq(u32, find(1, 0).buffer, first.buffer));
	/* After both have ended, the next gather of the group must fill a
	 * buffer again. */
	begin(1, 2, 0);
	end_all(2, 0);
	begin(1, 3, 1);
	begin_all(4, 0);
	cr_expect(ne(u32, choose(4, 0).lap, first.lap));
}

Test(gathers, buffers_have_about_the_requested_size)
{
	struct gathers_fill small, large, again;

	begin_all(1, 0);
	small = choose(1, 0);
	end_all(1, 0);
	begin_all(2, 1);
	choose_size(2, 1, 3 * SIZE);
	large = find(2, 1);
	cr_expect(ne(u32, small.buffer, large.buffer));
	end_all(2, 1);
	begin_all(3, 2);
	choose_size(3, 2, 2 * SIZE);
	again = find(3, 2);
	cr_expect(eq(u32, again.buffer, large.buffer));
	cr_expect(eq(u32, again.version, large.version));
}

Test(gathers, a_buffer_kept_for_a_mesh_is_valid_until_the_next_step)
{
	struct gathers_fill first, second;

	begin_all(1, 0);
	first = choose(1, 0);
	cr_assert(gathers_lock(&board, 0));
	gathers_keep(&board, 1, 0, STEP);
	gathers_unlock(&board);
	end_all(1, 0);
	/* No other group gets the buffer, and the group itself can use it
	 * without gathering again. */
	begin_all(2, 1);
	cr_expect(ne(u32, choose(2, 1).buffer, first.buffer));
	begin_all(3, 0);
	second = choose(3, 0);
	cr_expect(eq(u32, second.buffer, first.buffer));
	cr_expect(eq(u32, second.lap, first.lap));
	/* The buffer was kept for one gather only. */
	end_all(3, 0);
	begin_all(4, 2);
	cr_expect(eq(u32, choose(4, 2).buffer, first.buffer));
}

/* The last gather of the group decides what is kept. A rank that reshards an
 * earlier one must not. */
Test(gathers, a_late_rank_keeps_no_buffer_of_a_later_gather)
{
	struct gathers_fill first;

	begin_all(1, 0);
	first = choose(1, 0);
	gathers_end(&board, 1, 1, 0);
	begin(1, 2, 0);
	(void)choose(2, 0);
	gathers_end(&board, 1, 2, 0);
	cr_assert(gathers_lock(&board, 0));
	gathers_keep(&board, 1, 0, STEP);
	gathers_unlock(&board);
	gathers_end(&board, 0, 1, 0);
	begin(0, 2, 0);
	gathers_end(&board, 0, 2, 0);
	begin_all(3, 1);
	cr_expect(eq(u32, choose(3, 1).buffer, first.buffer));
}

Test(gathers, a_kept_buffer_is_free_in_the_next_step)
{
	struct gathers_fill first;

	begin_all(1, 0);
	first = choose(1, 0);
	cr_assert(gathers_lock(&board, 0));
	gathers_keep(&board, 1, 0, STEP - 1);
	gathers_unlock(&board);
	end_all(1, 0);
	begin_all(2, 1);
	cr_expect(eq(u32, choose(2, 1).buffer, first.buffer));
}

Test(gathers, retired_buffers_get_other_memory)
{
	struct gathers_fill used, idle, next;

	begin_all(1, 0);
	used = choose(1, 0);
	begin_all(2, 1);
	idle = choose(2, 1);
	end_all(2, 1);
	cr_assert(gathers_lock(&board, 0));
	gathers_retire(&board);
	gathers_unlock(&board);
	cr_expect(eq(u32, gathers_version(&board, used.buffer), used.version));
	cr_expect(ne(u32, gathers_version(&board, idle.buffer), idle.version));
	begin_all(3, 1);
	next = choose(3, 1);
	cr_expect(eq(u32, next.buffer, idle.buffer));
	cr_expect(gt(u32, next.version, idle.version));
}

Test(gathers, invalid_words_are_ignored)
{
	struct gathers_page *page = &board.page->gathers;
	struct gathers_fill fill;
	struct gathers_turn turn;

	/* The buffer is invalid. */
	page->filling[0] = UINT64_C(9) << 16 | UINT16_MAX;
	cr_expect(eq(int, gathers_find(&board, 1, 0, &fill), -EPROTO));
	gathers_keep(&board, 9, 0, STEP);
	cr_expect(zero(int, gathers_choose(&board, 10, 0, SIZE, STEP)));
	/* The board claims more buffers than there are, all of them in use by
	 * no group. */
	board.page->gathers_lock.n_buffers = UINT32_MAX;
	for (uint32_t i = 0; i < GATHERS_BUFFERS; i++) {
		page->buffers[i].group = UINT32_MAX;
		page->buffers[i].last = 1;
	}
	page->filling[0] = 0;
	cr_expect(eq(int, gathers_choose(&board, 1, 0, SIZE, STEP), -EPROTO));
	gathers_retire(&board);
	/* The entry of the order belongs to another gather. */
	page->order[1] = UINT64_MAX;
	cr_expect(
		eq(int, gathers_begin(&board, 0, 1, 0, &turn), GATHERS_OTHER));
	cr_expect(lt(u32, turn.rank, GATHERS_RANKS));
	cr_expect(lt(u32, turn.group, GATHERS_GROUPS));
}
