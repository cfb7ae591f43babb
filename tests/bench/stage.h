/*
 * Rounds of a collective, run in step by several processes and timed alike,
 * whether they are ours, an MPI library's, or a floor's.
 *
 * A stage is one file that its ranks and their leader have mapped. The leader
 * writes an *order* and wakes the ranks; each does it and says so. Between
 * orders every rank sleeps on a futex, so that parties that are measured in
 * turns do not disturb each other: an MPI library spins in its own calls only.
 *
 * A round is timed from the moment the first rank begins until the last has
 * ended, divided by its iterations. It begins behind a barrier, where ranks
 * yield for a moment before they sleep, and usually one untimed iteration.
 *
 * This depends on nothing else here, since mpi_peer.c has it too.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define STAGE_MAX_RANKS 64

enum collective {
	ALL_GATHER,
	REDUCE_SCATTER,
	ALL_REDUCE,
	N_COLLECTIVES,
};

enum stage_verb {
	STAGE_PREPARE = 1, /* memory, values; check that the result is right */
	STAGE_RUN = 2,
	STAGE_RELEASE = 3, /* what was prepared */
	STAGE_QUIT = 4,
};

struct stage_order {
	uint32_t verb;
	uint32_t collective;
	uint32_t variant; /* the party's own: dtypes and layouts */
	uint32_t number;  /* of what is prepared, never the same again */
	uint32_t n_iterations, n_warm;
	uint64_t size; /* bytes, see the party */
};

struct stage {
	pid_t leader; /* ranks end when it is gone */
	uint32_t n_ranks;
	uint32_t n_orders; /* futex; grows when an order is there */
	uint32_t n_done;   /* futex; ranks that have done it */
	uint32_t n_arrived, n_barriers; /* n_barriers: futex */
	struct stage_order order;
	struct {
		uint64_t start, end; /* ns */
		uint64_t pad[6];     /* a cache line for each */
	} times[STAGE_MAX_RANKS];
};

/* 0 or -errno; the path is for stage_open(). */
int stage_create(const char *path, uint32_t n_ranks, struct stage **ret);
int stage_open(const char *path, struct stage **ret);
void stage_close(struct stage *stage);

/* --- the leader's side --------------------------------------------------- */

/* Ranks have done nothing before the first order: their being there counts as
 * its completion. */
void stage_give(struct stage *stage, const struct stage_order *order);
/* Sleep until all ranks have done the order, or `ms` are over: false. */
bool stage_wait(struct stage *stage, uint32_t ms);
/* Nanoseconds per iteration of the round that was just done. */
double stage_time(const struct stage *stage);

/* --- a rank's side ------------------------------------------------------- */

struct stage_acts {
	void (*prepare)(void *data, const struct stage_order *order);
	void (*iterate)(void *data, const struct stage_order *order);
	void (*release)(void *data);
};

/* Do what is ordered until the order to quit, or until the leader is gone. */
void stage_serve(struct stage *stage, uint32_t rank,
		 const struct stage_acts *acts, void *data);
