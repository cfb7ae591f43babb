/*
 * The engine: moves and sums the bytes of collectives.
 *
 * The broker never copies tensor data. It submits jobs (collective/job.h) to a
 * stream of an engine, which reports the completion of each job by its number.
 * Jobs of one stream run in order; there is no other guarantee. This is the
 * local engine: fsdp-worker, a child process that maps the chunks it uses. It
 * is started when it is first used, and again after it has died. It also serves
 * communicators on devices whose ranks do not do the work themselves; it must
 * open such a communicator, which is lost if the worker dies.
 *
 * If the worker dies, all jobs that it had fail with -EIO and a message, as
 * soon as its process has exited; the memory that they write is pinned until
 * then, so the worker cannot write to reused memory. A worker that has work and
 * is silent for minutes is killed. Jobs that were not sent yet wait for the
 * next worker, which is then started at once. A worker that outlived its broker
 * is found by its pidfd, which the fd store keeps under the name "worker", and
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

/* Called by the loop, between transactions; it may submit jobs and commit. */
typedef void engine_done_fn(void *data, const struct job_done *done);

/* These are in engine_impl.h. */
struct engine_comm;
struct engine_job;
struct engine_plan;
struct engine_worker;

#define ENGINE_MAX_JOBS 16384

/* Functions of the folders above that the engine calls; broker.c sets them. */
struct engine_hooks {
	void *data;
	/* Reports that there is capacity for jobs again. This is called within
	 * a transaction. */
	void (*on_room)(void *data);
	/* Reports that the worker has died, and that its jobs have failed.
	 * Communicators that it had are lost (engine_has_lost()). The hook
	 * commits. */
	void (*on_death)(void *data, const struct error *cause);
};

struct engine {
	/* Borrowed. These and the hooks are set before engine_init(). */
	struct store *store;
	/* the limit that is restored in the worker */
	const struct rlimit *first_limit;
	struct engine_hooks hooks;
	bool has_no_sandbox; /* set by broker_confine() */
	/* the broker's oom_score_adj; -1: not open */
	int oom_fd;
	struct engine_worker *worker; /* NULL: not running */
	int32_t pid;                  /* of the worker; 0: there is none */
	bool is_ready;                /* the worker said hello */
	bool is_stopping;
	struct engine_job *first, *last; /* submitted and not done, in order */
	/* The first job that was not sent yet. */
	struct engine_job *unsent;
	int shortage; /* negative errno: why that job cannot be sent */
	struct engine_plan *plans, *stale_plans;
	struct engine_comm *comms;
	uint64_t next_number, next_plan;
	/* For each chunk record, the id of the chunk that the worker has. */
	uint32_t sent_chunks[TABLE_CHUNKS];
	/* Whether the worker has plans, chunks or communicators to forget. */
	bool has_stale, has_stale_chunks;
	uint32_t n_jobs;
	uint32_t watch_position; /* deadline, runs while the worker has jobs */
	uint32_t retry_position; /* deadline after a shortage */
	/* How often that deadline has passed since the worker's last
	 * message. */
	uint32_t n_silent;
	/* These counters begin with the broker. */
	uint64_t n_gathers, n_reductions, n_failed, n_starts;
	uint64_t bytes_gathered, bytes_reduced; /* bytes read and written */
	uint64_t started_ms; /* start of the present or last worker */
	/* death of the last worker; 0: none has died */
	uint64_t died_ms;
	bool is_proven;          /* the present worker has done a job */
	uint32_t n_quick_deaths; /* the number of them in a row */
	struct error death;      /* message about the last death */
	char cpu[32];
};

/* Prepare the engine, without starting the worker. This comes before the
 * sandbox, since it opens a file. */
void engine_init(struct engine *engine);

/* Find the path of fsdp-worker. It is also set when -ENOENT says that there is
 * no such program. */
int engine_find_program(char ret[PATH_MAX], struct error *err);

/* Kill the worker of an earlier broker, after a restart and before memory is
 * freed or allocated. */
int engine_adopt(struct engine *engine, struct error *err);

/*
 * Start the worker unless it runs: $FSDP_WORKER, or fsdp-worker in the
 * directory of this program. Returns -ENOENT if there is no such program.
 * Returns -EAGAIN if the worker has died several times in a row just after its
 * start; then it can be started again some seconds later.
 */
int engine_want(struct engine *engine, struct error *err);

/* Tell the worker to stop, wait for a second, then kill it. The remaining jobs
 * fail with -ECANCELED. No callback is called after this function. */
void engine_stop(struct engine *engine);

/* Check that there is capacity for one more gather or reduction. Returns -EBUSY
 * if ENGINE_MAX_JOBS wait; then `on_room` is called when there is capacity
 * again. */
int engine_check_room(const struct engine *engine, struct error *err);

/* Add a plan, whose entries are copied, for jobs. A removed plan stays until no
 * job needs it. */
int engine_add_plan(struct engine *engine, const struct plan *plan,
		    struct engine_plan **ret, struct error *err);
void engine_remove_plan(struct engine *engine, struct engine_plan *plan);

/*
 * Submit a job on these slots; slot 0 stands for no range. `job` is copied, and
 * its ranges, plan and number are set here. Every slot is pinned until `done`
 * was called, which happens exactly once and never within this call. This
 * starts the worker, and returns the errors of engine_want(). The caller has
 * checked the capacity.
 */
struct engine_slots {
	uint32_t shards, full;   /* gather */
	uint32_t grads, partial; /* reduce */
	uint32_t inputs[PLAN_MAX_RANKS];
};
int engine_submit(struct engine *engine, const struct job *job,
		  struct engine_plan *plan, const struct engine_slots *slots,
		  engine_done_fn *done, void *data, struct error *err);

/*
 * Submit a job on devices, for an opened communicator in which each of the
 * n_ranks ranks on this node has slots of its own. The caller sets `comm` and
 * the fields after `plan` in `job`.
 */
/* A timeline of a rank's session, and the value that it must reach. There is no
 * wait if `timeline` is 0. */
struct engine_fence {
	uint32_t timeline;
	uint64_t value;
};
struct engine_rank_slots {
	uint32_t n_ranks;
	const uint32_t *shards, *full;            /* gather */
	const uint32_t *inputs, *grads, *partial; /* reduce */
	const struct engine_fence *fences;        /* fences of the inputs */
};
int engine_submit_device(struct engine *engine, const struct job_device *job,
			 struct engine_plan *plan,
			 const struct engine_rank_slots *slots,
			 engine_done_fn *done, void *data, struct error *err);

/* Open a communicator of that id by a job (engine_submit()). If this succeeds,
 * the communicator must be forgotten, even if the job fails. */
int engine_open_comm(struct engine *engine, const struct job_comm *comm,
		     engine_done_fn *done, void *data, struct error *err);
/* Returns whether the worker that had the communicator has died. One that was
 * opened while that worker died goes to the next. */
bool engine_has_lost(const struct engine *engine, uint64_t comm);
/* Send the file of a member's timelines (borrowed), for the fences of its
 * inputs. There is no effect if the worker has the file. */
int engine_add_timelines(struct engine *engine, uint64_t comm, uint32_t member,
			 int fd, struct error *err);
/* Forget a communicator. The worker aborts its remaining work. */
void engine_forget_comm(struct engine *engine, uint64_t comm);

/* Submit a job that compares a value over all nodes. */
int engine_compare(struct engine *engine, const struct job_compare *compare,
		   engine_done_fn *done, void *data, struct error *err);

/* Let the worker unmap a chunk, because the chunk's record was released. */
void engine_forget_chunk(struct engine *engine, uint32_t chunk_index);
