/*
 * One collective of ours against the memory's bandwidth and against MPI.
 *
 * All parties of a contest exist at the same time and are measured in turns:
 * ours, copy, triad, cast, each MPI, and again. A round of each is one pair
 * with ours. The bandwidth's processes are as many as ours and move as many
 * bytes, so that a ratio of times is one of bytes per second.
 */
#pragma once
#include "bandwidth.h"
#include "bench.h"
#include "daemon.h"
#include "party.h"
#include "rank.h"

struct contest {
	const struct bench *bench;
	uint32_t n_ranks;
	struct rank_options options;
	struct bandwidth *bandwidth;
	struct party memory, ours, mpis[N_MPIS];
	struct fsdp_client *client; /* reads how much was moved */
	uint32_t n_prepared;
};

/* Start a broker that is not pinned to a CPU, and `n_ranks` of ours. If
 * `has_mpi`, also start as many of each MPI library that is installed. */
void contest_open(struct contest *contest, const struct bench *bench,
		  const struct daemon *daemon, uint32_t n_ranks, bool has_mpi);
void contest_close(struct contest *contest);

/* Nanoseconds of one collective. A value that does not exist is NAN, such as a
 * cast for a collective without casts. */
struct score {
	double median, p99, min;
	double bandwidth[N_BANDWIDTHS]; /* time to move as many bytes */
	double bandwidth_min[N_BANDWIDTHS];
	double mpi[N_MPIS];
	/* medians of the pairs' ratios: ours to bandwidth, MPI to ours */
	double bandwidth_ratio[N_BANDWIDTHS];
	double mpi_ratio[N_MPIS];
	size_t n;
};

void contest_run(struct contest *contest, const struct variant *variant,
		 uint64_t size, unsigned n_pairs, struct score *ret);

/* For a row that begins with ratio 0: if this score's ratio is worse, store it
 * in `ret` in us, with that floor. */
void score_keep_worse(const struct score *score, enum bandwidth_kind kind,
		      struct result *ret);
