/*
 * Rounds of a collective, which several processes run in step and which are
 * timed alike, whether they are ours, an MPI library's, or a floor's.
 *
 * A stage is one file that its ranks and their leader have mapped. The leader
 * writes an *order* and wakes the ranks; each carries it out and reports so.
 * Between orders every rank sleeps on a futex, so that parties that are
 * measured in turns do not disturb each other: an MPI library spins in its own
 * calls only.
 *
 * A round is timed from the moment the first rank begins until the last has
 * ended, divided by its iterations. Before it there is a barrier, where ranks
 * yield for a moment before they sleep, and usually one untimed iteration.
 *
 * This file includes no other header of the bench, because mpi_peer.c uses it,
 * too.
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
	STAGE_PREPARE = 1, /* allocate, fill; check that the result is right */
	STAGE_RUN = 2,
	STAGE_RELEASE = 3, /* what was prepared */
	STAGE_QUIT = 4,
};

struct stage_order {
	uint32_t verb;
	uint32_t collective;
	uint32_t variant; /* defined by the party: dtypes and layouts */
	uint32_t number;  /* of this preparation, and never used again */
	uint32_t n_iterations, n_warm;
	uint64_t size; /* in bytes, as the party defines it */
};

struct stage {
	pid_t leader; /* ranks end when it has exited */
	uint32_t n_ranks;
	uint32_t n_orders; /* futex; grows with each order */
	uint32_t n_done;   /* futex; ranks that have carried it out */
	uint32_t n_arrived, n_barriers; /* n_barriers: futex */
	struct stage_order order;
	int32_t cpus[STAGE_MAX_RANKS]; /* of each rank; negative: any */
	struct {
		uint64_t start, end; /* ns */
		uint64_t pad[6];     /* a cache line for each rank */
	} times[STAGE_MAX_RANKS];
};

/* Returns 0 or -errno. Other processes pass the path to stage_open(). */
int stage_create(const char *path, uint32_t n_ranks, struct stage **ret);
int stage_open(const char *path, struct stage **ret);
void stage_close(struct stage *stage);

/* --- the leader's side --------------------------------------------------- */

/* Before the first order, this waits for all ranks to come. */
void stage_give(struct stage *stage, const struct stage_order *order);
/* Sleep until all ranks have carried out the order. Returns false if that takes
 * longer than `ms`. */
bool stage_wait(struct stage *stage, uint32_t ms);
/* Returns the nanoseconds per iteration of the last round. */
double stage_time(const struct stage *stage);

/* --- a rank's side ------------------------------------------------------- */

struct stage_acts {
	void (*prepare)(void *data, const struct stage_order *order);
	void (*iterate)(void *data, const struct stage_order *order);
	void (*release)(void *data);
};

/* Move to the rank's CPU. Carry out orders until the order to quit, or until
 * the leader has exited. */
void stage_serve(struct stage *stage, uint32_t rank,
		 const struct stage_acts *acts, void *data);
