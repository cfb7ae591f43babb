#include "shm/board.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define BOARD_MAGIC   UINT64_C(0x3144524250445346) /* "FSDPBRD1" */
#define BOARD_VERSION 7
#define NO_CPU        (-1)

_Static_assert(offsetof(struct board_page, version) == 8, "layout");
_Static_assert(offsetof(struct board_page, n_ranks) == 12, "layout");
_Static_assert(offsetof(struct board_page, run) == 16, "layout");
_Static_assert(offsetof(struct board_page, recalls) == 24, "layout");
_Static_assert(offsetof(struct board_page, barriers) == 64, "layout");
_Static_assert(offsetof(struct bell, sleepers) == 4, "layout");
_Static_assert(offsetof(struct board_page, ranks) == 128, "layout");
_Static_assert(offsetof(struct board_rank, cpu) == 4, "layout");
_Static_assert(offsetof(struct board_rank, has_left) == 8, "layout");
_Static_assert(sizeof(struct board_rank) == 64, "a line for each rank");
_Static_assert(offsetof(struct board_page, reductions) == 4224, "layout");
_Static_assert(offsetof(struct board_page, pieces) == 8192, "layout");
_Static_assert(offsetof(struct pieces, done) == 8, "layout");
_Static_assert(sizeof(struct pieces) == 64, "a line for each reduction");
_Static_assert(offsetof(struct board_page, names) == 12288, "layout");
_Static_assert(sizeof(struct board_name) == 32, "layout");
_Static_assert(offsetof(struct board_page, n_reduced) == 16384, "layout");
_Static_assert(offsetof(struct board_page, n_gathered) == 20480, "layout");
_Static_assert(offsetof(struct board_page, works) == 24576, "layout");
_Static_assert(sizeof(struct board_work) == 64, "a line for each rank");
_Static_assert(offsetof(struct board_page, cells) == 65536, "layout");
_Static_assert(offsetof(struct board_cell, flags) == 4, "layout");
_Static_assert(offsetof(struct board_cell, group) == 8, "layout");
_Static_assert(offsetof(struct board_cell, factor) == 16, "layout");
_Static_assert(offsetof(struct board_cell, generation) == 24, "layout");
_Static_assert(offsetof(struct board_cell, slot) == 32, "layout");
_Static_assert(offsetof(struct board_cell, n_pieces) == 36, "layout");
_Static_assert(sizeof(struct board_cell) == 64, "a line for each cell");
_Static_assert(offsetof(struct board_page, gathering) == 4288, "layout");
_Static_assert(offsetof(struct board_page, gathers_lock) == 4352, "layout");
_Static_assert(offsetof(struct board_page, gathers) == 327680, "layout");
_Static_assert(sizeof(struct board_page) == 1048576, "layout");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "words are shared by processes");
_Static_assert(BOARD_RANKS <= 64, "a mask has them all");

/* --- the file ------------------------------------------------------------ */

static size_t size_of(uint32_t n_ranks)
{
	return sizeof(struct board_page) + n_ranks * sizeof(struct box);
}

static int map(struct board *board, struct error *err)
{
	void *at;
	int r = memfd_map(board->fd, size_of(board->n_ranks), true, &at, err);

	if (r < 0)
		return error_wrap(err, r, "cannot map the board");
	board->page = at;
	board->boxes = (void *)(board->page + 1);
	return 0;
}

int board_create(struct board *ret, uint32_t n_ranks, uint64_t run,
		 struct error *err)
{
	struct board board = {.fd = -1, .n_ranks = n_ranks};
	int r = memfd_create_sealed("fsdp-board", size_of(n_ranks),
				    MEMFD_SEAL_CLOSED, &board.fd, err);

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
			 "the file is not the board of run %llu with %u ranks; "
			 "install broker and library of the same version",
			 (unsigned long long)run, board->n_ranks);
}

int board_adopt(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
		struct error *err)
{
	struct board board = {.fd = fd, .n_ranks = n_ranks};
	int r = memfd_check(fd, size_of(n_ranks), NULL, err);

	if (r == 0)
		r = map(&board, err);
	if (r == 0)
		r = check(&board, run, err);
	if (r == 0 && madvise(board.page, size_of(n_ranks), MADV_DONTFORK) < 0)
		r = error_errno(err, -errno,
				"cannot hide the board from forked processes");
	if (r < 0) {
		board_close(&board);
		return r;
	}
	*ret = board;
	return 0;
}

int board_open(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
	       struct error *err)
{
	int r = board_adopt(ret, fd, n_ranks, run, err);

	if (r < 0)
		return r;
	/* a rank needs only the mapping */
	(void)close(ret->fd);
	ret->fd = -1;
	return 0;
}

/* Only this result is rounded, because a later broker compares size_of() with
 * the size of the file. */
uint64_t board_memory(uint32_t n_ranks)
{
	return (size_of(n_ranks) + HUGE_PAGE_SIZE - 1) & ~(HUGE_PAGE_SIZE - 1);
}

void board_close(struct board *board)
{
	if (board->page)
		(void)munmap(board->page, size_of(board->n_ranks));
	if (board->fd >= 0)
		(void)close(board->fd);
	*board = BOARD_NULL;
}

