/*
 * Streams: a queue of work and a thread that does it, in order, each piece
 * after a random delay.
 *
 * A struct work is the first member of its description, on the heap. It is run
 * if its context has no error, and ended in any case; dropped work is only
 * ended.
 *
 * The caller of each function holds the process's lock, unless its comment says
 * otherwise.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct context;
struct queue;

#define STREAM_PRIORITY_GREATEST (-5) /* the least is 0 */

struct stream {
	CUstream
		handle; /* NULL: not in the table: legacy and per-thread ones */
	struct context *context;
	bool is_blocking;    /* takes turns with the legacy stream */
	int priority;        /* kept for queries only */
	bool is_destroyed;   /* ends after queued work */
	bool is_dropped;     /* ends without it */
	struct queue *queue; /* NULL if it shares none */
	struct work *first, **last;
	uint64_t n_queued, n_done; /* since the start */
	uint64_t n_marked;         /* stream_synchronize_all() */
	unsigned int n_refs;
	pthread_cond_t arrival; /* of work, or of the end */
	pthread_t thread;
	bool has_ended; /* the thread has no more to do */
	uint64_t random;
	struct stream *next; /* of the context; then of those to be joined */
};

struct work {
	struct stream *stream;
	struct work *next;
	uint64_t queued_at; /* mapping_clock() */
	/* Runs on the stream's thread, without the lock, where device memory
	 * may be accessed. An error becomes the context's. May be NULL. */
	CUresult (*run)(struct work *work);
	/* Is called after that, or instead of it, and frees the work. NULL
	 * calls free(). */
	void (*end)(struct work *work, bool is_done);
	bool is_quick;  /* has no delay */
	bool is_wait;   /* stays at the head of its queue until it is done */
	uint64_t place; /* position in the queue */
};

/* Make a stream. The caller owns one reference. */
CUresult stream_new(struct context *context, bool is_blocking,
		    struct stream **ret);
/* Let its thread end when queued work is done. If there is none, it has ended
 * on return. May release the lock. The caller keeps the reference. */
void stream_end(struct stream *stream);
/* Join threads that have ended. Releases the lock. */
void stream_reap(void);
void stream_unref(struct stream *stream);

/*
 * Find the stream that a handle means for the calling thread, whose current
 * context is given. Returns the error of the stream's own context, which may be
 * another one. If the stream was destroyed or never made, the process ends with
 * a sentence: an H200's driver crashed.
 */
CUresult stream_find(struct context *context, CUstream handle,
		     struct stream **ret);

/* The stream owns `work` from here on. Work in a blocking stream waits for the
 * present work of the legacy stream, and vice versa. */
void stream_enqueue(struct stream *stream, struct work *work);
/* Wait until all present work is done. Releases the lock. */
CUresult stream_synchronize(struct stream *stream);
CUresult stream_synchronize_all(struct context *context);
/* Wait until nobody holds the memory (fake_hold_memory()). Releases the lock.
 */
CUresult stream_await_memory(void);
/* Do that; and wait for all work if drivers may do it there and FAKECUDA_SYNC
 * is set. */
CUresult stream_synchronize_maybe(struct context *context);

/* Is there no work in the stream, nor in those with which it takes turns? */
bool stream_is_idle(const struct stream *stream);

/* Destroy the streams of a context that ends. Waits for work that runs, but not
 * for what that waits for. */
void stream_destroy_all(struct context *context);
/* The process ends; the threads end soon after. */
void stream_stop_all(void);

/* For work that waits: should it stop waiting? */
bool stream_is_useless(const struct stream *stream);
/* Check the same without the lock. */
bool stream_is_stopping(const struct stream *stream);
/* Sleep for a moment without the lock, longer with every call. *us is 0 at
 * first. */
void stream_back_off(unsigned int *us);

/* Is this thread in a host function? Such a function must not call the
 * driver. */
bool stream_is_host_function(void);
void stream_set_host_function(bool is_one);
