/*
 * The board: what the ranks of one run tell each other without the broker.
 *
 * One memfd for each run, which its ranks map and write. The broker makes it
 * when the first rank asks for it, and rings when the run has failed; that it
 * has failed is said in the state table (table.h), where no rank can write. A
 * board is never used again: a rank that goes on writing after the end of its
 * run writes in a file that nobody else uses.
 *
 * Every word has one writer, but those of a bell and the counts of gathers,
 * which only count up, those of pieces.h, and those that are written with a
 * lock (gathers.h). So a rank
 * that dies at any instruction leaves nothing that would have to be repaired.
 * Numbers count from 1, wrap, and are compared by their distance.
 *
 * LAYOUT
 *
 *   offset   size    meaning                                 writer
 *        0      24   magic "FSDPBRD1", version, number of    broker, once
 *                    ranks, the run
 *       24       4   how often memory was recalled              broker
 *       64       8   bell of the barriers                    all
 *      128   64*64   ranks, a cache line each:               that rank
 *                    number of the last barrier that it
 *                    has come to, the CPU on which it
 *                    waited last (-1: none), has it left,
 *                    number of the last reduction that it
 *                    has handed its input in for, and of
 *                    that whose pieces it takes (0: none)
 *     4224       8   bell of the reductions                  all
 *     4288       8   bell of the gathers                     all
 *     4352       8   lock of the gathers' memory, and how    all, with the
 *                    many buffers were ever used             lock
 *     8192   64*64   pieces of reduction n in place n % 64   all
 *    12288   64*32   names: process and command of each      broker, once
 *                    rank
 *    16384  1024*4   reductions done, by the group's index   rank 0
 *    20480  1024*4   gathers done, by the group's index      all
 *    65536  64*4096  by rank, and there by n % 64, a cache   that rank
 *                    line each: its cell of reduction n
 *   327680  684032   gathers (gathers.h)                     each its own, or
 *                                                            with the lock
 *  1048576           the box of each rank (boxes.h)        that rank
 *
 * A rank hands in reduction n + 64 only when all of reduction n is done, and
 * others have looked at its cell by then, since they have handed in later ones
 * (BOARD_MAX_AHEAD). So a place and a cell are of one reduction at a time.
 *
 * It is input, like all memory that others write: each word is read once.
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
/* Reductions that a rank may have handed in while one before them is not
 * done. */
#define BOARD_MAX_AHEAD (BOARD_REDUCTIONS / 2 - 1)

struct board_rank {
	_Alignas(64) _Atomic uint32_t arrived;
	_Atomic int32_t cpu;
	_Atomic uint32_t has_left;
	_Atomic uint32_t handed_in;
	_Atomic uint32_t working;
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

/* For sentences only. */
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
	_Alignas(65536) struct board_cell cells[BOARD_RANKS][BOARD_REDUCTIONS];
	struct gathers_page gathers;
};

struct board {
	struct board_page *page; /* mapping; NULL when closed */
	struct box *boxes;       /* behind the page, n_ranks */
	int fd;                  /* owned; -1: closed, or not kept */
	uint32_t n_ranks;        /* checked */
};

#define BOARD_NULL ((struct board){.fd = -1})

/* A new board (broker); nobody sleeps, nobody has come. */
int board_create(struct board *ret, uint32_t n_ranks, uint64_t run,
		 struct error *err);
/* Map that of this run (rank). Not in forked children. Consumes `fd`, also on
 * failure. -EPROTO, -EINVAL: it is another one's. */
int board_open(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
	       struct error *err);
/* The same for a later broker, which keeps the file. */
int board_adopt(struct board *ret, int fd, uint32_t n_ranks, uint64_t run,
		struct error *err);
void board_close(struct board *board);

/* The memory that its file can take, whatever its ranks write: its size, in
 * whole huge pages. */
uint64_t board_memory(uint32_t n_ranks);

/* --- a rank's own words -------------------------------------------------- */

