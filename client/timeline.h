/*
 * Timelines (shm/timeline.h) in this process: its own, which its streams write,
 * and those of other sessions that it waits for.
 *
 * A stream gets one of our counters at its first use. There are fewer counters
 * than there can be streams, and the driver gives the handle of a destroyed
 * stream to the next one, so the assignment is only a preference. Every write
 * waits for the previous write to the same counter, so that a counter never
 * decreases, whichever stream writes it. This cannot deadlock, since a stream
 * only waits for work that the device got before (but see cuda/fence.h for
 * collectives).
 *
 * Files of other sessions stay mapped until the connection is closed, because a
 * stream that waits for one may not have reached this wait yet.
 */
#pragma once
#include "client/tensor.h"
#include "cuda/fence.h"
#include "shm/timeline.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_client;
struct timeline_file;

struct counter {
	pthread_mutex_t lock; /* held while a value is chosen and enqueued */
	uint64_t value;       /* the last value that was enqueued */
	/* The stream that prefers this counter; protected by the lock of the
	 * book. */
	const struct device *device;
	CUstream stream;
	pthread_t thread; /* used if `stream` is CU_STREAM_PER_THREAD */
	uint64_t used;    /* when it was last chosen; 0: never */
};

struct timeline_book {
	pthread_mutex_t lock;
	struct timeline_file *files; /* owned */
	uint64_t n_chosen;
	struct counter counters[TIMELINES]; /* the first is not used */
};

void timeline_book_init(struct timeline_book *book);
/* Wait until the devices that have mapped files are idle or have failed, so
 * that no stream reads a file any more. -ETIMEDOUT: a device has not become
 * idle within `timeout_ms`, which applies to each device. */
int timeline_book_synchronize(const struct timeline_book *book,
			      int32_t timeout_ms, struct error *err);
/* Unmap and free all files. In a forked child none of them is mapped. */
void timeline_book_deinit(struct timeline_book *book, bool is_forked);

/* Make `stream`, which belongs to the device, write the next value of one of
 * our counters after its work so far. */
int timeline_signal(struct fsdp_client *client, const struct device *device,
		    CUstream stream, struct fence *ret, struct error *err);

/*
 * Store whether the timeline has reached the value of `fence`, which is always
 * true for a session that has ended. `ref` is a tensor that is held and has
 * this fence; because of this hold, the broker lets this process read the
 * timelines of another session.
 */
int timeline_look(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct fence *fence, bool *ret, struct error *err);

/* Tell the same, as far as is known without a request. */
bool timeline_peek(struct fsdp_client *client, const struct fence *fence);

/* The device can register only writable pages, and this process may not write
 * those of another user: the caller must wait on the host (timeline_look()). */
#define TIMELINE_FOR_HOST 1

/* Make `stream` wait until the timeline has reached the value, or return
 * TIMELINE_FOR_HOST. */
int timeline_wait(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct fence *fence, const struct device *device,
		  CUstream stream, struct error *err);
