/*
 * What the files of the engine share and nobody else sees.
 *
 * engine.c keeps jobs and plans and speaks with the worker; engine_process.c
 * is about its process: starting, watching, ending.
 */
#pragma once
#include "broker/engine.h"
#include "proto/error.h"
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

/* The name of its pidfd in the fd store. */
#define WORKER_NAME "worker"

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
