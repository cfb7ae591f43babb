/*
 * Functions that the files of the engine share.
 *
 * engine.c keeps the jobs and receives the worker's messages; engine_link.c
 * sends messages to the worker; engine_process.c starts, watches and ends its
 * process.
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
	/* The list is that of the plans in use, or of those that the worker
	 * must forget. `at` points to what points to this plan. */
	struct engine_plan *next, **at;
};

/* A communicator on devices that the worker has opened or will open. */
struct engine_comm {
	uint64_t id;
	uint32_t timeout_ms; /* time-out of its ranks */
	bool is_sent, is_removed;
	bool is_lost;    /* the worker that had it has died */
	uint32_t n_jobs; /* jobs that refer to it */
	/* The file of timelines of each member: 0 if there is none, an fd
	 * (owned) that must still be sent to the worker, or a mark that it was
	 * sent. */
	int timelines[PLAN_MAX_RANKS];
	struct engine_comm *next;
};

#define ENGINE_TIMELINES_SENT (-1)

/* The slots of a reduction on devices: three for each rank. */
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
 * A process of fsdp-worker. A worker is lost when it gets no more messages,
 * because it was sent SIGKILL and its pidfd will report its end. The struct is
 * freed when its handles are closed; the engine does not wait for that.
 */
struct engine_worker {
	struct engine *engine;
	pid_t pid;
	int link_fd, pidfd; /* owned */
	bool is_lost;
	bool is_full;       /* on_link is called when the link has space */
	bool is_stored;     /* the fd store has the pidfd */
	struct error cause; /* the reason, if the engine killed it */
	uv_poll_t link_poll, pidfd_poll;
	uint8_t n_handles;
};

/* --- engine.c ------------------------------------------------------------ */

/* The callback of the link: receives messages of the worker, and sends more. */
void engine_on_link(uv_poll_t *poll, int status, int events);

/* Limit the silence of the worker, which has a job from now on. */
void engine_watch_silence(struct engine *engine);

/* --- engine_link.c ------------------------------------------------------- */

/* Send messages while the link takes them; the others are sent when it has
 * space. If descriptors or memory are short, `shortage` is set, and on_link
 * fails the first unsent job. */
void engine_pump(struct engine *engine);

/* Returns the communicator of this id, which must exist. */
struct engine_comm *engine_find_comm(const struct engine *engine, uint64_t id);

/* Free the plan or communicator if it is no longer needed and the worker has
 * forgotten it. */
void engine_drop_plan(struct engine *engine, struct engine_plan *plan);
void engine_drop_comm(struct engine *engine, struct engine_comm *comm);

/* Free the plan now. The worker must not have it. */
void engine_free_plan(struct engine_plan *plan);

/* --- engine_process.c ---------------------------------------------------- */

/* Start a process. The two callbacks watch it. */
int worker_start(struct engine *engine, uv_poll_cb on_link, uv_poll_cb on_pidfd,
		 struct engine_worker **ret, struct error *err);

/* Kill the worker; on_pidfd is called when it has exited. `format` is the
 * reason, or NULL if the worker closed its connection itself, so that its exit
 * status gives the reason. */
void worker_lose(struct engine_worker *worker, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Let on_link be called for these events (uv_poll_event). */
void worker_watch_link(struct engine_worker *worker, int events,
		       uv_poll_cb on_link);

/* Reap the process, which has exited, and describe how it ended. */
void worker_collect(struct engine_worker *worker, struct error *ret);

/* Close the worker's connection, wait up to `patience_ms`, then kill it. There
 * is no effect if it has ended. */
void worker_stop(struct engine_worker *worker, int patience_ms);

/* Close everything; the memory is freed when the loop has closed
 * the handles. */
void worker_free(struct engine_worker *worker);
