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
		/* NULL if it is not in the table (legacy and per-thread
		 * streams) */
		handle;
	struct context *context;
	bool is_blocking;    /* takes turns with the legacy stream */
	int priority;        /* kept only for queries */
	bool is_destroyed;   /* ends after queued work */
	bool is_dropped;     /* ends without the queued work */
	struct queue *queue; /* NULL if the stream has its own */
	struct work *first, **last;
	/* numbers of pieces of work since the start */
	uint64_t n_queued, n_done;
	uint64_t n_marked; /* for stream_synchronize_all() */
	unsigned int n_refs;
	pthread_cond_t arrival; /* signalled when work arrives, or at the end */
	pthread_t thread;
	bool has_ended; /* the thread has no more to do */
	uint64_t random;
	/* next stream of the context; later, next to be joined */
	struct stream *next;
};

struct work {
	struct stream *stream;
	struct work *next;
	uint64_t queued_at; /* mapping_clock() when it was queued */
	/* Runs on the stream's thread, without the lock, where device memory
	 * may be accessed. An error becomes that of the context. May be
	 * NULL. */
	CUresult (*run)(struct work *work);
	/* Called after `run`, or instead of it. Frees the work. NULL means
	 * free(). */
	void (*end)(struct work *work, bool is_done);
	bool is_quick;  /* it has no delay */
	bool is_wait;   /* it stays at the head of its queue until it is done */
	uint64_t place; /* position in the queue */
};

/* Makes a stream. The caller owns one reference. */
CUresult stream_new(struct context *context, bool is_blocking,
		    struct stream **ret);
/* Lets the stream's thread end when queued work is done. If there is no work,
 * it has ended on return. May release the lock. The caller keeps the
 * reference. */
void stream_end(struct stream *stream);
/* Joins threads that have ended. Releases the lock. */
void stream_reap(void);
void stream_unref(struct stream *stream);

/*
 * Finds the stream that a handle means for the calling thread, whose current
 * context is given. Returns the error of the stream's own context, which may be
 * another one. If the stream was destroyed or never made, the process ends with
 * a sentence, because an H200's driver crashed.
 */
CUresult stream_find(struct context *context, CUstream handle,
		     struct stream **ret);

/* Enqueues the work, which the stream owns from here on. Work in a blocking
 * stream waits for the present work of the legacy stream, and vice versa. */
void stream_enqueue(struct stream *stream, struct work *work);
/* Waits until all present work is done. Releases the lock. */
CUresult stream_synchronize(struct stream *stream);
CUresult stream_synchronize_all(struct context *context);
/* Waits until the memory is not held (fake_hold_memory()). Releases the
 * lock. */
CUresult stream_await_memory(void);
/* Does the same, and also waits for all work if FAKECUDA_SYNC is set and
 * drivers may wait for it in this call. */
CUresult stream_synchronize_maybe(struct context *context);

/* Returns whether the stream has no work. For the legacy stream, the blocking
 * streams must have none, either. */
bool stream_is_idle(const struct stream *stream);

/* Destroys the streams of a context that ends. Waits for work that runs, which
 * stops waiting for other work. */
void stream_destroy_all(struct context *context);
/* Called when the process ends. The threads end soon after. */
void stream_stop_all(void);

/* Returns whether work that waits should stop waiting. */
bool stream_is_useless(const struct stream *stream);
/* Does the same check without the lock. */
bool stream_is_stopping(const struct stream *stream);
/* Sleeps for a moment without the lock, longer with every call. *us is 0 at
 * first. */
void stream_back_off(unsigned int *us);

/* Returns whether this thread is in a host function. Such a function must not
 * call the driver. */
bool stream_is_host_function(void);
void stream_set_host_function(bool is_one);
