#include "shm/gathers.h"
#include "proto/failpoint.h"
#include "shm/board.h"
#include <errno.h>
#include <stddef.h>

_Static_assert(offsetof(struct gathers_page, filling) == 8192, "layout");
_Static_assert(offsetof(struct gathers_page, mesh) == 16384, "layout");
_Static_assert(offsetof(struct gathers_page, ranks) == 24576, "layout");
_Static_assert(offsetof(struct gathers_page, buffers) == 28672, "layout");
_Static_assert(offsetof(struct gathers_page, ended) == 159744, "layout");
_Static_assert(offsetof(struct gathers_page, committed) == 684032, "layout");
_Static_assert(sizeof(struct gathers_page) == 684544, "layout");
_Static_assert(sizeof(struct gathers_rank) == 64, "a line for each rank");
_Static_assert(offsetof(struct gathers_rank, n_unshards) == 8, "layout");
_Static_assert(sizeof(struct gathers_buffer) == 128, "layout");
_Static_assert(offsetof(struct gathers_buffer, group) == 24, "layout");
_Static_assert(offsetof(struct gathers_buffer, pieces) == 64, "layout");
_Static_assert(GATHERS_RANKS == BOARD_RANKS, "a row for each rank");
_Static_assert(GATHERS_GROUPS <= 1 << 10, "an index has 10 bits");
_Static_assert(GATHERS_RANKS <= 1 << 6, "a rank has 6 bits");

#define NUMBER_SHIFT 16
#define RANK_SHIFT   10 /* in `order` */
#define MESH_BITS    8

static struct gathers_page *page_of(const struct board *board)
{
	return &board->page->gathers;
}

static void ring(const struct board *board)
{
	bell_ring(&board->page->gathering);
}

/* seq_cst: see bell.h, or a comment at the caller */
static uint64_t load(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_seq_cst);
}

static void store(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_seq_cst);
}

/* relaxed: only holders of the lock access these words, and the lock orders
 * them. */
static uint64_t peek(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static void poke(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

struct gathers_rank *gathers_of(const struct board *board, uint32_t rank)
{
	return &page_of(board)->ranks[rank];
}

/* --- beginning ----------------------------------------------------------- */

static struct gathers_turn turn_of(uint64_t word)
{
	return (struct gathers_turn){
		.group = (uint32_t)word % GATHERS_GROUPS,
		.rank = (uint32_t)(word >> RANK_SHIFT) % GATHERS_RANKS,
	};
}

/* Returns whether the word of gather `number` may replace the previous word.
 * Reading `began` is slow, since its owner writes it all the time. So it is
 * read for one of GATHERS_AHEAD numbers, and then for the next ones, too: the
 * last of them replaces the word of a gather that all ranks had begun by then.
 */
static bool is_free(const struct board *board, uint64_t number)
{
	if (number % GATHERS_AHEAD != 0)
		return true;
	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if (load(&gathers_of(board, i)->began) + GATHERS_AHEAD < number)
			return false;
	}
	return true;
}

enum gathers_begun gathers_begin(const struct board *board, uint32_t rank,
				 uint64_t number, uint32_t group,
				 struct gathers_turn *ret)
{
	_Atomic uint64_t *order =
		&page_of(board)->order[number % GATHERS_PLACES];
	uint64_t mine =
		number << NUMBER_SHIFT | (uint64_t)rank << RANK_SHIFT | group;
	uint64_t word = load(order);
	bool is_first = false;

	while (word >> NUMBER_SHIFT < number && !is_first) {
		if (!is_free(board, number))
			return GATHERS_IS_FAR;
		is_first = atomic_compare_exchange_weak_explicit(
			order, &word, mine, memory_order_seq_cst,
			memory_order_seq_cst);
	}
	*ret = turn_of(is_first ? mine : word);
	if (!is_first &&
	    (word >> NUMBER_SHIFT != number || ret->group != group))
		return GATHERS_OTHER;
	failpoint("gathers.ordered");
	store(&gathers_of(board, rank)->began, number);
	return is_first ? GATHERS_FIRST : GATHERS_SAME;
}

bool gathers_look(const struct board *board, uint64_t number,
		  struct gathers_turn *ret)
{
	uint64_t word = load(&page_of(board)->order[number % GATHERS_PLACES]);

	*ret = turn_of(word);
	return word >> NUMBER_SHIFT == number;
}

/* --- ending -------------------------------------------------------------- */

uint64_t gathers_open(const struct board *board, uint64_t number,
		      uint32_t group)
{
	uint64_t open = 0;

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if (load(&page_of(board)->ended[i][group]) < number)
			open |= UINT64_C(1) << i;
	}
	return open;
}

/* If several ranks end a gather at once, the last of them sees that all have
 * ended it. */
void gathers_end(const struct board *board, uint32_t rank, uint64_t number,
		 uint32_t group)
{
	store(&page_of(board)->ended[rank][group], number);
	failpoint("gathers.ended");
	if (!gathers_open(board, number, group))
		ring(board);
}

