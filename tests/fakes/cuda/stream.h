/*
 * Streams: a queue of work and a thread that does it, in order, each piece
 * after a random delay.
 *
 * A piece of work begins whatever describes it, on the heap. It is run if
 * nothing has gone wrong in its context, and ended in any case; dropped work is
 * only ended.
 *
 * All functions: with the process's lock, unless they say otherwise.
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
	int priority;        /* kept for who asks, no more */
	bool is_destroyed;   /* ends after what is queued */
	bool is_dropped;     /* ends without it */
	struct queue *queue; /* NULL: it shares none */
	struct work *first, **last;
	uint64_t n_queued, n_done; /* of all time */
	uint64_t n_marked;         /* stream_synchronize_all() */
	unsigned int n_refs;
	pthread_cond_t arrival; /* of work, or of the end */
	pthread_t thread;
	bool has_ended; /* the thread has nothing to do any more */
	uint64_t random;
	struct stream *next; /* of the context; then of those to be joined */
};

struct work {
	struct stream *stream;
	struct work *next;
	uint64_t queued_at; /* mapping_clock() */
	/* On the stream's thread, without the lock, where device memory can be
	 * touched. An error becomes the context's. May be NULL. */
	CUresult (*run)(struct work *work);
	/* After that, or instead of it. Frees the work. NULL: free(). */
	void (*end)(struct work *work, bool is_done);
	bool is_quick;  /* no delay */
	bool is_wait;   /* stays at the head of its queue until it is done */
	uint64_t place; /* in the queue */
};

/* A new one, with one reference of the caller's. */
CUresult stream_new(struct context *context, bool is_blocking,
		    struct stream **ret);
/* Its thread ends when what is queued is done; where nothing is, it has ended
 * on return. May let go of the lock. The reference stays. */
void stream_end(struct stream *stream);
/* Join threads that have ended. Lets go of the lock. */
void stream_reap(void);
void stream_unref(struct stream *stream);

/*
 * The stream that a handle means for the calling thread, whose current context
 * is given. INVALID_HANDLE: there is none; else the error of its own context,
 * which may be another one.
 */
CUresult stream_find(struct context *context, CUstream handle,
		     struct stream **ret);

/* `work` is the stream's from here on. Work in a blocking stream waits for what
 * the legacy stream has, and the other way round. */
void stream_enqueue(struct stream *stream, struct work *work);
/* Wait until all that is queued now is done. Lets go of the lock. */
CUresult stream_synchronize(struct stream *stream);
CUresult stream_synchronize_all(struct context *context);
/* The same if drivers may do it there, and FAKECUDA_SYNC says that this one
 * does. */
CUresult stream_synchronize_maybe(struct context *context);

/* Is there nothing to do in it, nor in what it takes turns with? */
bool stream_is_idle(const struct stream *stream);

/* Of a context that ends; waits for work that is under way, but not for what
 * that waits for. */
void stream_destroy_all(struct context *context);
/* The process ends; threads do as well, in a while. */
void stream_stop_all(void);

/* For work that waits: is there no use in it any more? */
bool stream_is_useless(const struct stream *stream);
/* The same without the lock. */
bool stream_is_stopping(const struct stream *stream);
/* Without the lock: a moment of sleep, longer with every call; *us is 0 at
 * first. */
void stream_back_off(unsigned int *us);

/* Is this thread in a host function? It must not call the driver. */
bool stream_is_host_function(void);
void stream_set_host_function(bool is_one);
