/*
 * Memory that the ranks of a communicator share: a board with a seat for each
 * rank, and a range in which each rank puts its inputs. Only the rank itself
 * writes the words of its seat. They are counters, so a rank waits until one is
 * "at least" a value, and a rank that is late still sees it.
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_MAX_RANKS 64
#define BOARD_N_KINDS   3 /* kinds of collectives */
/* bytes of each rank's range; not backed */
#define BOARD_ROOM (UINT64_C(1) << 36)

enum board_count {
	COUNT_READY, /* collectives whose input is there */
	COUNT_DONE,  /* collectives for which it has read all ranks' inputs */
	COUNT_SPLIT, /* splits whose colour and key are in the seat */
	COUNT_SPLIT_READ,
	COUNT_FINAL,   /* 1 if it will do no more */
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
	atomic_bool is_gone;  /* all connections to it are closed */
	struct call call;     /* the call of COUNT_READY */
	int color, key;       /* arguments of COUNT_SPLIT */
};

struct board_file {
	_Atomic uint32_t bell; /* a futex, which is woken after every change */
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
/* Says that the rank has failed, which all others notice. */
void board_leave(struct board *board, uint32_t rank);
/* Says that the rank has ended, or died. The others notice this unless
 * FAKENCCL_DEAF is set. */
void board_go(struct board *board, uint32_t rank);
/* Returns whether all other ranks are gone. */
bool board_is_alone(const struct board *board, uint32_t rank);

/* Returns whether the counts of all ranks are at least `value`. */
bool board_has(const struct board *board, enum board_count which,
	       uint64_t value);

/* Returns 1 + the number of a rank that has left before it reached the value,
 * or 0 if there is none. */
int board_find_left(const struct board *board, enum board_count which,
		    uint64_t value);

/* Returns whether a wait should end. Waiters call it now and then. */
typedef bool board_stop_fn(const void *data);

#define BOARD_STOPPED (-1)
/* Waits for board_has(). Returns BOARD_STOPPED if `is_stopped` says so, else
 * the result of board_find_left(). */
int board_wait(struct board *board, enum board_count which, uint64_t value,
	       board_stop_fn *is_stopped, const void *data);

/*
 * These copy to and from a rank's range, by system calls. For an invalid
 * address they return false, where a load would raise a signal.
 */
bool board_put(const struct board *board, uint32_t rank, uint64_t at,
	       const void *from, uint64_t size);
bool board_get(const struct board *board, uint32_t rank, uint64_t at, void *to,
	       uint64_t size);
