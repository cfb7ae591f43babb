/*
 * Timelines (shm/timeline.h) as this process uses them: its own, which its
 * streams write, and those of other sessions that it waits for.
 *
 * A stream gets a counter of ours when it first needs one. There are fewer
 * counters than there can be streams, and the driver gives the handle of a
 * destroyed stream to the next; so which stream has which counter is only a
 * habit, and every write waits for the one before: a counter never goes back,
 * whoever writes it. That cannot lock up, since a wait is only ever for what
 * was given to the device before (but see cuda/order.h for collectives).
 *
 * Files of others stay mapped until the connection is closed: a stream that
 * looks at one may not have come to it yet.
 */
#pragma once
#include "client/tensor.h"
#include "cuda/order.h"
#include "shm/timeline.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_client;
struct timeline_file;

struct counter {
	pthread_mutex_t lock; /* across the next value and its enqueueing */
	uint64_t value;       /* enqueued last */
	/* By habit of; under the lock of the book. */
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
/* Wait until the devices that know files are idle, or have failed: no stream
 * comes to one any more. -ETIMEDOUT, for each. */
int timeline_book_synchronize(const struct timeline_book *book,
			      int32_t timeout_ms, struct error *err);
/* In a forked child nothing of it is mapped. */
void timeline_book_deinit(struct timeline_book *book, bool is_forked);

/* Have `stream`, which is of the device, write the next value of one of our
 * counters behind all that it was given. */
int timeline_signal(struct fsdp_client *client, const struct device *device,
		    CUstream stream, struct tensor_order *ret,
		    struct error *err);

/*
 * Is what `order` says reached? (Of a dead session everything is.) `ref`: a
 * tensor that it orders and that is held; by it the broker lets us look at
 * another session's timelines.
 */
int timeline_look(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct tensor_order *order, bool *ret,
		  struct error *err);

/* As far as can be told without asking the broker. */
bool timeline_peek(struct fsdp_client *client,
		   const struct tensor_order *order);

/* The device can register writable pages only, and another user's are not
 * writable here: the caller must wait itself (timeline_look()). */
#define TIMELINE_FOR_HOST 1

/* Have `stream` wait until it is; or TIMELINE_FOR_HOST. */
int timeline_wait(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct tensor_order *order, const struct device *device,
		  CUstream stream, struct error *err);
