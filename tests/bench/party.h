/*
 * The processes that share a stage: our ranks, a floor's, or an MPI library's.
 *
 * A party of ours dies with its row. One of MPI may fail: it is then over, and
 * the row goes on without it.
 */
#pragma once
#include "bench.h"
#include "stage.h"

struct party {
	const char *name;
	struct stage *stage; /* NULL: not there, or over */
	pid_t pids[STAGE_MAX_RANKS];
	uint32_t n_pids;
	bool may_fail;
	char log[256]; /* of what may fail */
};

typedef void party_fn(struct stage *stage, uint32_t rank, void *data);

/* Fork `n_ranks` processes; `is_pinned`: each to a CPU of its own. Fork before
 * connecting. */
void party_start(struct party *party, const struct bench *bench,
		 const char *name, uint32_t n_ranks, bool is_pinned,
		 party_fn *fn, void *data);

struct mpi {
	const char *name; /* for people */
	const char *key;  /* its time by ours in JSON */
	const char *run;  /* its mpirun */
	const char *peer; /* mpi_peer.c built with it; beside fsdp-bench */
};

#define N_MPIS 2
extern const struct mpi mpis[N_MPIS];

/* `party->stage` stays NULL where the library or its peer is missing. */
void party_start_mpi(struct party *party, const struct bench *bench,
		     const struct mpi *mpi, uint32_t n_ranks);

/* Have all ranks do it; false: the party is over. */
bool party_order(struct party *party, const struct stage_order *order);

/* One that is over, or was never there, has stopped. */
void party_stop(struct party *party);
