/*
 * Tests reductions that ranks on host memory do themselves: how long a rank
 * waits for work that another has begun.
 */
#include "shm/board.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TIMEOUT_MS 5000

static const struct fsdp_param_spec PLAIN[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
};

static const struct layer LAYERS[] = {
	LAYER("plain", PLAIN),
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

/* Take the first piece of the first reduction, and do not do it. */
static int keep_piece(void)
{
	size_t size;
	struct board board = {
		.fd = -1, .n_ranks = 2, .page = crew_board(&size)};

	board_work_on(&board, rank_self(), 1);
	return pieces_take(board_pieces(&board, 1), 1, 1) == 0 ? 0 : -EIO;
}

/* Rank 1 hands in later than the time-out permits, but no rank waited for
 * it. */
Test(host_reduce, a_rank_that_hands_in_late_has_all_of_the_time_for_its_pieces)
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
