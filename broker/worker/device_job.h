/*
 * A job of a communicator on devices: for each rank that is here a share, which
 * that rank's thread does. It is answered with the end of the last.
 */
#pragma once
#include "broker/worker/store.h"
#include "collective/job.h"
#include "proto/error.h"
#include <pthread.h>
#include <stdatomic.h>

struct event;

/* A range that was checked; chunk NULL: none. */
struct device_range {
	struct store_chunk *chunk; /* referenced */
	uint64_t offset, size;
};

enum device_range_index {
	RANGE_SHARDS = 0, /* gathers */
	RANGE_FULL = 1,
	RANGE_INPUT = 0, /* reductions */
	RANGE_GRADS = 1,
	RANGE_PARTIAL = 2,
	N_RANGES = 3,
};

struct device_share {
	struct device_job *job;
	struct device_share *next; /* its rank's next, of queue or running */
	struct device_range ranges[N_RANGES];
	/* Reductions: the input is written when that timeline of the rank has
	 * come so far; 0: it is. The rank's stream waits at its gate. */
	uint32_t timeline;
	uint64_t value, gate;
	/* Behind its work: the rank's thread's; NULL: not enqueued. */
	struct event *done;
	bool is_prepared; /* its rank has all that it needs to begin it */
	bool is_done;
	struct error failure; /* of the share alone; code 0: none */
};

struct device_job {
	int sock_fd; /* borrowed */
	uint32_t kind;
	uint64_t number;
	struct store_plan *plan; /* referenced; NULL: needs none */
	union {
		/* gathers and reductions, without ranges */
		struct {
			uint32_t flags;
			bool has_factor, is_sum_forced;
			double factor;
		};
		/* JOB_COMPARE */
		struct {
			uint64_t value;
			char what[JOB_MAX_WHAT];
		};
	};
	uint64_t n_bytes;
	atomic_uint n_unprepared;  /* shares: none begins before all are */
	pthread_mutex_t lock;      /* of the next three */
	uint32_t n_left;           /* shares that have not ended */
	struct error failure;      /* of the first that has one */
	uint64_t begin_ns, end_ns; /* of its work; 0: not begun */
	uint32_t n_shares;
	struct device_share shares[];
};

int device_job_new(int sock_fd, uint32_t kind, uint64_t number,
		   uint32_t n_shares, struct device_job **ret,
		   struct error *err);
/* Before anybody has a share of it: it is not answered. */
void device_job_drop(struct device_job *job);

/* The work of a share begins. */
void device_share_begin(struct device_share *share);

/* It has ended, with an error or without (NULL). With the last share what the
 * job uses is given back, its end is sent, and it is freed. */
void device_share_end(struct device_share *share, const struct error *err);

/* Send the broker the end of the job at once, as this process is about to end.
 * The code of `err` is 0 if the job succeeded. */
void device_job_send_done(const struct device_job *job,
			  const struct error *err);
