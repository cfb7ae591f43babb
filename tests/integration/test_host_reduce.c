/*
 * Tests reductions that ranks on host memory do themselves: how long a rank
 * waits for work that another rank has begun, that no rank waits for ever after
 * a rank dies at any point, and how much work fsdp_test() does.
 */
#include "shm/board.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <errno.h>
#include <string.h>

#define TIMEOUT_MS 5000

static const struct fsdp_param_spec PLAIN[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
};

/* This parameter is large enough for several pieces in a reduction by two
 * ranks. */
static const struct fsdp_param_spec LARGE[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {256, 256}}},
};

static const struct layer LAYERS[] = {
	LAYER("plain", PLAIN),
};
static const struct layer LARGE_LAYERS[] = {
	LAYER("large", LARGE),
};

static const struct crew CREW = {
	.options = {.timeout_ms = TIMEOUT_MS}, .layers = LAYERS, .n_layers = 1};

CHECKED_SUITE(host_reduce, crew_setup, crew_teardown, .timeout = 300);

static int hand_in(void)
{
	struct trainer *self = trainer();
	int r = trainer_fill_input(0, 0);

	return r < 0 ? r
		     : rank_note(fsdp_reduce(self->groups[0], NULL,
					     &self->works[0]));
}

static int look(void)
{
	return rank_note(fsdp_wait(&trainer()->works[0], 0));
}

static int wait_for_it(void)
{
	return rank_note(fsdp_wait(&trainer()->works[0], -1));
}

static int test0(void)
{
	return rank_note(fsdp_test(&trainer()->works[0]));
}

/* Take the next piece of the first reduction, but do not do it. */
static int keep_piece(void)
{
	size_t size;
	struct board board = {
		.fd = -1, .n_ranks = 2, .page = crew_board(&size)};

	board_work_on(&board, rank_self(), 1);
	(void)pieces_take(board_pieces(&board, 1), 1, UINT32_MAX);
	return 0;
}

/* --- deaths -------------------------------------------------------------- */

static int reduce_until_told(void)
{
	struct trainer *self = trainer();
	int r;

	do {
		r = fsdp_input(self->groups[0], -1);
		if (r == 0)
			r = fsdp_reduce(self->groups[0], NULL, &self->works[0]);
		if (r == 0)
			r = fsdp_wait(&self->works[0], -1);
	} while (r == 0);
	return rank_note(r);
}

/* The points are: the rank is about to hand in, and has handed in; has a piece,
 * before and after the sums are written; has counted the piece; is counted as a
 * sleeper; is about to wake the others. */
static void kill_at_each_point(const char *held_at)
{
	static const struct crew crew = {.layers = LARGE_LAYERS, .n_layers = 1};
	static const char *const points[] = {
		"board.filled",        "board.handed_in",
		"pieces.opened",       "host_reduce.taken",
		"host_reduce.written", "host_reduce.counted",
		"bell.counted",        "bell.bumped"};
	uint32_t n_held = 0;

	if (!chaos_has_points())
		cr_skip_test("built without points");
	for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
		crew_start_mortal(3, &crew);
		n_held += expect_death_is_told(
			&(struct death){points[i], held_at ? 1 : 3, held_at},
			reduce_until_told);
	}
	cr_assert(!held_at || n_held > 0);
}

Test(host_reduce, a_sleeping_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point(NULL);
}

Test(host_reduce, a_spinning_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point(SPINNING);
}

Test(host_reduce, a_summing_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point("host_reduce.taken");
}

/* --- without waiting ----------------------------------------------------- */

/* Returns how many pieces of the first reduction were taken. */
static uint32_t n_taken(void)
{
	size_t size;
	struct board board = {
		.fd = -1, .n_ranks = 2, .page = crew_board(&size)};

	return (uint32_t)atomic_load(&board_pieces(&board, 1)->next);
}

/* Each call takes one piece. The last one finds that all are done. */
static int test_piece_by_piece(void)
{
	uint32_t n = 0;
	int r;

	do {
		r = test0();
		if (n_taken() != ++n)
			return -EIO;
	} while (r == -EAGAIN);
	return r == 0 && n < 2 ? -EIO : r;
}

Test(host_reduce, testing_a_reduction_does_one_piece)
{
	struct crew crew = CREW;

	crew.layers = LARGE_LAYERS;
	crew_start(2, &crew);
	cr_assert(zero(int, rank_run(&ranks, 0, hand_in)));
	cr_assert(eq(int, rank_run(&ranks, 0, test0), -EAGAIN));
	assert_says(0, "rank 1 (pid ");
	cr_assert(zero(int, rank_run(&ranks, 1, hand_in)));
	cr_assert(zero(int, rank_run(&ranks, 0, test_piece_by_piece)));
	cr_assert(zero(int, rank_run(&ranks, 1, test0)));
}

/* --- time-outs ----------------------------------------------------------- */

/* Rank 1 hands in after the time-out, but no rank was waiting for it. The time
 * for its pieces begins when it hands in. */
Test(host_reduce, a_rank_that_submits_late_has_the_full_time_for_its_pieces)
{
	crew_start(2, &CREW);
	cr_assert(zero(int, rank_run(&ranks, 0, hand_in)));
	nap_ms(TIMEOUT_MS);
	cr_assert(zero(int, rank_run(&ranks, 1, hand_in)));
	cr_assert(zero(int, rank_run(&ranks, 1, keep_piece)));
	cr_assert(eq(int, rank_run(&ranks, 0, look), -ETIMEDOUT));
	assert_says(0, "'plain' is still being reduced");
	cr_assert(eq(int, rank_run(&ranks, 0, wait_for_it), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "has not done its part of the reduction of 'plain' "
		       "within 5000 ms");
	expect_memory_back();
}

/* Returns the result of the first call that finds no piece to take. */
static int test_until_all_are_taken(void)
{
	uint32_t n;
	int r;

	do {
		n = n_taken();
		r = test0();
	} while (r == -EAGAIN && n_taken() > n);
	return r;
}

/* Rank 0 does pieces for longer than the time-out. The time for rank 1 begins
 * when rank 0 has to wait. */
Test(host_reduce, a_rank_that_tests_for_long_leaves_others_the_full_time)
{
	struct crew crew = CREW;

	crew.layers = LARGE_LAYERS;
	crew_start(2, &crew);
	cr_assert(zero(int, ranks_run(&ranks, hand_in)));
	cr_assert(eq(int, rank_run(&ranks, 0, test0), -EAGAIN));
	nap_ms(TIMEOUT_MS);
	cr_assert(zero(int, rank_run(&ranks, 1, keep_piece)));
	cr_assert(eq(int, rank_run(&ranks, 0, test_until_all_are_taken),
		     -EAGAIN));
	assert_says(0, "'large' is still being reduced");
}
