/*
 * The watch of an engine is a thread that aborts NCCL when the broker has ended
 * the run. A program often waits for its device in a call of the driver, and if
 * another rank has died, this call may return only after the abort. The next
 * call of the library that asks the broker says why the run has ended.
 */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct bounded;
struct error;
struct rank_engine;

struct engine_watch {
	struct bounded *thread; /* owned, or NULL if no thread runs */
	/* of is_stopped */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_stopped;
	/* The run is over; waits of NCCL then end. */
	atomic_bool is_over;
};

/* Initialize before the first call of NCCL, which gets `is_over`. */
void engine_watch_init(struct engine_watch *watch);
void engine_watch_deinit(struct engine_watch *watch);

/* Start the thread if the run has a verdict. Returns -EAGAIN or -ENOMEM if no
 * thread can be made. */
int engine_watch_start(struct rank_engine *engine, struct error *err);
/* Stop the thread, if there is one. If it is aborting NCCL, this waits until it
 * has done that or given up. */
void engine_watch_stop(struct rank_engine *engine);
