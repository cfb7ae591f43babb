/*
 * Divides one operation among several processes: each process takes the next
 * piece that no process has begun.
 *
 * Operations are numbered and use these words one after another, so both words
 * contain the number of their operation, which is called the lap. Nothing is
 * ever reset: the process that takes the first piece of a lap opens it, by one
 * CAS for each word.
 *
 *   next: lap << 32 | pieces that were taken     CAS
 *   done: lap << 32 | pieces that are done       CAS to open it, then add
 *
 * `done` is opened before `next`, so it is open when a process has a piece. If
 * a process dies with a piece, `done` stays too low, and the operation ends
 * only with the run. Laps are compared by their distance, so numbers may wrap.
 * For a lap that is over, all pieces are taken and done.
 *
 * A process that sees all pieces counted sees what was written for them. `done`
 * is one half of the argument in bell.h: it is changed and read seq_cst.
 * Non-temporal stores are flushed before a piece is counted.
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

/* Returns the next piece, below `n`, of operation `number`, or PIECES_NONE if
 * all are taken. */
uint32_t pieces_take(struct pieces *pieces, uint32_t number, uint32_t n);

/* Counts a piece as done. Returns true if it was the last one, so that others
 * may wait for it. */
bool pieces_end_one(struct pieces *pieces, uint32_t number, uint32_t n);

/* Returns whether all `n` pieces of operation `number` are done. */
bool pieces_are_done(const struct pieces *pieces, uint32_t number, uint32_t n);
