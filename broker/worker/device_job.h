/*
 * A job of a communicator on devices has a share for each rank of this node,
 * which that rank's thread does. The job is answered when its last share has
 * ended.
 */
#pragma once
#include "broker/worker/store.h"
#include "collective/job.h"
#include "proto/error.h"
#include <pthread.h>
#include <stdatomic.h>

struct event;

/* This is a range that was checked. If the chunk is NULL, there is no range. */
struct device_range {
	struct store_chunk *chunk; /* a reference */
	uint64_t offset, size;
};

enum device_range_index {
	RANGE_SHARDS = 0, /* of gathers */
	RANGE_FULL = 1,
	RANGE_INPUT = 0, /* of reductions */
	RANGE_GRADS = 1,
	RANGE_PARTIAL = 2,
	N_RANGES = 3,
};

struct device_share {
	struct device_job *job;
	/* the rank's next share, queued or running */
	struct device_share *next;
	struct device_range ranges[N_RANGES];
	/* Of reductions: the input is written when this timeline of the rank
	 * has reached this value; 0: it is written already. The rank's stream
	 * waits at its gate. */
	uint32_t timeline;
	uint64_t value, gate;
	/* Recorded after the share's work. It belongs to the rank's thread;
	 * NULL: the work is not enqueued yet. */
	struct event *done;
	bool is_prepared; /* the rank has all that it needs to begin it */
	bool is_done;
	/* of this share alone; code 0: it has not failed */
	struct error failure;
};

struct device_job {
	int sock_fd; /* borrowed */
	uint32_t kind;
	uint64_t number;
	struct store_plan *plan; /* a reference; NULL: the job needs none */
	union {
		/* of gathers and reductions; without the ranges */
		struct {
			uint32_t flags;
			bool has_factor, is_sum_forced;
			double factor;
		};
		/* of JOB_COMPARE */
		struct {
			uint64_t value;
			char what[JOB_MAX_WHAT];
		};
	};
	uint64_t n_bytes;
	/* shares; none begins before all are prepared */
	atomic_uint n_unprepared;
	pthread_mutex_t lock; /* protects the next three */
	uint32_t n_left;      /* shares that have not ended */
	struct error failure; /* of the first share that failed */
	/* when its work began and ended; 0: it has not begun */
	uint64_t begin_ns, end_ns;
	uint32_t n_shares;
	struct device_share shares[];
};

int device_job_new(int sock_fd, uint32_t kind, uint64_t number,
		   uint32_t n_shares, struct device_job **ret,
		   struct error *err);
/* Free a job of which nobody has a share yet; it is not answered. */
void device_job_drop(struct device_job *job);

/* The work of a share begins. */
void device_share_begin(struct device_share *share);

/* A share has ended, with an error or without (NULL). After the last one the
 * job releases what it uses, its end is sent, and it is freed. */
void device_share_end(struct device_share *share, const struct error *err);

/* Send the broker the end of the job at once, because this process is about to
 * end. The code of `err` is 0 if the job succeeded. */
void device_job_send_done(const struct device_job *job,
			  const struct error *err);
