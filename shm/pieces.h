/*
 * Tickets over the pieces of one operation: several processes do it together,
 * and each takes the next piece that nobody has begun.
 *
 * Operations are numbered and use these words by turns, so both carry the
 * number of the operation that they are about, its lap. Nothing is ever reset:
 * who takes the first piece of a lap opens it, by one CAS for each word.
 *
 *   next: lap << 32 | pieces that were taken     CAS
 *   done: lap << 32 | pieces that are done       CAS to open it, then add
 *
 * `done` is opened before `next`, so a process that has a piece finds it open.
 * A process that dies with a piece leaves `done` short for ever: its operation
 * ends only with the run. Laps are compared by their distance, so numbers wrap;
 * a process that asks for a lap that is over finds everything done.
 *
 * Pieces are done before they are counted, and a process that finds all of them
 * counted finds what they wrote. `done` is one half of the argument in bell.h:
 * it is changed and read seq_cst. What is written past the caches is flushed
 * before.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PIECES_NONE UINT32_MAX

struct pieces {
	_Alignas(64) _Atomic uint64_t next;
	_Atomic uint64_t done;
};

/* The next piece, below `n`, of operation `number`; PIECES_NONE: all are taken.
 */
uint32_t pieces_take(struct pieces *pieces, uint32_t number, uint32_t n);

/* One that was taken is done. true: it was the last, and others may wait. */
bool pieces_end_one(struct pieces *pieces, uint32_t number, uint32_t n);

/* Are all `n` of operation `number` done? */
bool pieces_are_done(const struct pieces *pieces, uint32_t number, uint32_t n);
