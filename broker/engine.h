/*
 * The engine: who moves and adds the bytes of collectives.
 *
 * The broker never copies a byte. It hands jobs (worker/job.h) to a stream of
 * an engine and hears of each by its completion ticket. Streams keep their
 * order; nothing else is promised. This one is the local engine: fsdp-worker, a
 * child process that maps the chunks it serves; it is started when first
 * wanted, and again after it has died. It serves communicators on devices too,
 * those whose ranks do not do their work themselves; it then must know the
 * communicator, and loses it when it dies.
 *
 * If the worker dies, all jobs it had fail with -EIO and a sentence, as soon as
 * its process is gone; memory they wrote is pinned until then, so nothing else
 * can have been hit. One that is silent for minutes while it has work is
 * killed. Jobs that no worker has had yet wait for the next one, which is then
 * started at once. A worker that outlived its broker is found by its pidfd,
 * which the fd store keeps under the name "worker", and killed before the new
 * broker frees anything.
 */
#pragma once
#include "broker/worker/job.h"
#include "proto/error.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct broker;

/* Called from the loop, between transactions; may submit and commit. */
typedef void engine_done_fn(void *data, const struct job_done *done);

/* engine_impl.h */
struct engine_comm;
struct engine_job;
struct engine_plan;
struct engine_worker;

#define ENGINE_MAX_JOBS 16384

struct engine {
	struct broker *broker;
	struct engine_worker *worker; /* NULL: none runs */
	int32_t pid;                  /* of it; 0 */
	bool is_ready;                /* it said hello */
	bool is_stopping;
	struct engine_job *first, *last; /* submitted, not done, in order */
	struct engine_job *unsent;       /* the first that no worker has */
	struct engine_plan *plans;
	struct engine_comm *comms;
	uint64_t next_number, next_plan;
	uint32_t sent_chunks[TABLE_CHUNKS]; /* by chunk record: the id it has */
	bool has_stale;                     /* something is to be forgotten */
	uint32_t n_jobs;
	uint32_t watch_position; /* deadline, while the worker owes something */
	uint32_t n_silent;       /* of these since it last said something */
	/* since start */
	uint64_t n_gathers, n_reductions, n_failed, n_starts;
	uint64_t bytes_gathered, bytes_reduced; /* read and written */
	uint64_t started_ms;     /* of the present or last worker */
	uint64_t died_ms;        /* of the last one; 0: none has */
	bool is_proven;          /* the present one has done a job */
	uint32_t n_quick_deaths; /* in a row */
	struct error death;      /* the last one, as a sentence */
	char cpu[32];
};

int engine_init(struct engine *engine, struct broker *broker,
		struct error *err);

/* After a restart, before anything is freed or allocated: no worker of an
 * earlier broker is left. */
int engine_adopt(struct engine *engine, struct error *err);

/*
 * Start the worker unless it runs: $FSDP_WORKER, or fsdp-worker beside this
 * program. -ENOENT: there is none; -EAGAIN: it has died several times in a row
 * just after its start, and is tried again some seconds later.
 */
int engine_want(struct engine *engine, struct error *err);

/* Stop: the worker is told and awaited, for a second, then killed. Jobs that
 * are left fail with -ECANCELED; after that nothing is called any more. */
void engine_stop(struct engine *engine);

/* For one more gather or reduction? -EBUSY: ENGINE_MAX_JOBS wait; when there is
 * room again, comms_on_room(). */
int engine_check_room(const struct engine *engine, struct error *err);

/* The number under which jobs name the plan. The entries are copied. A plan
 * that is removed stays until no job needs it. */
int engine_add_plan(struct engine *engine, const struct plan *plan,
		    uint64_t *ret_plan, struct error *err);
void engine_remove_plan(struct engine *engine, uint64_t plan);

/*
 * A job over these slots. `job` is copied; its ranges are filled from the
 * slots, its number is set. Every slot named is pinned until `done` has been
 * called, exactly once, never from within the submit. Slot 0: no range.
 * Starts the worker: as engine_want(). There must be room.
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
 * On devices: a job of a communicator that was opened, in which all of its
 * n_ranks ranks here have slots of their own. As above; `comm`, `plan` and what
 * follows in `job` are the caller's.
 */
struct engine_rank_slots {
	uint32_t n_ranks;
	const uint32_t *shards, *full;            /* gather */
	const uint32_t *inputs, *grads, *partial; /* reduce */
};
int engine_submit_device(struct engine *engine, const struct job_device *job,
			 const struct engine_rank_slots *slots,
			 engine_done_fn *done, void *data, struct error *err);

/* A communicator of that id is opened, by a job of its own: as above. It is to
 * be forgotten if this gave 0, whatever becomes of it. */
int engine_open_comm(struct engine *engine, const struct job_comm *comm,
		     engine_done_fn *done, void *data, struct error *err);
/* What it still does is broken off. */
void engine_forget_comm(struct engine *engine, uint64_t comm);

/* A job: compare a value over all nodes. */
int engine_agree(struct engine *engine, const struct job_agree *agree,
		 engine_done_fn *done, void *data, struct error *err);

/* The record of a chunk was released: the worker unmaps it. */
void engine_forget_chunk(struct engine *engine, uint32_t chunk_index);
