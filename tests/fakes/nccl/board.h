/*
 * What the ranks of a communicator share: a board with a seat for each, and
 * room in which each lays out its inputs.
 *
 * A seat's words are written by its rank only. They are counters, so that
 * waiting is for "at least": whoever is late sees that it is.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_MAX_RANKS 64
#define BOARD_ROOM      (UINT64_C(1) << 36) /* bytes, of a rank; not backed */

enum board_count {
	COUNT_READY, /* collectives whose input is laid out */
	COUNT_DONE,  /* collectives whose inputs it has read, all ranks' */
	COUNT_SPLIT, /* splits whose colour and key are in the seat */
	COUNT_SPLIT_READ,
	COUNT_FINAL, /* 1: it has nothing to do any more */
	N_COUNTS,
};

/* What all ranks must say alike, and the factor, which is each one's own. */
struct call {
	uint32_t kind, type, op;
	uint64_t count;
	double factor;
};

struct seat {
	_Atomic uint64_t counts[N_COUNTS];
	atomic_bool has_left; /* nothing more will come from it */
	atomic_bool is_gone;  /* no connection to it is left */
	struct call call;     /* of COUNT_READY */
	int color, key;       /* of COUNT_SPLIT */
};

struct board_file {
	_Atomic uint32_t bell; /* a futex: rung with every change */
	struct seat seats[BOARD_MAX_RANKS];
};

struct board {
	struct board_file *file; /* NULL: none */
	int fd;                  /* -1 */
	uint32_t n_ranks;
};

#define BOARD_NULL ((struct board){.fd = -1})

int board_create(struct board *board, uint32_t n_ranks);
/* Consumes `fd`, also on failure. */
int board_open(struct board *board, uint32_t n_ranks, int fd);
void board_close(struct board *board);

void board_ring(struct board *board);
void board_tell(struct board *board, uint32_t rank, enum board_count which,
		uint64_t value);
/* It has failed, which all others notice. */
void board_leave(struct board *board, uint32_t rank);
/* It has ended, or died: others notice that unless FAKENCCL_DEAF says that they
 * do not. */
void board_go(struct board *board, uint32_t rank);
/* Are all but this one gone? */
bool board_is_alone(const struct board *board, uint32_t rank);

/* All ranks' counts are at least `value`. */
bool board_has(const struct board *board, enum board_count which,
	       uint64_t value);

/* A rank that has left and is not so far: 1 + the rank. 0: there is none. */
int board_find_left(const struct board *board, enum board_count which,
		    uint64_t value);

/* Asked now and then by who waits: is there no use in it any more? */
typedef bool board_stop_fn(const void *data);

#define BOARD_STOPPED (-1)
/* Wait for board_has(). BOARD_STOPPED: `is_stopped` says so. Else what
 * board_find_left() gives. */
int board_wait(struct board *board, enum board_count which, uint64_t value,
	       board_stop_fn *is_stopped, const void *data);

/*
 * To and from a rank's room, by system calls: addresses that are none give
 * false, where a load would be a signal.
 */
bool board_put(const struct board *board, uint32_t rank, uint64_t at,
	       const void *from, uint64_t size);
bool board_get(const struct board *board, uint32_t rank, uint64_t at, void *to,
	       uint64_t size);
