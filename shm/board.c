#include "shm/board.h"
#include "proto/error.h"
#include "proto/point.h"
#include "shm/memfd.h"
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define BOARD_MAGIC   UINT64_C(0x3144524250445346) /* "FSDPBRD1" */
#define BOARD_VERSION 1
#define BOARD_SIZE    LAYOUT_PAGE_SIZE
#define NO_CPU        (-1)

_Static_assert(offsetof(struct board_page, version) == 8, "layout");
_Static_assert(offsetof(struct board_page, n_ranks) == 12, "layout");
_Static_assert(offsetof(struct board_page, run) == 16, "layout");
_Static_assert(offsetof(struct board_page, barriers) == 64, "layout");
_Static_assert(offsetof(struct bell, sleepers) == 4, "layout");
_Static_assert(offsetof(struct board_page, ranks) == 128, "layout");
_Static_assert(offsetof(struct board_rank, cpu) == 4, "layout");
_Static_assert(offsetof(struct board_rank, has_left) == 8, "layout");
_Static_assert(sizeof(struct board_rank) == 64, "a line for each rank");
_Static_assert(sizeof(struct board_page) == 4224, "layout");
_Static_assert(sizeof(struct board_page) <= BOARD_SIZE, "layout");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "words are shared by processes");
_Static_assert(BOARD_RANKS <= 64, "a mask has them all");

/* --- the file ------------------------------------------------------------ */

static int map(struct board *board, struct error *err)
{
	void *at;
	int r = memfd_map(board->fd, BOARD_SIZE, true, &at, err);

	if (r < 0)
		return error_wrap(err, r, "board");
	board->page = at;
	return 0;
}

int board_create(struct board *ret, uint32_t n_ranks, uint64_t run,
		 struct error *err)
{
	struct board board = {.fd = -1, .n_ranks = n_ranks};
	int r = memfd_create_sealed("fsdp-board", BOARD_SIZE, MEMFD_SEAL_CLOSED,
				    &board.fd, err);

	if (r == 0)
		r = map(&board, err);
	if (r < 0) {
		board_close(&board);
		return r;
	}
	board.page->magic = BOARD_MAGIC;
	board.page->version = BOARD_VERSION;
	board.page->n_ranks = n_ranks;
	board.page->run = run;
	for (uint32_t i = 0; i < BOARD_RANKS; i++)
		atomic_init(&board.page->ranks[i].cpu, NO_CPU);
	*ret = board;
	return 0;
}

static int check(const struct board *board, uint64_t run, struct error *err)
{
	const struct board_page *page = board->page;

	if (page->magic == BOARD_MAGIC && page->version == BOARD_VERSION &&
	    page->n_ranks == board->n_ranks && page->run == run)
		return 0;
	return error_set(err, -EPROTO,
			 "this is no board of run %llu with %u ranks; broker "
			 "and library must be of one version",
			 (unsigned long long)run, board->n_ranks);
}

int board_open(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
	       struct error *err)
{
	struct board board = {.fd = fd, .n_ranks = n_ranks};
	int r = memfd_check(fd, BOARD_SIZE, NULL, err);

	if (r == 0)
		r = map(&board, err);
	if (r == 0)
		r = check(&board, run, err);
	if (r == 0 && madvise(board.page, BOARD_SIZE, MADV_DONTFORK) < 0)
		r = error_errno(err, -errno, "keep the board from children");
	if (r < 0) {
		board_close(&board);
		return r;
	}
	/* The mapping is all that a rank needs. */
	(void)close(board.fd);
	board.fd = -1;
	*ret = board;
	return 0;
}

void board_close(struct board *board)
{
	if (board->page)
		(void)munmap(board->page, BOARD_SIZE);
	if (board->fd >= 0)
		(void)close(board->fd);
	*board = BOARD_NULL;
}

/* --- barriers ------------------------------------------------------------ */

/* seq_cst: one half of the argument in bell.h. */
static bool has_come(const struct board *board, uint32_t rank, uint32_t number)
{
	uint32_t arrived = atomic_load_explicit(
		&board->page->ranks[rank].arrived, memory_order_seq_cst);

	return (int32_t)(arrived - number) >= 0;
}

uint64_t board_missing(const struct board *board, uint32_t number)
{
	uint64_t missing = 0;

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if (!has_come(board, i, number))
			missing |= UINT64_C(1) << i;
	}
	return missing;
}

uint64_t board_left(const struct board *board, uint64_t ranks)
{
	uint64_t left = 0;

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if ((ranks >> i & 1) &&
		    atomic_load_explicit(&board->page->ranks[i].has_left,
					 memory_order_seq_cst))
			left |= UINT64_C(1) << i;
	}
	return left;
}

void board_arrive(struct board *board, uint32_t rank, uint32_t number)
{
	atomic_store_explicit(&board->page->ranks[rank].arrived, number,
			      memory_order_seq_cst);
	point("board.arrived");
	/* Of several that come at once, the last sees that all have. */
	if (!board_missing(board, number))
		bell_ring(&board->page->barriers);
}

void board_leave(struct board *board, uint32_t rank)
{
	atomic_store_explicit(&board->page->ranks[rank].has_left, 1,
			      memory_order_seq_cst);
	bell_ring(&board->page->barriers);
}

static bool is_met(const void *data)
{
	const struct board_wait *wait = data;

	for (uint32_t i = 0; i < wait->board->n_ranks; i++) {
		if (!has_come(wait->board, i, wait->number))
			return false;
	}
	return true;
}

static bool is_over(const void *data)
{
	const struct board_wait *wait = data;
	const struct board *board = wait->board;

	return wait->is_over(wait->data) ||
	       board_left(board, board_missing(board, wait->number));
}

/* relaxed, here and below: where a rank runs is a hint. */
static void tell_cpu(const struct board *board, uint32_t rank, int32_t cpu)
{
	_Atomic int32_t *word = &board->page->ranks[rank].cpu;

	/* Others read it: a store only if it is another one. */
	if (atomic_load_explicit(word, memory_order_relaxed) != cpu)
		atomic_store_explicit(word, cpu, memory_order_relaxed);
}

static bool is_beside(const void *data)
{
	const struct board_wait *wait = data;
	const struct board *board = wait->board;
	int32_t cpu = sched_getcpu();

	tell_cpu(board, wait->rank, cpu);
	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if (i != wait->rank && !has_come(board, i, wait->number) &&
		    atomic_load_explicit(&board->page->ranks[i].cpu,
					 memory_order_relaxed) == cpu)
			return true;
	}
	return false;
}

enum bell_outcome board_wait(struct board *board, const struct board_wait *wait,
			     int64_t until_ns)
{
	const struct bell_wait how = {is_met, is_over, is_beside, wait};
	enum bell_outcome outcome;

	if (is_met(wait))
		return BELL_MET;
	outcome = bell_wait(&board->page->barriers, &how, until_ns);
	tell_cpu(board, wait->rank, sched_getcpu());
	return outcome;
}
