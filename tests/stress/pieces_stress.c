/*
 * Threads act as the ranks of a board. They reduce as fast as they can, by
 * tickets over pieces, and check that every sum is that of this step's inputs.
 * Inputs and sums are plain words, so that a reduction that orders nothing is a
 * race for ThreadSanitizer, and a wrong number on a CPU with weak ordering.
 * Places and tickets are used in turn, so that laps meet.
 *
 * In each round one thread comes late, so that the others fall asleep. In the
 * short runs one rank stays away, or takes a piece that it never ends, and the
 * run is declared over while the others sleep or are about to.
 */
#include "proto/error.h"
#include "shm/board.h"
#include "tests/stress/stress.h"
#include <sched.h>

#define N_RANKS      3
#define N_PIECES     4
#define N_REDUCTIONS 20000
#define N_RUNS       200 /* short runs, each of which is ended */
#define SHORT        20

static struct board board;
static uint64_t inputs[N_RANKS][N_PIECES], sums[N_PIECES]; /* plain */
static uint32_t n_reductions;
static atomic_ulong n_over, n_shared;
static bool is_short;

/* Returns false if the run is over. */
static bool await(uint32_t rank, enum board_goal goal, uint32_t number)
{
	const struct board_wait wait = {
		.board = &board,
		.rank = rank,
		.goal = goal,
		.number = number,
		.n_pieces = N_PIECES,
		.is_over = look_over,
	};
	enum bell_outcome outcome;

	do
		outcome = board_wait(&board, &wait, INT64_MAX);
	while (outcome == BELL_AGAIN);
	return outcome == BELL_MET;
}

static void reduce(uint32_t i)
{
	uint64_t sum = 0;

	for (uint32_t rank = 0; rank < N_RANKS; rank++)
		sum += inputs[rank][i];
	sums[i] = sum;
}

static uint32_t take_pieces(uint32_t rank, uint32_t number)
{
	struct pieces *pieces = board_pieces(&board, number);
	uint32_t i, n = 0;

	board_work_on(&board, rank, number);
	while ((i = pieces_take(pieces, number, N_PIECES)) != PIECES_NONE) {
		reduce(i);
		n++;
		if (pieces_end_one(pieces, number, N_PIECES))
			bell_ring(&board.page->reductions);
	}
	board_work_on(&board, rank, 0);
	return n;
}

static void hand_in(uint32_t rank, uint32_t number)
{
	const struct board_input input = {.group = number,
					  .n_pieces = N_PIECES};

	for (uint32_t i = 0; i < N_PIECES; i++)
		inputs[rank][i] = (uint64_t)number * (rank + 1) + i;
	board_hand_in(&board, rank, number, &input);
}

static void see_inputs(uint32_t number)
{
	struct board_input input;

	for (uint32_t rank = 0; rank < N_RANKS; rank++)
		check(board_input(&board, rank, number, &input) &&
			      input.group == number &&
			      input.n_pieces == N_PIECES,
		      "a cell is not what was handed in");
}

static bool do_one(uint32_t rank, uint32_t number)
{
	uint32_t n;

	hand_in(rank, number);
	if (!await(rank, BOARD_INPUTS, number))
		return false;
	see_inputs(number);
	n = take_pieces(rank, number);
	if (n > 0 && n < N_PIECES)
		atomic_fetch_add_explicit(&n_shared, 1, memory_order_relaxed);
	if (!await(rank, BOARD_REDUCED, number))
		return false;
	/* No thread writes them again before this rank has handed in. */
	for (uint32_t i = 0; i < N_PIECES; i++)
		check(sums[i] == (uint64_t)number * 6 + 3 * i,
		      "a sum is not of this step");
	return true;
}

static void *run(void *data)
{
	uint32_t rank = (uint32_t)(uintptr_t)data;

	for (uint32_t number = 1; number <= n_reductions; number++) {
		if (!is_short && number % 64 == rank)
			come_late();
		if (number % 16 == rank)
			sched_yield();
		if (!do_one(rank, number)) {
			atomic_fetch_add(&n_over, 1);
			break;
		}
	}
	return NULL;
}

/* This rank dies after it has handed in, and perhaps begun a piece. */
static void die(uint64_t run)
{
	hand_in(N_RANKS - 1, 1);
	if (run % 2 && await(N_RANKS - 1, BOARD_INPUTS, 1))
		(void)pieces_take(board_pieces(&board, 1), 1, N_PIECES);
	if (run % 3 == 0)
		come_late();
	atomic_store_explicit(&is_over, true, memory_order_seq_cst);
	bell_ring_always(&board.page->reductions);
}

/* The last thread is the caller's. It dies if it is not one of `n_ranks`. */
static void start(uint64_t number, uint32_t n_ranks)
{
	pthread_t threads[N_RANKS];
	struct error err = ERROR_NULL;

	check(board_create(&board, N_RANKS, number, &err) == 0, err.msg);
	atomic_store(&is_over, false);
	start_threads(threads, n_ranks, run);
	if (n_ranks < N_RANKS)
		die(number);
	join_threads(threads, n_ranks);
	board_close(&board);
}

int main(void)
{
	n_reductions = N_REDUCTIONS;
	/* A run without shared pieces would prove nothing. */
	do {
		start(1, N_RANKS);
	} while (n_shared == 0);
	check(n_over == 0, "a run was over that nobody ended");
	is_short = true;
	n_reductions = SHORT;
	for (uint64_t number = 2; number < N_RUNS; number++)
		start(number, N_RANKS - 1);
	printf("%lu times pieces of a reduction were shared; %lu told of an "
	       "end\n",
	       n_shared, n_over);
	check(n_over == (N_RUNS - 2) * (N_RANKS - 1), "an end was missed");
	return 0;
}
