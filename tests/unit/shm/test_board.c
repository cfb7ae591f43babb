/*
 * Tests which files are boards, how missing ranks are found, and numbers that
 * wrap around.
 */
#include "shm/board.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define RUN UINT64_C(77)

static struct board make(uint32_t n_ranks)
{
	struct board board = BOARD_NULL;

	cr_assert(zero(int, board_create(&board, n_ranks, RUN, NULL)));
	return board;
}

static int try_open(const struct board *made, uint32_t n_ranks, uint64_t run)
{
	struct board board = BOARD_NULL;
	int r = board_open(&board, dup(made->fd), n_ranks, run, NULL);

	board_close(&board);
	return r;
}

static bool never(const void *data)
{
	(void)data;
	return false;
}

static enum bell_outcome look(struct board *board, uint32_t number)
{
	const struct board_wait wait = {
		.board = board, .number = number, .is_over = never};

	return board_wait(board, &wait, 0);
}

Test(board, only_the_board_of_this_run_is_opened)
{
	struct board made = make(2);

	cr_expect(zero(int, memcmp(made.page, "FSDPBRD1", 8)));
	cr_expect(zero(int, try_open(&made, 2, RUN)));
	/* It has another size. */
	cr_expect(eq(int, try_open(&made, 3, RUN), -EINVAL));
	cr_expect(eq(int, try_open(&made, 2, RUN + 1), -EPROTO));
	made.page->version++;
	cr_expect(eq(int, try_open(&made, 2, RUN), -EPROTO));
	made.page->version--;
	made.page->magic++;
	cr_expect(eq(int, try_open(&made, 2, RUN), -EPROTO));
	board_close(&made);
}

Test(board, a_file_of_another_size_is_not_opened)
{
	struct board board = BOARD_NULL;
	int fd;

	cr_assert(zero(int, memfd_create_sealed("small", 4096,
						MEMFD_SEAL_CLOSED, &fd, NULL)));
	cr_expect(lt(int, board_open(&board, fd, 2, RUN, NULL), 0));
	cr_expect(eq(int, fcntl(fd, F_GETFD), -1));
}

Test(board, both_mappings_show_which_ranks_are_missing)
{
	struct board broker = make(3), rank = BOARD_NULL;

	cr_assert(zero(int, board_open(&rank, dup(broker.fd), 3, RUN, NULL)));
	cr_expect(eq(u64, board_missing(&broker, 1), 7));
	board_arrive(&rank, 0, 1);
	board_arrive(&rank, 2, 1);
	cr_expect(eq(u64, board_missing(&broker, 1), 2));
	cr_expect(eq(int, look(&rank, 1), BELL_AGAIN));
	board_arrive(&rank, 1, 1);
	cr_expect(zero(u64, board_missing(&broker, 1)));
	cr_expect(eq(int, look(&rank, 1), BELL_MET));
	/* A rank that has arrived at a later point has passed this one. */
	board_arrive(&rank, 1, 2);
	cr_expect(eq(int, look(&rank, 1), BELL_MET));
	cr_expect(eq(u64, board_missing(&rank, 2), 5));
	board_close(&rank);
	board_close(&broker);
}

Test(board, a_rank_that_left_ends_only_waits_for_barriers_it_did_not_reach)
{
	struct board board = make(2);

	board_arrive(&board, 0, 1);
	board_arrive(&board, 1, 1);
	board_leave(&board, 1);
	cr_expect(eq(int, look(&board, 1), BELL_MET));
	board_arrive(&board, 0, 2);
	cr_expect(eq(int, look(&board, 2), BELL_OVER));
	cr_expect(eq(u64, board_left(&board, board_missing(&board, 2)), 2));
	board_close(&board);
}

Test(board, numbers_wrap)
{
	struct board board = make(2);

	for (uint32_t n = UINT32_MAX - 2; n != 3; n++) {
		cr_expect(eq(u64, board_missing(&board, n),
			     n == UINT32_MAX - 2 ? 0 : 3));
		board_arrive(&board, 0, n);
		cr_expect(ne(int, look(&board, n + 1), BELL_MET));
		board_arrive(&board, 1, n);
		cr_expect(eq(int, look(&board, n), BELL_MET));
	}
	board_close(&board);
}

/* --- reductions ---------------------------------------------------------- */

#define N_PIECES 2

static const struct board_input INPUT = {
	.group = 5,
	.flags = 3,
	.factor = UINT64_C(0x4000000000000000),
	.input = {.slot = 8, .generation = 9},
	.n_pieces = N_PIECES,
};

static enum bell_outcome look_for(struct board *board, enum board_goal goal,
				  uint32_t number)
{
	const struct board_wait wait = {
		.board = board,
		.goal = goal,
		.number = number,
		.n_pieces = N_PIECES,
		.is_over = never,
	};

	return board_wait(board, &wait, 0);
}

