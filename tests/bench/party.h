/*
 * The processes that share a stage: our ranks, those of a floor, or those of an
 * MPI library. If a party of ours fails, its row fails. A party of MPI may
 * fail: it is over then, and the row continues without it.
 */
#pragma once
#include "bench.h"
#include "stage.h"

struct party {
	const char *name;
	struct stage *stage; /* NULL if it does not exist or is over */
	pid_t pids[STAGE_MAX_RANKS];
	uint32_t n_pids;
	bool may_fail;
	char log[256]; /* log of a party that may fail */
};

/* Where the ranks of a party run. */
enum placement {
	ANYWHERE, /* the system chooses */
	APART,    /* each on a CPU of its own, as far as there are enough */
	CROWDED,  /* all on one CPU */
};

typedef void party_fn(struct stage *stage, uint32_t rank, void *data);

/* Fork `n_ranks` processes. Fork before connecting. */
void party_start(struct party *party, const struct bench *bench,
		 const char *name, uint32_t n_ranks, enum placement placement,
		 party_fn *fn, void *data);

struct mpi {
	const char *name; /* name that people read */
	const char *key;  /* JSON key of its time divided by ours */
	const char *run;  /* its mpirun program */
	/* mpi_peer.c, built with that library, in the directory of
	 * fsdp-bench */
	const char *peer;
};

#define N_MPIS 2
extern const struct mpi mpis[N_MPIS];

/* `party->stage` stays NULL if the library or its peer is missing. */
void party_start_mpi(struct party *party, const struct bench *bench,
		     const struct mpi *mpi, uint32_t n_ranks,
		     enum placement placement);

/* Let all ranks carry out the order. Returns false if the party is over. */
bool party_order(struct party *party, const struct stage_order *order);

/* Stop a party. This does nothing if the party is over or was never started. */
void party_stop(struct party *party);