static bool has_ended_other(const struct board *board, uint64_t number,
			    uint32_t group, uint32_t *ret_rank)
{
	uint64_t open = gathers_open(board, number, group);

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		*ret_rank = i;
		if (!(open >> i & 1))
			return true;
	}
	return false;
}

/* A rank that reshards to a mesh writes the word before it ends the gather. So
 * this first checks which ranks have ended the gather: if the word is older
 * than the gather afterwards, they have not resharded to a mesh. */
bool gathers_set_mesh(const struct board *board, uint32_t rank, uint64_t number,
		      uint32_t group, uint32_t mesh, uint32_t *ret_rank,
		      uint32_t *ret_mesh)
{
	_Atomic uint64_t *at = &page_of(board)->mesh[group];
	uint64_t mine =
		number << NUMBER_SHIFT | (uint64_t)rank << MESH_BITS | mesh;
	uint64_t word;
	bool is_late;

	do {
		is_late =
			mesh && has_ended_other(board, number, group, ret_rank);
		word = load(at);
	} while (mesh && !is_late && word >> NUMBER_SHIFT < number &&
		 !atomic_compare_exchange_weak_explicit(at, &word, mine,
							memory_order_seq_cst,
							memory_order_seq_cst));
	*ret_mesh = 0;
	if (word >> NUMBER_SHIFT < number)
		return !is_late;
	if (word >> NUMBER_SHIFT > number)
		return true;
	*ret_mesh = (uint32_t)word & ((1 << MESH_BITS) - 1);
	*ret_rank = (uint32_t)(word >> MESH_BITS) % GATHERS_RANKS;
	return *ret_mesh == mesh;
}

void gathers_commit(const struct board *board, uint32_t rank, uint64_t n)
{
	store(&page_of(board)->committed[rank], n);
}

bool gathers_find_commit(const struct board *board, uint64_t n,
			 uint32_t *ret_rank)
{
	for (uint32_t i = 0; i < board->n_ranks; i++) {
		*ret_rank = i;
		if (load(&page_of(board)->committed[i]) >= n)
			return true;
	}
	return false;
}

/* --- the lock ------------------------------------------------------------ */

bool gathers_lock(const struct board *board, uint32_t rank)
{
	uint32_t owner = 0;

	return atomic_compare_exchange_strong_explicit(
		&board->page->gathers_lock.owner, &owner, rank + 1,
		memory_order_seq_cst, memory_order_seq_cst);
}

void gathers_unlock(const struct board *board)
{
	failpoint("gathers.locked");
	atomic_store_explicit(&board->page->gathers_lock.owner, 0,
			      memory_order_seq_cst);
	ring(board);
}

uint32_t gathers_locker(const struct board *board)
{
	return atomic_load_explicit(&board->page->gathers_lock.owner,
				    memory_order_seq_cst) -
	       1;
}

/* --- memory -------------------------------------------------------------- */

struct pieces *gathers_pieces(const struct board *board, uint32_t buffer)
{
	return &page_of(board)->buffers[buffer].pieces;
}

uint32_t gathers_version(const struct board *board, uint32_t buffer)
{
	return atomic_load_explicit(&page_of(board)->buffers[buffer].version,
				    memory_order_acquire);
}

/* Lap and version do not change before this rank has ended the gather, because
 * the buffer belongs to its group until then, unless its memory is lost. The
 * version is loaded with acquire, so that the lap belongs to it. */
int gathers_find(const struct board *board, uint64_t number, uint32_t group,
		 struct gathers_fill *ret)
{
	uint64_t word = load(&page_of(board)->filling[group]);
	const struct gathers_buffer *buffer;
	uint32_t i = (uint32_t)word & ((1 << NUMBER_SHIFT) - 1);

	if (word >> NUMBER_SHIFT < number)
		return 0;
	if (i >= GATHERS_BUFFERS)
		return -EPROTO;
	buffer = &page_of(board)->buffers[i];
	*ret = (struct gathers_fill){
		.buffer = i,
		.version = gathers_version(board, i),
		.lap = atomic_load_explicit(&buffer->lap, memory_order_relaxed),
	};
	return GATHERS_FOUND;
}

uint64_t gathers_last(const struct board *board, uint32_t group)
{
	return load(&page_of(board)->filling[group]) >> NUMBER_SHIFT;
}

/* Returns whether no rank reads or writes the buffer. */
static bool is_unused(const struct board *board,
		      const struct gathers_buffer *buffer)
{
	uint64_t last = peek(&buffer->last);
	uint32_t group =
		atomic_load_explicit(&buffer->group, memory_order_relaxed);

	return last == 0 ||
	       (group < GATHERS_GROUPS && !gathers_open(board, last, group));
}

