/*
 * The board: what the ranks of one run tell each other without the broker.
 *
 * One memfd for each run, which its ranks map and write. The broker makes it
 * when the first rank asks for it, and rings when the run has failed; that it
 * has failed is said in the state table (table.h), where no rank can write. A
 * board is never used again: a rank that goes on writing after the end of its
 * run writes in a file that nobody else uses.
 *
 * Every word has one writer, but those of a bell, which only count up. So a
 * rank that dies at any instruction leaves nothing that would have to be
 * repaired. Numbers count from 1, wrap, and are compared by their distance.
 *
 * LAYOUT
 *
 *   offset   size    meaning                                 writer
 *        0      24   magic "FSDPBRD1", version, number of    broker, once
 *                    ranks, the run
 *       64       8   bell of the barriers                    all
 *      128   64*64   ranks, a cache line each:               that rank
 *                    number of the last barrier that it
 *                    has come to, the CPU on which it
 *                    waited last (-1: none), has it left
 *     4224           padding
 *    65536           end
 *
 * It is input, like all memory that others write: each word is read once.
 */
#pragma once
#include "shm/bell.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define BOARD_RANKS 64

struct board_rank {
	_Alignas(64) _Atomic uint32_t arrived;
	_Atomic int32_t cpu;
	_Atomic uint32_t has_left;
};

struct board_page {
	uint64_t magic;
	uint32_t version;
	uint32_t n_ranks;
	uint64_t run;
	struct bell barriers;
	struct board_rank ranks[BOARD_RANKS];
};

struct board {
	struct board_page *page; /* mapping; NULL when closed */
	int fd;                  /* owned; -1: closed, or not kept */
	uint32_t n_ranks;        /* checked */
};

#define BOARD_NULL ((struct board){.fd = -1})

/* A new board (broker); nobody sleeps, nobody has come. */
int board_create(struct board *ret, uint32_t n_ranks, uint64_t run,
		 struct error *err);
/* Map that of this run (rank). Not in forked children. Consumes `fd`, also on
 * failure. -EPROTO: it is another one's. */
int board_open(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
	       struct error *err);
void board_close(struct board *board);

/* --- a rank's own words -------------------------------------------------- */

/* It has come to barrier `number`. Rings if all others have, too. */
void board_arrive(struct board *board, uint32_t rank, uint32_t number);
/* It comes to no further barrier. Rings. */
void board_leave(struct board *board, uint32_t rank);

/* --- of all -------------------------------------------------------------- */

/* The ranks that have not come to barrier `number`, as a mask. */
uint64_t board_missing(const struct board *board, uint32_t number);
/* Those of them that have left. */
uint64_t board_left(const struct board *board, uint64_t ranks);

struct board_wait {
	const struct board *board;
	uint32_t rank;   /* who waits */
	uint32_t number; /* for which barrier */
	/* Is the run over? */
	bell_look_fn *is_over;
	const void *data;
};

/* Until all have come; BELL_OVER also if one that has not come has left. */
enum bell_outcome board_wait(struct board *board, const struct board_wait *wait,
			     int64_t until_ns);
