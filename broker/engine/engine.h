/*
 * The engine: moves and sums the bytes of collectives.
 *
 * The broker never copies tensor data. It hands jobs (collective/job.h) to a
 * stream of an engine and gets the completion of each by its number. Jobs of
 * one stream run in order; there is no other guarantee. This is the local
 * engine: fsdp-worker, a child process that maps the chunks it serves. It is
 * started on first use, and again after it has died. It also serves
 * communicators on devices whose ranks do not do their work themselves; it then
 * must open the communicator, and loses it when it dies.
 *
 * If the worker dies, all jobs it had fail with -EIO and a message, as soon as
 * its process is gone; the memory they wrote is pinned until then, so the
 * worker cannot have written to reused memory. A worker that has work and is
 * silent for minutes is killed. Jobs that were not sent yet wait for the next
 * worker, which is then started at once. A worker that outlived its broker is
 * found by its pidfd, which the fd store keeps under the name "worker", and
 * killed before the new broker frees any memory.
 */
#pragma once
#include "collective/job.h"
#include "proto/error.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct rlimit;
struct store;

/* Called from the loop, between transactions; it may submit and commit. */
typedef void engine_done_fn(void *data, const struct job_done *done);

/* engine_impl.h */
struct engine_comm;
struct engine_job;
struct engine_plan;
struct engine_worker;

#define ENGINE_MAX_JOBS 16384

/* What the engine calls in the rooms above; set by broker.c. */
struct engine_hooks {
	void *data;
	/* There is capacity for jobs again. Called within a transaction. */
	void (*on_room)(void *data);
	/* The worker has died, and its jobs have failed: communicators that it
	 * had opened are lost. The hook commits. */
	void (*on_death)(void *data, const struct error *cause);
};

struct engine {
	/* Borrowed; these and the hooks are set before engine_init(). */
	struct store *store;
	const struct rlimit *first_limit; /* restored in the worker */
	struct engine_hooks hooks;
	bool has_no_sandbox;          /* set by broker_confine() */
	int oom_fd;                   /* the broker's oom_score_adj; -1 */
	struct engine_worker *worker; /* NULL: not running */
	int32_t pid;                  /* of the worker; 0 */
	bool is_ready;                /* the worker said hello */
	bool is_stopping;
	struct engine_job *first, *last; /* submitted and not done, in order */
	/* The first job that was not sent yet. */
	struct engine_job *unsent;
	struct engine_plan *plans;
	struct engine_comm *comms;
	uint64_t next_number, next_plan;
	/* By chunk record: the id of the chunk that the worker has. */
	uint32_t sent_chunks[TABLE_CHUNKS];
	/* The worker has plans, chunks or communicators to forget. */
	bool has_stale;
	uint32_t n_jobs;
	uint32_t watch_position; /* deadline, while jobs are with the worker */
	/* How often that deadline passed since the worker's last message. */
	uint32_t n_silent;
	/* Counters since the start. */
	uint64_t n_gathers, n_reductions, n_failed, n_starts;
	uint64_t bytes_gathered, bytes_reduced; /* bytes read and written */
	uint64_t started_ms;     /* of the present or last worker */
	uint64_t died_ms;        /* of the last worker; 0: none has died */
	bool is_proven;          /* the present worker has done a job */
	uint32_t n_quick_deaths; /* one after another */
	struct error death;      /* message about the last death */
	char cpu[32];
};

void engine_init(struct engine *engine);

/* The path of fsdp-worker, which is set also when -ENOENT says that it is not
 * there. */
int engine_find_program(char ret[PATH_MAX], struct error *err);

/* After a restart, before memory is freed or allocated: kill a worker of an
 * earlier broker. */
int engine_adopt(struct engine *engine, struct error *err);

/*
 * Start the worker unless it runs: $FSDP_WORKER, or fsdp-worker in the
 * directory of this program. -ENOENT: there is no such program; -EAGAIN: it has
 * died several times in a row just after its start, and is started again some
 * seconds later.
 */
int engine_want(struct engine *engine, struct error *err);

/* Tell the worker to stop, wait for a second, then kill it. Remaining jobs fail
 * with -ECANCELED; after that no callback is called. */
void engine_stop(struct engine *engine);

/* Is there capacity for one more gather or reduction? -EBUSY: ENGINE_MAX_JOBS
 * wait; `on_room` is called when there is capacity again. */
int engine_check_room(const struct engine *engine, struct error *err);

/* Add a plan, whose entries are copied; jobs refer to it by `*ret_plan`. A
 * removed plan stays until no job needs it. */
int engine_add_plan(struct engine *engine, const struct plan *plan,
		    uint64_t *ret_plan, struct error *err);
void engine_remove_plan(struct engine *engine, uint64_t plan);

/*
 * Submit a job over these slots. `job` is copied; its ranges and its number are
 * set here. Every slot is pinned until `done` was called, exactly once and
 * never from within the submit. Slot 0: no range. Starts the worker, with the
 * errors of engine_want(). The caller has checked the capacity.
 */
struct engine_slots {
	uint32_t shards, full;   /* gather */
	uint32_t grads, partial; /* reduce */
	uint32_t inputs[PLAN_MAX_RANKS];
};
int engine_submit(struct engine *engine, const struct job *job,
		  const struct engine_slots *slots, engine_done_fn *done,
		  void *data, struct error *err);

/*
 * The same for a job on devices, of an opened communicator in which each of the
 * n_ranks ranks on this node has slots of its own. The caller sets `comm`,
 * `plan` and the fields after them in `job`.
 */
/* A timeline of a rank's session, and the value that it must reach. With 0
 * there is nothing to wait for. */
struct engine_fence {
	uint32_t timeline;
	uint64_t value;
};
struct engine_rank_slots {
	uint32_t n_ranks;
	const uint32_t *shards, *full;            /* gather */
	const uint32_t *inputs, *grads, *partial; /* reduce */
	const struct engine_fence *fences;        /* of the inputs */
};
int engine_submit_device(struct engine *engine, const struct job_device *job,
			 const struct engine_rank_slots *slots,
			 engine_done_fn *done, void *data, struct error *err);

/* Open a communicator of that id by a job, as above. After success it must be
 * forgotten, even if the job fails. */
int engine_open_comm(struct engine *engine, const struct job_comm *comm,
		     engine_done_fn *done, void *data, struct error *err);
/* Send the file of a member's timelines (borrowed), for the fences of its
 * inputs. It has no effect if the worker has the file. */
int engine_add_timelines(struct engine *engine, uint64_t comm, uint32_t member,
			 int fd, struct error *err);
/* Forget a communicator; the worker aborts its remaining work. */
void engine_forget_comm(struct engine *engine, uint64_t comm);

/* Submit a job that compares a value over all nodes. */
int engine_compare(struct engine *engine, const struct job_compare *compare,
		   engine_done_fn *done, void *data, struct error *err);

/* The record of a chunk was released: the worker unmaps the chunk. */
void engine_forget_chunk(struct engine *engine, uint32_t chunk_index);
