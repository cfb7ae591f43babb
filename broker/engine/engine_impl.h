/*
 * Internals shared by the files of the engine.
 *
 * engine.c keeps the jobs and receives the worker's messages; engine_link.c
 * sends the worker what it must know; engine_process.c starts, watches and ends
 * its process.
 */
#pragma once
#include "broker/engine/engine.h"
#include "proto/error.h"
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

/* The name of the worker's pidfd in the fd store. */
#define WORKER_NAME "worker"

struct engine_plan {
	struct job_plan message;
	struct plan_entry *entries; /* owned */
	bool is_sent, is_removed;
	uint32_t n_jobs; /* jobs that refer to it */
	struct engine_plan *next;
};

/* A communicator on devices that the worker has opened or will open. */
struct engine_comm {
	uint64_t id;
	uint32_t timeout_ms; /* of its ranks */
	bool is_sent, is_removed;
	uint32_t n_jobs; /* jobs that refer to it */
	/* For each member, whether the worker has its file of timelines: 0
	 * means that there is no file, an fd (owned) that it must still be
	 * sent, and a mark that it was sent. */
	int timelines[PLAN_MAX_RANKS];
	struct engine_comm *next;
};

#define ENGINE_TIMELINES_SENT (-1)

/* A reduction on devices has three slots for each rank. */
#define ENGINE_JOB_SLOTS (3 * PLAN_MAX_RANKS)

struct engine_job {
	union {
		uint32_t kind; /* all messages begin with it */
		struct job host;
		struct job_device device;
		struct job_comm comm;
		struct job_compare compare;
	} message;
	size_t size; /* of the message */
	uint64_t number;
	uint32_t slots[ENGINE_JOB_SLOTS]; /* pinned */
	uint32_t n_slots;
	struct engine_plan *plan; /* NULL: the job needs no plan */
	struct engine_comm *comm; /* NULL: on host memory */
	engine_done_fn *done;
	void *data;
	struct engine_job *next;
};

/*
 * One process. A worker counts as lost when it gets no more messages: it was
 * sent SIGKILL, and its pidfd will report its end. The struct is freed when its
 * handles are closed; the engine does not wait for that.
 */
struct engine_worker {
	struct engine *engine;
	pid_t pid;
	int link_fd, pidfd; /* owned */
	bool is_lost;
	bool is_full;       /* the link is full */
	bool is_stored;     /* the fd store has the pidfd */
	struct error cause; /* the reason, if the engine killed it */
	uv_poll_t link_poll, pidfd_poll;
	uint8_t n_handles;
};

/* --- engine.c ------------------------------------------------------------ */

void engine_on_link(uv_poll_t *poll, int status, int events);

/* The worker has a job from now on: limit its silence. */
void engine_watch_silence(struct engine *engine);

/* --- engine_link.c ------------------------------------------------------- */

/* Send messages while the link takes them; the rest are sent when it has
 * space. */
void engine_pump(struct engine *engine);

struct engine_plan *engine_find_plan(const struct engine *engine, uint64_t id);
struct engine_comm *engine_find_comm(const struct engine *engine, uint64_t id);

/* Free it if it is no longer needed. The worker may have to be told first. */
void engine_drop_plan(struct engine *engine, struct engine_plan *plan);
void engine_drop_comm(struct engine *engine, struct engine_comm *comm);

void engine_free_plan(struct engine *engine, struct engine_plan *plan);

/* --- engine_process.c ---------------------------------------------------- */

/* Start a process that is watched by these two callbacks. */
int worker_start(struct engine *engine, uv_poll_cb on_link, uv_poll_cb on_pidfd,
		 struct engine_worker **ret, struct error *err);

/* Kill it; on_pidfd is called when it is gone. `format` NULL: it closed its
 * connection itself, so its exit status tells the reason. */
void worker_lose(struct engine_worker *worker, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Have on_link called for these events (uv_poll_event). */
void worker_watch_link(struct engine_worker *worker, int events,
		       uv_poll_cb on_link);

/* The process is gone: reap it, and describe how it ended. */
void worker_collect(struct engine_worker *worker, struct error *ret);

/* Close its connection, wait up to `patience_ms`, then kill it. No effect if it
 * has ended. */
void worker_stop(struct engine_worker *worker, int patience_ms);

/* Close everything; the memory is freed when the loop has closed
 * the handles. */
void worker_free(struct engine_worker *worker);
