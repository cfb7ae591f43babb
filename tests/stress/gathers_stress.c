/*
 * Threads act as the ranks of a board that gather. They begin groups in one
 * order, choose buffers, copy pieces, look at whole groups, and reshard, each
 * at its own pace, with at most two gathers that are not over. They copy plain
 * words, so that a buffer that is given away too early, or a piece that is
 * counted too early, is a race for ThreadSanitizer and a wrong value anywhere.
 * A wake that is lost leaves the run hanging.
 */
#include "proto/error.h"
#include "shm/board.h"
#include "shm/gathers.h"
#include "tests/stress/stress.h"
#include <sched.h>

#define N_RANKS   3
#define N_GROUPS  5
#define N_GATHERS 10000
#define N_PIECES  4
#define WINDOW    2
#define WORDS     8 /* of a piece */
/* All groups have different sizes, so that every rule for choosing buffers
 * applies. */
#define MAX_BUFFERS 64

static struct board board;
static uint64_t memory[MAX_BUFFERS][N_PIECES][WORDS]; /* plain on purpose */
static atomic_ulong n_filled, n_slept;

struct wait {
	uint64_t number;
	uint32_t group;
	struct pieces *pieces;
	uint32_t lap;
};

static uint32_t group_of(uint64_t number)
{
	return (uint32_t)(number * 7 / 3) % N_GROUPS;
}

/* All ranks reshard to the same mesh, or all of them to none. */
static uint32_t mesh_of(uint64_t number)
{
	return (uint32_t)number % 3;
}

static bool is_admitted(const void *data)
{
	const struct wait *wait = data;
	uint64_t n = wait->number, first = n > 64 ? n - 64 : 1;
	uint32_t n_open = 0;

	for (uint64_t i = first; i < n; i++)
		n_open += gathers_open(&board, i, group_of(i)) != 0;
	return n_open < WINDOW;
}

static bool is_unlocked(const void *data)
{
	(void)data;
	return gathers_locker(&board) == UINT32_MAX;
}

static bool is_whole(const void *data)
{
	const struct wait *wait = data;

	return pieces_are_done(wait->pieces, wait->lap, N_PIECES);
}

static void wait_for(bell_look_fn *look, const struct wait *wait)
{
	const struct bell_wait how = {look, look_over, look_over, wait};

	if (atomic_load_explicit(&board.page->gathering.sleepers,
				 memory_order_relaxed))
		atomic_fetch_add_explicit(&n_slept, 1, memory_order_relaxed);
	while (!look(wait))
		(void)bell_wait(&board.page->gathering, &how, INT64_MAX);
}

/* All ranks take the same step: a group's parameters are its number. */
static struct gathers_fill choose(uint32_t rank, const struct wait *wait)
{
	struct gathers_fill fill;

	while (gathers_find(&board, wait->number, wait->group, &fill) !=
	       GATHERS_FOUND) {
		if (!gathers_lock(&board, rank)) {
			wait_for(is_unlocked, wait);
			continue;
		}
		check(gathers_choose(&board, wait->number, wait->group,
				     UINT64_C(1000) << wait->group, 1) == 0,
		      "no buffer");
		gathers_unlock(&board);
	}
	check(fill.buffer < MAX_BUFFERS, "more buffers than are in use");
	return fill;
}

static void fill_pieces(const struct wait *wait, uint32_t buffer)
{
	uint32_t i;

	while ((i = pieces_take(wait->pieces, wait->lap, N_PIECES)) !=
	       PIECES_NONE) {
		for (uint32_t k = 0; k < WORDS; k++)
			memory[buffer][i][k] = wait->group + 1;
		if (!pieces_end_one(wait->pieces, wait->lap, N_PIECES))
			continue;
		atomic_fetch_add(&n_filled, 1);
		bell_ring(&board.page->gathering);
	}
}

static void see(uint32_t buffer, uint32_t group)
{
	for (uint32_t i = 0; i < N_PIECES; i++) {
		for (uint32_t k = 0; k < WORDS; k++)
			check(memory[buffer][i][k] == group + 1,
			      "a group is not whole");
	}
}

static void reshard(uint32_t rank, const struct wait *wait)
{
	uint32_t other, mesh;

	check(gathers_set_mesh(&board, rank, wait->number, wait->group,
			       mesh_of(wait->number), &other, &mesh),
	      "the mesh is another");
	gathers_end(&board, rank, wait->number, wait->group);
}

static void gather(uint32_t rank, uint64_t number)
{
	struct wait wait = {.number = number, .group = group_of(number)};
	struct gathers_fill fill;
	struct gathers_turn turn;

	check(gathers_begin(&board, rank, number, wait.group, &turn) <=
		      GATHERS_SAME,
	      "the order is another");
	wait_for(is_admitted, &wait);
	fill = choose(rank, &wait);
	wait.pieces = gathers_pieces(&board, fill.buffer);
	wait.lap = fill.lap;
	fill_pieces(&wait, fill.buffer);
	wait_for(is_whole, &wait);
	see(fill.buffer, wait.group);
	if ((number + rank) % 16 == 0)
		sched_yield();
	see(fill.buffer, wait.group);
	reshard(rank, &wait);
}

static void *run(void *data)
{
	for (uint64_t n = 1; n <= N_GATHERS; n++)
		gather((uint32_t)(uintptr_t)data, n);
	return NULL;
}

static void start(void)
{
	pthread_t threads[N_RANKS];
	struct error err = ERROR_NULL;

	check(board_create(&board, N_RANKS, 1, &err) == 0, err.msg);
	n_filled = 0;
	start_threads(threads, N_RANKS, run);
	join_threads(threads, N_RANKS);
	printf("%d gathers, %lu filled, %u buffers, %lu came while others "
	       "slept\n",
	       N_GATHERS, n_filled, board.page->gathers_lock.n_buffers,
	       n_slept);
	check(n_filled > 0 && n_filled <= N_GATHERS, "filled too often");
	board_close(&board);
}

int main(void)
{
	/* A run without a sleep would prove nothing. */
	do {
		start();
	} while (n_slept == 0);
	return 0;
}
