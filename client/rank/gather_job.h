/*
 * Jobs: a job is one gather as a rank does it (host_gather.h). It decides
 * whether the gather may begin and which memory it uses, copies pieces, and
 * waits for work that only other ranks can do.
 */
#pragma once
#include "client/rank/comm.h"
#include "collective/limiter.h"
#include "shm/gathers.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kernels;

/* a gather that this rank has begun, as the limiter sees it */
struct op {
	uint64_t number, bytes;
	uint32_t group;
	bool is_exempt;
};

/* a buffer as this process maps it */
struct own_buffer {
	struct fsdp_tensor *tensor; /* owned; NULL: not asked for yet */
	uint32_t version;
	/* the recalls that were counted before it was requested; later ones
	 * apply to it */
	uint32_t recalls;
};

struct gatherer {
	struct limiter_options window;
	const struct kernels *kernels;
	uint64_t number;    /* of the last gather that this rank has begun */
	uint64_t n_commits; /* commits that this rank has begun */
	/* all gathers that may not have ended yet, in order */
	struct op *ops;
	size_t n_ops, max_ops;
	struct own_buffer *buffers; /* by their index on the board */
	uint32_t n_buffers;
};

/* what a gather still needs before it is whole */
enum obstacle {
	OBSTACLE_LIMITER,
	OBSTACLE_LOCK,   /* another rank is choosing a buffer */
	OBSTACLE_PIECES, /* other ranks are copying */
};

/* the work of one gather */
struct job {
	struct fsdp_group *group;
	struct gatherer *gatherer;
	const struct board *board;
	uint64_t number;
	enum obstacle obstacle;
	struct gathers_fill fill;
	uint32_t n_pieces;
};

/* Return the job of gather `number` of the group, which need not have begun. */
struct job job_of(struct fsdp_group *group, uint64_t number);

/* Return the size of the whole parameters of all replicas. */
uint64_t job_size(const struct fsdp_group *group);
/* Return the name of the group with that index on the board. */
const char *job_name(const struct fsdp_comm *comm, uint32_t index);

/* Tell whether the limiter admits the gather. Once this is true it remains
 * true. */
bool job_is_admitted(const struct job *job);
/* Return the oldest gather before this one that is counted and has not ended,
 * or NULL. */
const struct op *job_find_blocker(const struct job *job);
/* Forget the gathers that have ended. */
void job_forget_over(struct job *job);

/* Add to a counter that is only displayed. Each counter has one writer. */
void job_count(_Atomic uint64_t *counter, uint64_t n);

/* Do as much as is possible without waiting for other ranks, but copy at most
 * `max` pieces. The broker is asked for memory within `timeout_ms`. Returns 0
 * if the group is whole, JOB_PENDING with the obstacle, or -ETIMEDOUT if there
 * is no memory. */
#define JOB_PENDING 1
int job_advance(struct job *job, uint32_t max, int32_t timeout_ms,
		struct error *err);

/* Return the memory in which the group is whole. */
struct fsdp_tensor *job_memory(const struct job *job);

/* --- gather_wait.c: the obstacle ----------------------------------------- */

/* Wait until the obstacle is gone, but not longer than until `until_ns` of
 * bell_now_ns(). Returns -ETIMEDOUT, -EINTR, or -ECONNABORTED if the run is
 * over, which may be because a rank has left or is later than the
 * communicator's time-out allows. */
int job_await(struct job *job, int64_t until_ns, struct error *err);

/* Set `err` to -ETIMEDOUT, and describe why the gather waits. */
int job_refuse_wait(const struct job *job, struct error *err);

/* Fail the run, since the group was not whole within the communicator's
 * time-out. `cause` is the rest of a sentence that begins with "it". Returns
 * -ECONNABORTED. */
int job_fail_late(const struct job *job, const char *cause, struct error *err);

/* Tell whether all pieces are copied. */
bool job_is_copied(const struct job *job);
