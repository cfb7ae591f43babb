/*
 * The board: the file by which the ranks of one run communicate without the
 * broker.
 *
 * There is one memfd for each run, which its ranks map and write. The broker
 * makes it when the first rank asks for it, and rings when the run has failed.
 * The failure itself is recorded in the state table (table.h), which ranks
 * cannot write. A board is not used for another run, so a rank that continues
 * to write after the end of its run does no harm.
 *
 * Every word has one writer, except the words of bells and the counts of
 * gathers, which only grow, the words of pieces.h, and those that are written
 * with a lock (gathers.h). So nothing must be repaired after a rank has died at
 * any instruction. Numbers count from 1, wrap, and are compared by their
 * distance.
 *
 * LAYOUT
 *
 *   offset   size    meaning                                 writer
 *        0      24   magic "FSDPBRD1", version, number of    broker, once
 *                    ranks, the run
 *       24       4   number of recalls of memory             broker
 *       64       8   bell of the barriers                    all
 *      128   64*64   ranks, a cache line each:               that rank; the
 *                    number of the last barrier at which     broker, too, that
 *                    it has arrived, the CPU on which it     it has left
 *                    waited last (-1: not known), and
 *                    whether it has left
 *     4224       8   bell of the reductions                  all
 *     4288       8   bell of the gathers                     all
 *     4352       8   lock of the gathers' memory, and        all, with the
 *                    number of buffers that were ever used   lock
 *     8192   64*64   pieces of reduction n in place n % 64   all
 *    12288   64*32   names: process and command of each      broker, once
 *                    rank
 *    16384  1024*4   reductions done, by the group's index   rank 0
 *    20480  1024*4   gathers done, by the group's index      all
 *    24576   64*64   works, a cache line each: the           that rank
 *                    reduction whose pieces the rank takes
 *                    (0: it takes none). Others read it
 *                    only when they wait for these pieces
 *    65536  64*4096  cells of each rank, a cache line each:  that rank
 *                    the one of reduction n has index n % 64.
 *                    Its number is written last
 *   327680  684544   gathers (gathers.h)                     each its own, or
 *                                                            with the lock
 *  1048576           the box of each rank (boxes.h)          that rank
 *
 * A rank hands in reduction n + 64 only when reduction n is done. By then all
 * others have read its cell, because they have handed in later reductions
 * (BOARD_MAX_AHEAD). So a place and a cell belong to one reduction at a time.
 *
 * The board is input, because other processes write it: each word is read once.
 */
#pragma once
#include "proto/message_part.h"
#include "shm/bell.h"
#include "shm/boxes.h"
#include "shm/gathers.h"
#include "shm/mail.h"
#include "shm/pieces.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define BOARD_RANKS      64
#define BOARD_REDUCTIONS 64
#define BOARD_GROUPS     1024
/* Maximum number of reductions that a rank may have handed in while an earlier
 * one is not done. */
#define BOARD_MAX_AHEAD (BOARD_REDUCTIONS / 2 - 1)

struct board_rank {
	_Alignas(64) _Atomic uint32_t arrived;
	_Atomic int32_t cpu;
	_Atomic uint32_t has_left;
};

struct board_work {
	_Alignas(64) _Atomic uint32_t number;
};

struct board_cell {
	_Alignas(64) _Atomic uint32_t number;
	_Atomic uint32_t flags;
	_Atomic uint64_t group;
	_Atomic uint64_t factor;
	_Atomic uint64_t generation;
	_Atomic uint32_t slot;
	_Atomic uint32_t n_pieces;
};

/* Used in sentences only. */
struct board_name {
	uint32_t pid;
	char command[28];
};

struct board_page {
	uint64_t magic;
	uint32_t version;
	uint32_t n_ranks;
	uint64_t run;
	_Atomic uint32_t recalls;
	struct bell barriers;
	struct board_rank ranks[BOARD_RANKS];
	struct bell reductions;
	struct bell gathering;
	struct gathers_lock gathers_lock;
	_Alignas(4096) struct pieces pieces[BOARD_REDUCTIONS];
	struct board_name names[BOARD_RANKS];
	_Alignas(4096) _Atomic uint32_t n_reduced[BOARD_GROUPS];
	_Atomic uint32_t n_gathered[BOARD_GROUPS];
	struct board_work works[BOARD_RANKS];
	_Alignas(65536) struct board_cell cells[BOARD_RANKS][BOARD_REDUCTIONS];
	struct gathers_page gathers;
};

struct board {
	struct board_page *page; /* mapping; NULL when closed */
	struct box *boxes;       /* after the page, n_ranks of them */
	int fd;                  /* owned; -1: closed or not kept */
	uint32_t n_ranks;        /* valid */
};

#define BOARD_NULL ((struct board){.fd = -1})

/* Makes a new board (broker). No rank has arrived. */
int board_create(struct board *ret, uint32_t n_ranks, uint64_t run,
		 struct error *err);
/* Maps the board of this run (rank), except in forked children. Consumes `fd`,
 * also on failure. Returns -EPROTO or -EINVAL if it is not the board of this
 * run. */
