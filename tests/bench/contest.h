/*
 * Compares one collective of ours with the memory's bandwidth and with
 * *rivals*, which are the same collective by fsdp-worker and by the MPI
 * libraries.
 *
 * All parties of a contest exist at the same time, and are measured in turns:
 * ours, copy, triad, cast, each rival, and again. A round of each makes one
 * pair with ours. The bandwidth is measured with as many processes as ours,
 * which move as many bytes, so that a ratio of times is a ratio of bytes per
 * second.
 */
#pragma once
#include "bandwidth.h"
#include "bench.h"
#include "daemon.h"
#include "party.h"
#include "rank.h"

/* The parties of a contest. The times of COPY to CAST are those for the same
 * number of bytes. */
enum contender {
	OURS,
	COPY,
	TRIAD,
	CAST,
	WORKER, /* the first rival */
	OPEN_MPI,
	MPICH,
	N_CONTENDERS,
	/* as a floor: the quicker of the two MPI libraries */
	BETTER_MPI = N_CONTENDERS,
};

#define N_RIVALS (N_CONTENDERS - WORKER)

struct contest_options {
	uint32_t n_ranks;
	/* This is the placement of all parties. The processes of the bandwidth
	 * are APART if it is ANYWHERE. */
	enum placement placement;
	bool has_worker, has_mpi; /* if they are installed */
};

struct contest {
	const struct bench *bench;
	uint32_t n_ranks;
	struct rank_options options, worker_options;
	struct bandwidth *bandwidth;
	struct party memory, ours, rivals[N_RIVALS];
	struct fsdp_client *client; /* reads how many bytes were moved */
	uint32_t n_prepared;
};

/* Start the ranks of all parties. The broker is not pinned to a CPU. */
void contest_open(struct contest *contest, const struct bench *bench,
		  const struct daemon *daemon,
		  const struct contest_options *options);
void contest_close(struct contest *contest);

/* Nanoseconds of one collective by a party, and the ratios of our time to its
 * time. NAN for a party that does not exist, such as a cast for a
 * collective without casts. */
struct standing {
	double median, min;
	struct spread ratio;
};

struct score {
	double p99; /* of ours */
	size_t n;
	struct standing of[N_CONTENDERS];
};

/* Run at least `n_min` pairs; see repeats_next(). */
void contest_run(struct contest *contest, const struct variant *variant,
		 uint64_t size, unsigned n_min, struct score *ret);

/* Keep this score in `ret`, in us and with that floor, if its ratio is worse
 * than the one there. A row begins with ratio 0. Calls die() if the score has
 * no such floor. */
void score_keep_worse(const struct score *score, enum contender floor,
		      struct result *ret);

/* Run a contest of 2 ranks and one of 4. The row shows the worse result. The
 * other options are those of `options`. */
void contest_row(const struct bench *bench,
		 const struct contest_options *options,
		 const struct variant *variant, uint64_t size,
		 enum contender floor, struct result *ret);