/* It has come to barrier `number`. Rings if all others have, too. */
void board_arrive(struct board *board, uint32_t rank, uint32_t number);
/* It comes to no further barrier. Rings. */
void board_leave(struct board *board, uint32_t rank);

/* What it hands in for a reduction. */
struct board_input {
	uint64_t group; /* its id in this run */
	uint32_t flags;
	uint64_t factor;       /* the bits of one */
	struct slot_ref input; /* its memory */
	uint32_t n_pieces;     /* into which it cuts the work */
};

/* Its input of reduction `number`. Rings if all others have handed theirs in.
 */
void board_hand_in(struct board *board, uint32_t rank, uint32_t number,
		   const struct board_input *input);

/* From now on it takes pieces of that reduction; 0: of none. */
void board_work_on(struct board *board, uint32_t rank, uint32_t number);

/* One more reduction of the group of that index is done, as rank 0 says; it is
 * counted for inspection only. */
void board_count_reduced(struct board *board, uint32_t index);
/* One more gather of that group is done, as the rank says that has copied the
 * last piece of it. */
void board_count_gathered(const struct board *board, uint32_t index);

/* --- of the broker ------------------------------------------------------- */

/* Before anybody else has the board. */
void board_set_name(struct board *board, uint32_t rank, uint32_t pid,
		    const char *command);

/* Memory is short: ranks shall give back what they only keep. */
void board_recall(struct board *board);

/* How many there were, modulo 2^32; whatever the ranks wrote. */
uint32_t board_reduced(const struct board *board, uint32_t index);
uint32_t board_gathered(const struct board *board, uint32_t index);

/* --- of all -------------------------------------------------------------- */

/* The ranks that have not come to barrier `number`, as a mask. */
uint64_t board_missing(const struct board *board, uint32_t number);
/* Those that have not handed in reduction `number`. */
uint64_t board_missing_inputs(const struct board *board, uint32_t number);
/* Those that take pieces of it, or did when they died. */
uint64_t board_working(const struct board *board, uint32_t number);
/* Those of them that have left. */
uint64_t board_left(const struct board *board, uint64_t ranks);

/* Changes with each recall. */
uint32_t board_recalls(const struct board *board);

/* "rank 1 (pid 5, trainer)" */
#define BOARD_NAME_TEXT 80
const char *board_name_rank(const struct board *board, uint32_t rank,
			    char ret[BOARD_NAME_TEXT]);

/* What a rank has handed in; it is not checked. false: nothing, or no more. */
bool board_input(const struct board *board, uint32_t rank, uint32_t number,
		 struct board_input *ret);

static inline struct pieces *board_pieces(const struct board *board,
					  uint32_t number)
{
	return &board->page->pieces[number % BOARD_REDUCTIONS];
}

/* Does one of these ranks (not this one) use the CPU on which this one waits?
 * Only a hint. */
bool board_is_beside(const struct board *board, uint32_t rank, uint64_t ranks);

enum board_goal {
	BOARD_BARRIER, /* all have come to it */
	BOARD_INPUTS,  /* all have handed in, or the reduction is done */
	BOARD_REDUCED, /* the reduction is done */
	BOARD_PUT,     /* one rank has put a round (boxes.h) */
	BOARD_TAKEN,   /* it has taken a round */
	BOARD_MAIL,    /* there is mail, or room for it (mail.h) */
};

struct board_wait {
	const struct board *board;
	uint32_t rank; /* who waits */
	enum board_goal goal;
	uint32_t number;   /* of the barrier, reduction or round */
	uint32_t n_pieces; /* of the reduction */
	uint32_t of;       /* the rank that puts or takes */
	const struct mail_wait *mail;
	/* Is the run over? */
	bell_look_fn *is_over;
	const void *data;
};

/* The ranks that it takes, as a mask. */
uint64_t board_awaited(const struct board_wait *wait);

/* Until that is so; BELL_OVER also if one that it takes has left. */
enum bell_outcome board_wait(struct board *board, const struct board_wait *wait,
			     int64_t until_ns);
