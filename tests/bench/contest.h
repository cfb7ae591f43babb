/*
 * One collective of ours against the memory's bandwidth and against MPI.
 *
 * All parties of a contest are there at the same time and measured in turns:
 * ours, copy, triad, cast, each MPI, and again. A round of each is one pair
 * with ours. Bandwidth moves as many bytes as ours, by as many processes, so
 * that a ratio of times is one of bytes per second.
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
	struct fsdp_client *client; /* counts what is moved */
	uint32_t n_prepared;
};

/* A broker that is not pinned to a CPU. `n_ranks` of ours, and of each MPI
 * library that is installed if `has_mpi`. */
void contest_open(struct contest *contest, const struct bench *bench,
		  const struct daemon *daemon, uint32_t n_ranks, bool has_mpi);
void contest_close(struct contest *contest);

/* Nanoseconds of one collective; NAN where there is no such thing, as a cast
 * for what casts nothing. */
struct score {
	double median, p99, min;
	double bandwidth[N_BANDWIDTHS]; /* to move as many bytes */
	double bandwidth_min[N_BANDWIDTHS];
	double mpi[N_MPIS];
	/* medians of the pairs' ratios: ours to bandwidth, MPI to ours */
	double bandwidth_ratio[N_BANDWIDTHS];
	double mpi_ratio[N_MPIS];
	size_t n;
};

void contest_run(struct contest *contest, const struct variant *variant,
		 uint64_t size, unsigned n_pairs, struct score *ret);

/* Of a row that begins with ratio 0: `ret` becomes this in us, with that floor,
 * if its ratio is worse. */
void score_keep_worse(const struct score *score, enum bandwidth_kind kind,
		      struct result *ret);
