/*
 * Threads act as the ranks of a board. They meet at barriers as fast as they
 * can, with sleeps and yields in between, and check that the values that others
 * wrote before a barrier are there after it. They write plain words, so that a
 * barrier that orders nothing is a race for ThreadSanitizer, and a wrong number
 * on a CPU with weak ordering.
 *
 * In each round one thread comes late, so that the others fall asleep; a wake
 * that is lost leaves the run hanging. In the end one rank stays away, and the
 * run is declared over while the others sleep or are about to.
 */
#include "proto/error.h"
#include "shm/board.h"
#include "tests/stress/stress.h"
#include <sched.h>

#define N_RANKS    3
#define N_BARRIERS 20000
#define N_RUNS     200 /* short runs, each of which is ended */
#define SHORT      20

static struct board board;
/* plain on purpose; the two are used in turn */
static uint64_t written[2][N_RANKS];
static uint32_t n_barriers;
static atomic_ulong n_slept, n_over;
static bool is_short;

/* Returns false if the run is over. */
static bool meet(uint32_t rank, uint32_t number)
{
	const struct board_wait wait = {
		.board = &board,
		.rank = rank,
		.number = number,
		.is_over = look_over,
	};
	enum bell_outcome outcome;

	board_arrive(&board, rank, number);
	do
		outcome = board_wait(&board, &wait, INT64_MAX);
	while (outcome == BELL_AGAIN);
	return outcome == BELL_MET;
}

static void see_others(uint32_t round)
{
	for (uint32_t i = 0; i < N_RANKS; i++)
		check(written[round % 2][i] == round,
		      "a barrier let through who had not come");
}

static void *run(void *data)
{
	uint32_t rank = (uint32_t)(uintptr_t)data;

	for (uint32_t round = 1; round <= n_barriers; round++) {
		if (!is_short && round % 64 == rank)
			come_late();
		if (round % 16 == rank)
			sched_yield();
		written[round % 2][rank] = round;
		if (atomic_load_explicit(&board.page->barriers.sleepers,
					 memory_order_relaxed))
			atomic_fetch_add_explicit(&n_slept, 1,
						  memory_order_relaxed);
		if (!meet(rank, round)) {
			atomic_fetch_add(&n_over, 1);
			break;
		}
		see_others(round);
	}
	return NULL;
}

/* The last thread is the caller's. Threads from `n_ranks` on stay away. */
static void start(uint64_t number, uint32_t n_ranks)
{
	pthread_t threads[N_RANKS];
	struct error err = ERROR_NULL;

	check(board_create(&board, N_RANKS, number, &err) == 0, err.msg);
	atomic_store(&is_over, false);
	start_threads(threads, n_ranks, run);
	if (n_ranks < N_RANKS) {
		if (number % 2)
			come_late();
		atomic_store_explicit(&is_over, true, memory_order_seq_cst);
		bell_ring_always(&board.page->barriers);
	}
	join_threads(threads, n_ranks);
	board_close(&board);
}

int main(void)
{
	n_barriers = N_BARRIERS;
	/* A run without a sleep would prove nothing. */
	do {
		start(1, N_RANKS);
	} while (n_slept == 0);
	check(n_over == 0, "a run was over that nobody ended");
	is_short = true;
	n_barriers = SHORT;
	for (uint64_t number = 2; number < N_RUNS; number++)
		start(number, N_RANKS - 1);
	printf("%lu came while others slept; %lu told of an end\n", n_slept,
	       n_over);
	check(n_over == (N_RUNS - 2) * (N_RANKS - 1), "an end was missed");
	return 0;
}
