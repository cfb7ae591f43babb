#include "shm/boxes.h"
#include "proto/failpoint.h"
#include "shm/board.h"
#include <stddef.h>

_Static_assert(offsetof(struct box, put) == 64, "layout");
_Static_assert(offsetof(struct box, taken_bell) == 128, "layout");
_Static_assert(offsetof(struct box, taken) == 192, "layout");
_Static_assert(offsetof(struct box, cells) == 4096, "layout");
_Static_assert(offsetof(struct box, slots) == 65536, "layout");
_Static_assert(offsetof(struct box, mail_bell) == 256, "layout");
_Static_assert(offsetof(struct box, sent) == 320, "layout");
_Static_assert(offsetof(struct box, received) == 576, "layout");
_Static_assert(sizeof(struct box) ==
		       65536 + BOX_SLOTS * BOX_SLOT_SIZE + BOX_MAIL_SIZE,
	       "layout");
_Static_assert(offsetof(struct box_cell, size) == 24, "layout");
_Static_assert(offsetof(struct box_cell, sizes) == 32, "layout");
_Static_assert(BOX_RANKS == BOARD_RANKS, "a size for each rank");

static struct box *box_of(const struct board *board, uint32_t rank)
{
	return &board->boxes[rank];
}

static _Atomic uint32_t *word_of(const struct board *board, uint32_t rank,
				 enum box_counter counter)
{
	struct box *box = box_of(board, rank);

	return counter == BOX_PUT ? &box->put : &box->taken;
}

struct bell *box_bell(const struct board *board, uint32_t rank,
		      enum box_counter counter)
{
	struct box *box = box_of(board, rank);

	return counter == BOX_PUT ? &box->put_bell : &box->taken_bell;
}

/* seq_cst, also in box_set(): see bell.h */
bool box_has(const struct board *board, uint32_t rank, enum box_counter counter,
	     uint32_t round)
{
	uint32_t at = atomic_load_explicit(word_of(board, rank, counter),
					   memory_order_seq_cst);

	return (int32_t)(at - round) >= 0;
}

uint64_t boxes_missing(const struct board *board, uint64_t ranks,
		       enum box_counter counter, uint32_t round)
{
	uint64_t missing = 0;

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if ((ranks >> i & 1) && !box_has(board, i, counter, round))
			missing |= UINT64_C(1) << i;
	}
	return missing;
}

void box_set(const struct board *board, uint32_t rank, enum box_counter counter,
	     uint32_t round)
{
	atomic_store_explicit(word_of(board, rank, counter), round,
			      memory_order_seq_cst);
	failpoint(counter == BOX_PUT ? "box.put" : "box.taken");
	bell_ring(box_bell(board, rank, counter));
}

void box_ring(const struct board *board, uint32_t rank)
{
	bell_ring(box_bell(board, rank, BOX_PUT));
	bell_ring(box_bell(board, rank, BOX_TAKEN));
	for (uint32_t i = 0; i < board->n_ranks; i++)
		bell_ring(&box_of(board, i)->mail_bell);
}

void boxes_ring_always(const struct board *board)
{
	for (uint32_t i = 0; i < board->n_ranks; i++) {
		bell_ring_always(box_bell(board, i, BOX_PUT));
		bell_ring_always(box_bell(board, i, BOX_TAKEN));
		bell_ring_always(&box_of(board, i)->mail_bell);
	}
}

static struct box_cell *cell_of(const struct board *board, uint32_t rank,
				uint32_t round)
{
	return &box_of(board, rank)->cells[round % BOX_SLOTS];
}

/* relaxed, here and below: the later store of `put` publishes these values */
void box_set_call(const struct board *board, uint32_t rank, uint32_t round,
		  const struct box_call *call)
{
	struct box_cell *to = cell_of(board, rank, round);
	const memory_order relaxed = memory_order_relaxed;

	atomic_store_explicit(&to->number, call->number, relaxed);
	atomic_store_explicit(&to->kind, call->kind, relaxed);
	atomic_store_explicit(&to->dtype, call->dtype, relaxed);
	atomic_store_explicit(&to->how, call->how, relaxed);
	atomic_store_explicit(&to->root, call->root, relaxed);
	atomic_store_explicit(&to->size, call->size, relaxed);
	for (uint32_t i = 0; i < board->n_ranks; i++)
		atomic_store_explicit(&to->sizes[i], call->sizes[i], relaxed);
}

void box_get_call(const struct board *board, uint32_t rank, uint32_t round,
		  struct box_call *ret)
{
	const struct box_cell *from = cell_of(board, rank, round);
	const memory_order relaxed = memory_order_relaxed;

	ret->number = atomic_load_explicit(&from->number, relaxed);
	ret->kind = atomic_load_explicit(&from->kind, relaxed);
	ret->dtype = atomic_load_explicit(&from->dtype, relaxed);
	ret->how = atomic_load_explicit(&from->how, relaxed);
	ret->root = atomic_load_explicit(&from->root, relaxed);
	ret->size = atomic_load_explicit(&from->size, relaxed);
	for (uint32_t i = 0; i < board->n_ranks; i++)
		ret->sizes[i] = atomic_load_explicit(&from->sizes[i], relaxed);
}

uint8_t *box_slot(const struct board *board, uint32_t rank, uint32_t round)
{
	return box_of(board, rank)->slots[round % BOX_SLOTS];
}
