/*
 * Memory that the ranks of a communicator share: a board with a seat for each,
 * and room in which each lays out its inputs. Only its own rank writes the
 * words of a seat. They are counters, so a rank waits until one is "at least" a
 * value, and a rank that is late still sees it.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_MAX_RANKS 64
#define BOARD_N_KINDS   3                   /* kinds of collectives */
#define BOARD_ROOM      (UINT64_C(1) << 36) /* bytes, of a rank; not backed */

enum board_count {
	COUNT_READY, /* collectives whose input it has laid out */
	COUNT_DONE,  /* collectives for which it has read all ranks' inputs */
	COUNT_SPLIT, /* splits whose colour and key are in the seat */
	COUNT_SPLIT_READ,
	COUNT_FINAL,   /* 1 if it has no more to do */
	COUNT_CONNECT, /* 1 if it has begun a collective of the first kind */
	N_COUNTS = COUNT_CONNECT + BOARD_N_KINDS,
};

/* The arguments that must be equal for all ranks, and the factor, which may
 * differ. */
struct call {
	uint32_t kind, type, op;
	uint64_t count;
	double factor;
};

struct seat {
	_Atomic uint64_t counts[N_COUNTS];
	atomic_bool has_left; /* it will write nothing more */
	atomic_bool is_gone;  /* no connection to it remains */
	struct call call;     /* call of COUNT_READY */
	int color, key;       /* arguments of COUNT_SPLIT */
};

struct board_file {
	_Atomic uint32_t bell; /* a futex, which is rung with every change */
	struct seat seats[BOARD_MAX_RANKS];
};

struct board {
	struct board_file *file; /* NULL if there is no board */
	int fd;                  /* -1 if there is no board */
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
/* The rank has failed, which all others notice. */
void board_leave(struct board *board, uint32_t rank);
/* The rank has ended, or died. The others notice that unless FAKENCCL_DEAF is
 * set. */
void board_go(struct board *board, uint32_t rank);
/* Are all ranks but this one gone? */
bool board_is_alone(const struct board *board, uint32_t rank);

/* Are all ranks' counts at least `value`? */
bool board_has(const struct board *board, enum board_count which,
	       uint64_t value);

/* Returns 1 + the number of a rank that has left before it reached the value,
 * or 0 if there is none. */
int board_find_left(const struct board *board, enum board_count which,
		    uint64_t value);

/* Waiters call it now and then. Should the wait end? */
typedef bool board_stop_fn(const void *data);

#define BOARD_STOPPED (-1)
/* Wait for board_has(). Returns BOARD_STOPPED if `is_stopped` says so, else the
 * result of board_find_left(). */
int board_wait(struct board *board, enum board_count which, uint64_t value,
	       board_stop_fn *is_stopped, const void *data);

/*
 * Copy to and from a rank's room, by system calls. An invalid address returns
 * false, where a load would raise a signal.
 */
bool board_put(const struct board *board, uint32_t rank, uint64_t at,
	       const void *from, uint64_t size);
bool board_get(const struct board *board, uint32_t rank, uint64_t at, void *to,
	       uint64_t size);
