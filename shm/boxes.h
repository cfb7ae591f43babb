/*
 * Boxes: the memory by which the ranks of a run pass bytes of collectives on
 * the caller's tensors to each other. The box of each rank is in the file of
 * the board (board.h), after the board.
 *
 * A collective proceeds in *rounds*. In each round a rank may put bytes in the
 * next of its BOX_SLOTS slots, sets its counter `put`, takes what it needs from
 * the slots of others, and sets its counter `taken`. All ranks make the same
 * collectives, so all have the same rounds. Rounds are numbered from 1 through
 * all collectives of the run; numbers wrap and are compared by their distance.
 *
 *   put     the last round that the rank has put
 *   taken   the last round from which it has taken all that it needs
 *
 * A rank puts round n when all ranks have taken round n - BOX_SLOTS, so no rank
 * reads a slot while it is written. In the first round of a collective it also
 * sets its call, which every rank compares with its own. In a collective whose
 * ranks reduce a share each, a rank writes its results to a part of its slot
 * that no rank reads before it puts the next round.
 *
 * Messages between two ranks (mail.h) have words and bytes of their own.
 *
 * Each word and each byte of a box is written by its rank, except the bells.
 * So nothing must be repaired after a rank has died at any instruction: the
 * others see the verdict (table.h). The stores of `put` and `taken` are one
 * half of the argument in bell.h.
 *
 * tests/model/rounds.pml models this protocol.
 *
 * Boxes are input: a call is copied and compared, and no index, size or address
 * is taken from it.
 */
#pragma once
#include "shm/bell.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct board;

#define BOX_RANKS     64
#define BOX_SLOTS     4
#define BOX_SLOT_SIZE (UINT64_C(256) << 10)
#define BOX_MAIL_SIZE (UINT64_C(1024) << 10)

/* The call that a rank makes. */
struct box_cell {
	_Alignas(64) _Atomic uint32_t number;
	_Atomic uint32_t kind, dtype, how, root;
	_Atomic uint64_t size;
	_Atomic uint64_t sizes[BOX_RANKS];
};

struct box {
	/* The waiters for a counter sleep on the bell before it. */
	struct bell put_bell;
	_Alignas(64) _Atomic uint32_t put;
	struct bell taken_bell;
	_Alignas(64) _Atomic uint32_t taken;
	/* The number of pieces of messages that this rank has sent to each
	 * other rank, and received from each. The bell rings when there is mail
	 * for this rank, or space for its own. */
	struct bell mail_bell;
	_Alignas(64) _Atomic uint32_t sent[BOX_RANKS];
	_Alignas(64) _Atomic uint32_t received[BOX_RANKS];
	_Alignas(4096) struct box_cell cells[BOX_SLOTS];
	_Alignas(65536) uint8_t slots[BOX_SLOTS][BOX_SLOT_SIZE];
	uint8_t mail[BOX_MAIL_SIZE];
};

/* A copy of a call. */
struct box_call {
	uint32_t number; /* of the collective in this run */
	uint32_t kind, dtype, how, root;
	uint64_t size;             /* the largest of `sizes` */
	uint64_t sizes[BOX_RANKS]; /* in bytes, for each rank */
};

/* A counter of a box. */
enum box_counter {
	BOX_PUT,
	BOX_TAKEN,
};

/* Returns whether that rank has put or taken the round. */
bool box_has(const struct board *board, uint32_t rank, enum box_counter counter,
	     uint32_t round);

/* Returns those of `ranks` that have not, as a mask. */
uint64_t boxes_missing(const struct board *board, uint64_t ranks,
		       enum box_counter counter, uint32_t round);

/* Sets the call of the rank, before the first round of the call. */
void box_set_call(const struct board *board, uint32_t rank, uint32_t round,
		  const struct box_call *call);
/* Gets the call of a rank that has put the round. It is not checked. */
void box_get_call(const struct board *board, uint32_t rank, uint32_t round,
		  struct box_call *ret);

/* Returns the slot of a rank for a round. */
uint8_t *box_slot(const struct board *board, uint32_t rank, uint32_t round);

/* Sets that the rank has put or taken the round. Rings. */
void box_set(const struct board *board, uint32_t rank, enum box_counter counter,
	     uint32_t round);

/* Returns the bell on which waiters for that counter sleep. */
struct bell *box_bell(const struct board *board, uint32_t rank,
		      enum box_counter counter);

/* Rings for a rank that leaves. */
void box_ring(const struct board *board, uint32_t rank);
/* Rings all bells when the run is over (broker). */
void boxes_ring_always(const struct board *board);