/* --- barriers ------------------------------------------------------------ */

/* seq_cst: see bell.h */
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
	failpoint("board.arrived");
	/* If several ranks arrive at once, the last of them sees that all have
	 * arrived. */
	if (!board_missing(board, number))
		bell_ring(&board->page->barriers);
}

void board_leave(struct board *board, uint32_t rank)
{
	atomic_store_explicit(&board->page->ranks[rank].has_left, 1,
			      memory_order_seq_cst);
	bell_ring(&board->page->barriers);
	bell_ring(&board->page->reductions);
	bell_ring(&board->page->gathering);
	box_ring(board, rank);
}

/* --- reductions ---------------------------------------------------------- */

static struct board_cell *cell_of(const struct board *board, uint32_t rank,
				  uint32_t number)
{
	return &board->page->cells[rank][number % BOARD_REDUCTIONS];
}

/* Returns the number of the reduction to which the cell belongs. seq_cst: see
 * bell.h */
static uint32_t number_in(const struct board_cell *cell)
{
	return atomic_load_explicit(&cell->number, memory_order_seq_cst);
}

/* relaxed: the number publishes the other values. */
void board_hand_in(struct board *board, uint32_t rank, uint32_t number,
		   const struct board_input *input)
{
	struct board_cell *cell = cell_of(board, rank, number);
	const memory_order relaxed = memory_order_relaxed;

	atomic_store_explicit(&cell->flags, input->flags, relaxed);
	atomic_store_explicit(&cell->group, input->group, relaxed);
	atomic_store_explicit(&cell->factor, input->factor, relaxed);
	atomic_store_explicit(&cell->generation, input->input.generation,
			      relaxed);
	atomic_store_explicit(&cell->slot, input->input.slot, relaxed);
	atomic_store_explicit(&cell->n_pieces, input->n_pieces, relaxed);
	failpoint("board.filled");
	atomic_store_explicit(&cell->number, number, memory_order_seq_cst);
	failpoint("board.handed_in");
	if (!board_missing_inputs(board, number))
		bell_ring(&board->page->reductions);
}

bool board_input(const struct board *board, uint32_t rank, uint32_t number,
		 struct board_input *ret)
{
	const struct board_cell *cell = cell_of(board, rank, number);
	const memory_order relaxed = memory_order_relaxed;
	bool is_there = number_in(cell) == number;

	*ret = (struct board_input){
		.group = atomic_load_explicit(&cell->group, relaxed),
		.flags = atomic_load_explicit(&cell->flags, relaxed),
		.factor = atomic_load_explicit(&cell->factor, relaxed),
		.input = {atomic_load_explicit(&cell->slot, relaxed),
			  atomic_load_explicit(&cell->generation, relaxed)},
		.n_pieces = atomic_load_explicit(&cell->n_pieces, relaxed),
	};
	return is_there;
}

void board_work_on(struct board *board, uint32_t rank, uint32_t number)
{
	/* release: a rank that sees the new number sees all that this rank
	 * wrote to the pieces before */
	atomic_store_explicit(&board->page->works[rank].number, number,
			      memory_order_release);
}

uint64_t board_missing_inputs(const struct board *board, uint32_t number)
{
	uint64_t missing = 0;

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		uint32_t last = number_in(cell_of(board, i, number));

		if ((int32_t)(last - number) < 0)
			missing |= UINT64_C(1) << i;
	}
	return missing;
}

uint64_t board_working(const struct board *board, uint32_t number)
{
	uint64_t working = 0;

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if (atomic_load_explicit(&board->page->works[i].number,
					 memory_order_acquire) == number)
			working |= UINT64_C(1) << i;
	}
	return working;
}

