/*
 * Timelines (shm/timeline.h) in this process: its own, which its streams write,
 * and those of other sessions that it waits for.
 *
 * A stream gets one of our counters at its first use. There are fewer counters
 * than there can be streams, and the driver gives the handle of a destroyed
 * stream to the next one, so the assignment is only a preference. Every write
 * waits for the previous write to the same counter: so a counter never
 * decreases, whichever stream writes it. This cannot deadlock, since a stream
 * only waits for work that the device got before (but see cuda/fence.h for
 * collectives).
 *
 * Files of other sessions stay mapped until the connection is closed, because a
 * stream that waits on one may still have to reach that wait.
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
	uint64_t value;       /* enqueued last */
	/* The stream's preferred counter; protected by the lock of the book. */
	const struct device *device;
	CUstream stream;
	pthread_t thread; /* of CU_STREAM_PER_THREAD */
	uint64_t used;    /* when it was last chosen; 0: never */
};

struct timeline_book {
	pthread_mutex_t lock;
	struct timeline_file *files; /* owned */
	uint64_t n_chosen;
	struct counter counters[TIMELINES]; /* the first is none */
};

void timeline_book_init(struct timeline_book *book);
/* Wait until the devices that have mapped files are idle or have failed, so
 * that no stream will read one. -ETIMEDOUT, for each device. */
int timeline_book_synchronize(const struct timeline_book *book,
			      int32_t timeout_ms, struct error *err);
/* In a forked child none of it is mapped. */
void timeline_book_deinit(struct timeline_book *book, bool is_forked);

/* Make `stream`, which belongs to the device, write the next value of one of
 * our counters after its work so far. */
int timeline_signal(struct fsdp_client *client, const struct device *device,
		    CUstream stream, struct fence *ret, struct error *err);

/*
 * Has the timeline reached the value of `fence`? (For a dead session it always
 * has.) `ref` is a tensor with this fence that is held; because of it the
 * broker lets this process read another session's timelines.
 */
int timeline_look(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct fence *fence, bool *ret, struct error *err);

/* As far as can be known without a request. */
bool timeline_peek(struct fsdp_client *client, const struct fence *fence);

/* The device can register writable pages only, and another user's pages are not
 * writable here: the caller must wait on the host (timeline_look()). */
#define TIMELINE_FOR_HOST 1

/* Make `stream` wait until it has; or TIMELINE_FOR_HOST. */
int timeline_wait(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct fence *fence, const struct device *device,
		  CUstream stream, struct error *err);