static void reduce_all(struct board *board, uint32_t number)
{
	struct pieces *pieces = board_pieces(board, number);

	while (pieces_take(pieces, number, N_PIECES) != PIECES_NONE)
		(void)pieces_end_one(pieces, number, N_PIECES);
}

Test(board, a_cell_has_the_input_of_its_rank)
{
	struct board board = make(2);
	struct board_input input;

	cr_expect(not(board_input(&board, 1, 1, &input)));
	board_hand_in(&board, 1, 1, &INPUT);
	cr_assert(board_input(&board, 1, 1, &input));
	cr_expect(eq(u64, input.group, 5));
	cr_expect(eq(u32, input.flags, 3));
	cr_expect(eq(u64, input.factor, INPUT.factor));
	cr_expect(eq(u32, input.input.slot, 8));
	cr_expect(eq(u64, input.input.generation, 9));
	cr_expect(eq(u32, input.n_pieces, N_PIECES));
	cr_expect(not(board_input(&board, 0, 1, &input)));
	cr_expect(not(board_input(&board, 1, 2, &input)));
	board_close(&board);
}

/* The cell's number is that of a later reduction. A rank cannot get that far
 * while another one still reads the cell. */
Test(board, a_cell_that_was_used_again_has_no_earlier_input)
{
	struct board board = make(2);
	struct board_input input;

	board_hand_in(&board, 1, 1, &INPUT);
	board_hand_in(&board, 1, 1 + BOARD_REDUCTIONS, &INPUT);
	cr_expect(not(board_input(&board, 1, 1, &input)));
	board_close(&board);
}

Test(board, a_reduction_has_all_inputs_and_then_is_done)
{
	struct board board = make(2);

	board_hand_in(&board, 0, 1, &INPUT);
	cr_expect(eq(u64, board_missing_inputs(&board, 1), 2));
	cr_expect(eq(int, look_for(&board, BOARD_INPUTS, 1), BELL_AGAIN));
	board_hand_in(&board, 1, 1, &INPUT);
	cr_expect(eq(int, look_for(&board, BOARD_INPUTS, 1), BELL_MET));
	cr_expect(eq(int, look_for(&board, BOARD_REDUCED, 1), BELL_AGAIN));
	board_work_on(&board, 1, 1);
	cr_expect(eq(u64, board_working(&board, 1), 2));
	reduce_all(&board, 1);
	board_work_on(&board, 1, 0);
	cr_expect(eq(int, look_for(&board, BOARD_REDUCED, 1), BELL_MET));
	board_close(&board);
}

Test(board, a_rank_that_left_ends_only_waits_for_its_missing_inputs)
{
	struct board board = make(2);

	board_hand_in(&board, 0, 1, &INPUT);
	board_hand_in(&board, 1, 1, &INPUT);
	board_leave(&board, 1);
	cr_expect(eq(int, look_for(&board, BOARD_INPUTS, 1), BELL_MET));
	cr_expect(eq(int, look_for(&board, BOARD_REDUCED, 1), BELL_AGAIN));
	reduce_all(&board, 1);
	board_hand_in(&board, 0, 2, &INPUT);
	cr_expect(eq(int, look_for(&board, BOARD_INPUTS, 2), BELL_OVER));
	board_close(&board);
}

/* --- for sentences and inspection ---------------------------------------- */

Test(board, a_name_that_ranks_write_is_made_printable)
{
	struct board board = make(2);
	char name[BOARD_NAME_TEXT];

	cr_expect(
		zero(int, strcmp(board_name_rank(&board, 1, name), "rank 1")));
	board_set_name(&board, 1, 77, "trainer");
	cr_expect(zero(int, strcmp(board_name_rank(&board, 1, name),
				   "rank 1 (pid 77, trainer)")));
	memset(board.page->names[1].command, '\n',
	       sizeof(board.page->names[1].command));
	(void)board_name_rank(&board, 1, name);
	cr_expect(eq(ptr, strchr(name, '\n'), NULL));
	cr_expect(eq(sz, strlen(name), strlen("rank 1 (pid 77, )") + 27));
	board_close(&board);
}

Test(board, reductions_are_counted_by_group)
{
	struct board board = make(2);

	board_count_reduced(&board, 3);
	board_count_reduced(&board, 3);
	cr_expect(eq(u32, board_reduced(&board, 3), 2));
	cr_expect(zero(u32, board_reduced(&board, 2)));
	board_close(&board);
}

Test(board, gathers_are_counted_by_group)
{
	struct board board = make(2);

	board_count_gathered(&board, 3);
	board_count_gathered(&board, 3);
	cr_expect(eq(u32, board_gathered(&board, 3), 2));
	cr_expect(zero(u32, board_gathered(&board, 2)));
	cr_expect(zero(u32, board_reduced(&board, 3)));
	board_close(&board);
}