int board_open(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
	       struct error *err);
/* Does the same for a broker after a restart, which keeps the file. */
int board_adopt(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
		struct error *err);
void board_close(struct board *board);

/* Returns the maximum memory of the file, which is its size in whole huge
 * pages, whatever its ranks write. */
uint64_t board_memory(uint32_t n_ranks);

/* --- a rank's own words -------------------------------------------------- */

/* Sets that the rank has arrived at barrier `number`. Rings if all others have
 * arrived. */
void board_arrive(struct board *board, uint32_t rank, uint32_t number);
/* Sets that the rank will arrive at no further barrier. Rings. The broker does
 * it, too, for a rank that did not get the board. */
void board_leave(struct board *board, uint32_t rank);

/* What a rank hands in for a reduction. */
struct board_input {
	uint64_t group; /* its id in this run */
	uint32_t flags;
	uint64_t factor;       /* the bits of a double */
	struct slot_ref input; /* the memory of the input */
	/* number of pieces into which the rank divides the work */
	uint32_t n_pieces;
};

/* Hands in the input of reduction `number`. Rings if all other ranks have
 * handed in theirs. */
void board_hand_in(struct board *board, uint32_t rank, uint32_t number,
		   const struct board_input *input);

/* Sets the reduction from which the rank takes pieces; 0: it takes none. */
void board_work_on(struct board *board, uint32_t rank, uint32_t number);

/* Counts one more reduction of the group with that index, for inspection only.
 * Only rank 0 calls it. */
void board_count_reduced(struct board *board, uint32_t index);
/* Counts one more gather of that group. The rank that has copied its last piece
 * calls it. */
void board_count_gathered(const struct board *board, uint32_t index);

/* --- of the broker ------------------------------------------------------- */

/* Must be called before any rank has the board. */
void board_set_name(struct board *board, uint32_t rank, uint32_t pid,
		    const char *command);

/* Asks the ranks to return memory that they keep but do not use. */
void board_recall(struct board *board);

/* These return the counts modulo 2^32. The ranks can write any value. */
uint32_t board_reduced(const struct board *board, uint32_t index);
uint32_t board_gathered(const struct board *board, uint32_t index);

/* --- of all -------------------------------------------------------------- */

/* Returns the ranks that have not arrived at barrier `number`, as a mask. */
uint64_t board_missing(const struct board *board, uint32_t number);
/* Returns the ranks that have not handed in reduction `number`. */
uint64_t board_missing_inputs(const struct board *board, uint32_t number);
/* Returns the ranks that take pieces of it, or did so when they died. */
uint64_t board_working(const struct board *board, uint32_t number);
/* Returns those of `ranks` that have left. */
uint64_t board_left(const struct board *board, uint64_t ranks);

/* Returns a number that changes with each recall. */
uint32_t board_recalls(const struct board *board);

/* Formats "rank 1 (pid 5, trainer)". */
#define BOARD_NAME_TEXT 80
const char *board_name_rank(const struct board *board, uint32_t rank,
			    char ret[BOARD_NAME_TEXT]);

/* Gets what a rank has handed in; it is not checked. Returns false if the rank
 * has not handed it in, or if its cell has a later one. */
bool board_input(const struct board *board, uint32_t rank, uint32_t number,
		 struct board_input *ret);

static inline struct pieces *board_pieces(const struct board *board,
					  uint32_t number)
{
	return &board->page->pieces[number % BOARD_REDUCTIONS];
}

enum board_goal {
	BOARD_BARRIER, /* all ranks have arrived */
	BOARD_INPUTS,  /* all ranks have handed in */
	BOARD_REDUCED, /* the reduction is done */
	BOARD_PUT,     /* one rank has put the round (boxes.h) */
	BOARD_TAKEN,   /* one rank has taken the round */
	BOARD_MAIL,    /* mail has come, or there is space for mail (mail.h) */
	BOARD_GATHER,  /* what struct board_gather says */
};

/* a wait for a gather (gathers.h), with `data` */
struct board_gather {
	bell_look_fn *is_met;
	uint64_t (*awaited)(const void *data); /* 0: the ranks are not known */
	const void *data;
};

struct board_wait {
	const struct board *board;
	uint32_t rank; /* the rank that waits */
	enum board_goal goal;
	uint32_t number;   /* of the barrier, reduction or round */
	uint32_t n_pieces; /* of the reduction */
	uint32_t of;       /* the rank that must put or take */
	const struct mail_wait *mail;
	const struct board_gather *gather;
	/* Returns whether the run is over. */
	bell_look_fn *is_over;
	const void *data;
};

/* Returns the ranks for which the wait waits, as a mask. */
uint64_t board_awaited(const struct board_wait *wait);

/* Returns whether the goal is reached. */
bool board_is_met(const struct board_wait *wait);

/* Waits until the goal is reached. Returns BELL_OVER also if a rank that is
 * needed has left. */
enum bell_outcome board_wait(struct board *board, const struct board_wait *wait,
			     int64_t until_ns);