void board_count_reduced(struct board *board, uint32_t index)
{
	_Atomic uint32_t *n = &board->page->n_reduced[index % BOARD_GROUPS];

	/* relaxed: the counter has one writer and orders no other accesses */
	atomic_store_explicit(n,
			      atomic_load_explicit(n, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

uint32_t board_reduced(const struct board *board, uint32_t index)
{
	return atomic_load_explicit(
		&board->page->n_reduced[index % BOARD_GROUPS],
		memory_order_relaxed);
}

/* Two gathers of a group can end in two ranks at the same time, so the
 * increment is atomic. */
void board_count_gathered(const struct board *board, uint32_t index)
{
	atomic_fetch_add_explicit(
		&board->page->n_gathered[index % BOARD_GROUPS], 1,
		memory_order_relaxed);
}

uint32_t board_gathered(const struct board *board, uint32_t index)
{
	return atomic_load_explicit(
		&board->page->n_gathered[index % BOARD_GROUPS],
		memory_order_relaxed);
}

/* Both accesses are relaxed: a rank that sees the recall late only returns
 * memory late. */
void board_recall(struct board *board)
{
	atomic_fetch_add_explicit(&board->page->recalls, 1,
				  memory_order_relaxed);
}

uint32_t board_recalls(const struct board *board)
{
	return atomic_load_explicit(&board->page->recalls,
				    memory_order_relaxed);
}

/* --- names --------------------------------------------------------------- */

void board_set_name(struct board *board, uint32_t rank, uint32_t pid,
		    const char *command)
{
	struct board_name *name = &board->page->names[rank];

	name->pid = pid;
	(void)snprintf(name->command, sizeof(name->command), "%s", command);
}

const char *board_name_rank(const struct board *board, uint32_t rank,
			    char ret[BOARD_NAME_TEXT])
{
	/* Ranks can write the name, so it may have any bytes and no end. */
	struct board_name name = board->page->names[rank];

	name.command[sizeof(name.command) - 1] = '\0';
	for (char *c = name.command; *c; c++) {
		if (*c < ' ' || *c > '~')
			*c = '?';
	}
	if (name.pid)
		(void)snprintf(ret, BOARD_NAME_TEXT, "rank %u (pid %u, %s)",
			       rank, name.pid, name.command);
	else
		(void)snprintf(ret, BOARD_NAME_TEXT, "rank %u", rank);
	return ret;
}

/* --- waiting ------------------------------------------------------------- */

static bool is_reduced(const struct board_wait *wait)
{
	return pieces_are_done(board_pieces(wait->board, wait->number),
			       wait->number, wait->n_pieces);
}

static uint64_t find_box(const struct board_wait *wait,
			 enum box_counter counter)
{
	return boxes_missing(wait->board, UINT64_C(1) << wait->of, counter,
			     wait->number);
}

uint64_t board_awaited(const struct board_wait *wait)
{
	switch (wait->goal) {
	case BOARD_BARRIER:
		return board_missing(wait->board, wait->number);
	case BOARD_INPUTS:
		return board_missing_inputs(wait->board, wait->number);
	case BOARD_REDUCED:
		return board_working(wait->board, wait->number);
	case BOARD_PUT:
		return find_box(wait, BOX_PUT);
	case BOARD_TAKEN:
		return find_box(wait, BOX_TAKEN);
	case BOARD_MAIL:
		return mail_awaited(wait->board, wait->rank, wait->mail);
	case BOARD_GATHER:
		return wait->gather->awaited(wait->gather->data);
	}
	return 0;
}

bool board_is_met(const struct board_wait *wait)
{
	switch (wait->goal) {
	case BOARD_REDUCED:
		return is_reduced(wait);
	case BOARD_GATHER:
		return wait->gather->is_met(wait->gather->data);
	default:
		return !board_awaited(wait);
	}
}

static bool is_met(const void *data)
{
	return board_is_met(data);
}

static bool is_over(const void *data)
{
	const struct board_wait *wait = data;

	return wait->is_over(wait->data) ||
	       board_left(wait->board, board_awaited(wait));
}

/* relaxed, here and below: the CPU of a rank is only a hint */
static void tell_cpu(const struct board *board, uint32_t rank, int32_t cpu)
{
	_Atomic int32_t *word = &board->page->ranks[rank].cpu;

	/* store only a change, because other ranks read the cache line */
	if (atomic_load_explicit(word, memory_order_relaxed) != cpu)
		atomic_store_explicit(word, cpu, memory_order_relaxed);
}

/* A rank that passes on bytes waits for several ranks one after another, so
 * each of them may need this CPU. The same holds if it is not known for which
 * ranks it waits. */
static bool is_beside(const void *data)
{
	const struct board_wait *wait = data;
	bool is_chain = wait->goal == BOARD_PUT || wait->goal == BOARD_TAKEN ||
			wait->goal == BOARD_MAIL;
	uint64_t ranks = is_chain ? 0 : board_awaited(wait);
	int32_t cpu = sched_getcpu();

	tell_cpu(wait->board, wait->rank, cpu);
	for (uint32_t i = 0; i < wait->board->n_ranks; i++) {
		if (i != wait->rank && (!ranks || (ranks >> i & 1)) &&
		    atomic_load_explicit(&wait->board->page->ranks[i].cpu,
					 memory_order_relaxed) == cpu)
			return true;
	}
	return false;
}

static struct bell *bell_of(const struct board_wait *wait)
{
	switch (wait->goal) {
	case BOARD_BARRIER:
		return &wait->board->page->barriers;
	case BOARD_PUT:
		return box_bell(wait->board, wait->of, BOX_PUT);
	case BOARD_TAKEN:
		return box_bell(wait->board, wait->of, BOX_TAKEN);
	case BOARD_MAIL:
		return &wait->board->boxes[wait->rank].mail_bell;
	case BOARD_GATHER:
		return &wait->board->page->gathering;
	default:
		return &wait->board->page->reductions;
	}
}

enum bell_outcome board_wait(struct board *board, const struct board_wait *wait,
			     int64_t until_ns)
{
	const struct bell_wait how = {is_met, is_over, is_beside, wait};
	struct bell *bell = bell_of(wait);
	enum bell_outcome outcome;

	if (board_is_met(wait))
		return BELL_MET;
	outcome = bell_wait(bell, &how, until_ns);
	tell_cpu(board, wait->rank, sched_getcpu());
	return outcome;
}
