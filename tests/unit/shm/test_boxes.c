/* Tests boxes: counters that wrap around, calls, and how ranks are found for
 * which others wait. */
#include "shm/board.h"
#include "shm/boxes.h"
#include "tests/lib/check.h"
#include <string.h>

#define N_RANKS 3

static struct board board;

static void setup(void)
{
	cr_assert(zero(int, board_create(&board, N_RANKS, 1, NULL)));
}

static void teardown(void)
{
	board_close(&board);
}

TestSuite(boxes, .init = setup, .fini = teardown);

Test(boxes, rounds_before_the_first_are_over)
{
	for (uint32_t i = 0; i < BOX_SLOTS; i++)
		cr_expect(box_has(&board, 0, BOX_TAKEN, 0 - i));
	cr_expect(not(box_has(&board, 0, BOX_TAKEN, 1)));
}

Test(boxes, numbers_wrap)
{
	box_set(&board, 1, BOX_PUT, UINT32_MAX);
	cr_expect(box_has(&board, 1, BOX_PUT, UINT32_MAX - 1));
	cr_expect(not(box_has(&board, 1, BOX_PUT, 0)));
	box_set(&board, 1, BOX_PUT, 1);
	cr_expect(box_has(&board, 1, BOX_PUT, UINT32_MAX));
	cr_expect(not(box_has(&board, 1, BOX_TAKEN, 1)));
}

Test(boxes, ranks_that_have_not_put_are_missing)
{
	box_set(&board, 1, BOX_PUT, 5);
	cr_expect(eq(u64, boxes_missing(&board, 7, BOX_PUT, 5), 5));
	cr_expect(eq(u64, boxes_missing(&board, 3, BOX_PUT, 5), 1));
	cr_expect(eq(u64, boxes_missing(&board, 7, BOX_PUT, 6), 7));
}

Test(boxes, each_round_has_its_call_and_its_slot)
{
	struct box_call call = {.number = 7, .kind = 1, .sizes = {1, 2, 3}};
	struct box_call ret;

	box_set_call(&board, 2, 1, &call);
	call.number = 8;
	box_set_call(&board, 2, 2, &call);
	box_get_call(&board, 2, 1, &ret);
	cr_expect(eq(u32, ret.number, 7));
	cr_expect(eq(u64, ret.sizes[2], 3));
	memset(box_slot(&board, 2, 1), 1, BOX_SLOT_SIZE);
	memset(box_slot(&board, 2, 2), 2, BOX_SLOT_SIZE);
	cr_expect(eq(int, box_slot(&board, 2, 1)[BOX_SLOT_SIZE - 1], 1));
	box_get_call(&board, 2, 2, &ret);
	cr_expect(eq(u32, ret.number, 8));
}

static bool never(const void *data)
{
	(void)data;
	return false;
}

static enum bell_outcome wait_for(enum board_goal goal, uint32_t of)
{
	const struct board_wait wait = {.board = &board,
					.goal = goal,
					.number = 1,
					.of = of,
					.is_over = never};

	return board_wait(&board, &wait, 0);
}

Test(boxes, a_wait_for_one_rank_ends_only_if_that_rank_has_left)
{
	box_set(&board, 1, BOX_PUT, 1);
	cr_expect(eq(int, wait_for(BOARD_PUT, 1), BELL_MET));
	cr_expect(eq(int, wait_for(BOARD_PUT, 2), BELL_AGAIN));
	cr_expect(eq(int, wait_for(BOARD_TAKEN, 1), BELL_AGAIN));
	board_leave(&board, 2);
	cr_expect(eq(int, wait_for(BOARD_PUT, 2), BELL_OVER));
	board_leave(&board, 1);
	cr_expect(eq(int, wait_for(BOARD_PUT, 1), BELL_MET));
}
