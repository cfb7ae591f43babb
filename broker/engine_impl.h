/*
 * What the files of the engine share and nobody else sees.
 *
 * engine.c keeps jobs and hears the worker; engine_link.c tells it what it must
 * know; engine_process.c is about its process: starting, watching, ending.
 */
#pragma once
#include "broker/engine.h"
#include "proto/error.h"
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

/* The name of its pidfd in the fd store. */
#define WORKER_NAME "worker"

struct engine_plan {
	struct job_plan message;
	struct plan_entry *entries; /* owned */
	bool is_sent, is_removed;
	uint32_t n_jobs; /* that name it */
	struct engine_plan *next;
};

/* A communicator on devices that the worker has opened, or is to. */
struct engine_comm {
	uint64_t id;
	uint32_t timeout_ms; /* of its ranks */
	bool is_sent, is_removed;
	uint32_t n_jobs; /* that name it */
	struct engine_comm *next;
};

/* Of a reduction on devices: three for each rank. */
#define ENGINE_JOB_SLOTS (3 * PLAN_MAX_RANKS)

struct engine_job {
	union {
		uint32_t kind; /* all begin with it */
		struct job host;
		struct job_device device;
		struct job_comm comm;
		struct job_agree agree;
	} message;
	size_t size; /* of the message */
	uint64_t number;
	uint32_t slots[ENGINE_JOB_SLOTS]; /* pinned */
	uint32_t n_slots;
	struct engine_plan *plan; /* NULL: none */
	struct engine_comm *comm; /* NULL: on host memory */
	engine_done_fn *done;
	void *data;
	struct engine_job *next;
};

/*
 * One process. Lost is a worker that nothing is said to any more; it was sent
 * SIGKILL, and is over when its pidfd says so. Freed when its handles are
 * closed, which the engine does not wait for.
 */
struct engine_worker {
	struct engine *engine;
	pid_t pid;
	int link_fd, pidfd; /* owned */
	bool is_lost;
	bool is_full;       /* the link */
	bool is_stored;     /* the pidfd */
	struct error cause; /* why, if that was our decision */
	uv_poll_t link_poll, pidfd_poll;
	uint8_t n_handles;
};

/* --- engine.c --------------------------------------------------------------
 */

void engine_on_link(uv_poll_t *poll, int status, int events);

/* The worker owes something from now on. */
void engine_watch_silence(struct engine *engine);

/* --- engine_link.c ---------------------------------------------------------
 */

/* Send what there is room for; the rest when there is more. */
void engine_pump(struct engine *engine);

struct engine_plan *engine_find_plan(const struct engine *engine, uint64_t id);
struct engine_comm *engine_find_comm(const struct engine *engine, uint64_t id);

/* If nobody needs it any more. The worker may have to be told first. */
void engine_drop_plan(struct engine *engine, struct engine_plan *plan);
void engine_drop_comm(struct engine *engine, struct engine_comm *comm);

void engine_free_plan(struct engine *engine, struct engine_plan *plan);

/* --- engine_process.c ------------------------------------------------------
 */

/* A new process, watched by these two. */
int worker_start(struct engine *engine, uv_poll_cb on_link, uv_poll_cb on_pidfd,
		 struct engine_worker **ret, struct error *err);

/* Kill it; on_pidfd is called when it is gone. NULL: it ended its connection by
 * itself, so that how it ended says why. */
void worker_lose(struct engine_worker *worker, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Have on_link called for these uv_poll_event. */
void worker_watch_link(struct engine_worker *worker, int events,
		       uv_poll_cb on_link);

/* The process is gone: collect it, and say in a sentence how it ended. */
void worker_collect(struct engine_worker *worker, struct error *ret);

/* Close its connection, wait so long, kill it. Nothing if it has ended. */
void worker_stop(struct engine_worker *worker, int patience_ms);

/* Close everything; the memory goes when the loop has closed the handles. */
void worker_free(struct engine_worker *worker);