static bool is_spare(const struct board *board,
		     const struct gathers_buffer *buffer, uint64_t step)
{
	return peek(&buffer->kept) != step && is_unused(board, buffer);
}

/* Returns whether the buffer is large enough, but at most twice as large as
 * needed. */
static bool suits(const struct gathers_buffer *buffer, uint64_t size)
{
	uint64_t has = peek(&buffer->size);

	return has >= size && has / 2 <= size;
}

static void renew(struct gathers_buffer *buffer, uint64_t size)
{
	poke(&buffer->size, size);
	atomic_fetch_add_explicit(&buffer->version, 1, memory_order_release);
}

/* Returns a spare buffer of about that size, or one without memory, or any
 * spare buffer, or NULL if there is none. */
static struct gathers_buffer *find_spare(const struct board *board,
					 uint64_t size, uint64_t step)
{
	struct gathers_buffer *buffers = page_of(board)->buffers;
	struct gathers_buffer *empty = NULL, *other = NULL;
	_Atomic uint32_t *count = &board->page->gathers_lock.n_buffers;
	uint32_t n = atomic_load_explicit(count, memory_order_relaxed);

	for (uint32_t i = 0; i < n && i < GATHERS_BUFFERS; i++) {
		if (!is_spare(board, &buffers[i], step))
			continue;
		if (suits(&buffers[i], size))
			return &buffers[i];
		if (!peek(&buffers[i].size))
			empty = &buffers[i];
		else
			other = &buffers[i];
	}
	if (!empty && n < GATHERS_BUFFERS) {
		empty = &buffers[n];
		atomic_store_explicit(count, n + 1, memory_order_relaxed);
	}
	if (!empty)
		empty = other;
	if (empty)
		renew(empty, size);
	return empty;
}

/* Returns the buffer in which the group is whole or is being gathered, if it is
 * of this step, or else NULL. */
static struct gathers_buffer *find_live(const struct board *board,
					uint32_t group, uint64_t step)
{
	uint64_t word = load(&page_of(board)->filling[group]);
	uint32_t i = (uint32_t)word & ((1 << NUMBER_SHIFT) - 1);
	struct gathers_buffer *buffer;

	if (!word || i >= GATHERS_BUFFERS)
		return NULL;
	buffer = &page_of(board)->buffers[i];
	if (atomic_load_explicit(&buffer->group, memory_order_relaxed) !=
		    group ||
	    peek(&buffer->last) != word >> NUMBER_SHIFT)
		return NULL;
	return peek(&buffer->kept) == step || !is_unused(board, buffer) ? buffer
									: NULL;
}

int gathers_choose(const struct board *board, uint64_t number, uint32_t group,
		   uint64_t size, uint64_t step)
{
	struct gathers_page *page = page_of(board);
	struct gathers_buffer *buffer = find_live(board, group, step);

	if (load(&page->filling[group]) >> NUMBER_SHIFT >= number)
		return 0;
	if (!buffer) {
		buffer = find_spare(board, size, step);
		if (!buffer)
			return -EPROTO;
		atomic_store_explicit(&buffer->group, group,
				      memory_order_relaxed);
		atomic_fetch_add_explicit(&buffer->lap, 1,
					  memory_order_relaxed);
	}
	poke(&buffer->last, number);
	poke(&buffer->kept, 0);
	store(&page->filling[group],
	      number << NUMBER_SHIFT | (uint64_t)(buffer - page->buffers));
	return 0;
}

void gathers_lose(const struct board *board, uint32_t group,
		  const struct gathers_fill *fill)
{
	uint64_t word = load(&page_of(board)->filling[group]);
	struct gathers_buffer *buffer = &page_of(board)->buffers[fill->buffer];

	if ((word & ((1 << NUMBER_SHIFT) - 1)) != fill->buffer ||
	    gathers_version(board, fill->buffer) != fill->version)
		return;
	atomic_fetch_add_explicit(&buffer->lap, 1, memory_order_relaxed);
	renew(buffer, peek(&buffer->size));
}

void gathers_keep(const struct board *board, uint64_t number, uint32_t group,
		  uint64_t step)
{
	uint64_t word = load(&page_of(board)->filling[group]);
	struct gathers_buffer *buffer = find_live(board, group, step);

	if (buffer && word >> NUMBER_SHIFT == number)
		poke(&buffer->kept, step);
}

void gathers_retire_one(const struct board *board, uint32_t buffer)
{
	struct gathers_buffer *at = &page_of(board)->buffers[buffer];

	if (!peek(&at->size) || !is_unused(board, at))
		return;
	poke(&at->kept, 0);
	poke(&at->last, 0);
	renew(at, 0);
}

void gathers_retire(const struct board *board)
{
	uint32_t n = atomic_load_explicit(&board->page->gathers_lock.n_buffers,
					  memory_order_relaxed);

	for (uint32_t i = 0; i < n && i < GATHERS_BUFFERS; i++)
		gathers_retire_one(board, i);
}
