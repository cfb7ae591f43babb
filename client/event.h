/*
 * Order by interprocess events (cuda/event_ipc.h), on devices whose streams
 * cannot write timelines (client/timeline.h).
 *
 * Who publishes on a stream records an event behind its work, and the broker
 * keeps the handle. Nobody can see from outside that it is done. So the
 * producer looks, in calls that speak to the broker anyway, tells the broker
 * which are done, and drops them with the answer. It never waits for a device;
 * when as many are in flight as may be (EVENT_IPC_MAX), it is told to come
 * again.
 *
 * Whoever waits asks the broker for the handle, opens the event, has a stream
 * wait or looks itself, and closes it. Where the event was dropped in between,
 * the broker knows by then that the tensor is written.
 */
#pragma once
#include "cuda/device.h"
#include "proto/message.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct event_sent;
struct fsdp_client;
struct fsdp_tensor;

struct event_book {
	pthread_mutex_t lock;
	struct event_sent *first, *last; /* in flight, oldest first; owned */
	_Atomic uint32_t n;
};

static inline bool event_is_for(const struct device *device)
{
	return !device->has_wait_value && device->has_ipc_events;
}

static inline bool event_orders(const struct tensor_order *order)
{
	return order->session && !order->timeline;
}

void event_book_init(struct event_book *book);
void event_book_deinit(struct event_book *book);

/* --- producer ------------------------------------------------------------ */

/*
 * Record what `stream`, which is of the device, has been given: that is when
 * the tensors are written. `ret_handle` (MESSAGE_HANDLE_SIZE) stays until
 * event_sent(). -EAGAIN: as many are in flight as may be.
 */
int event_record(struct fsdp_client *client, const struct device *device,
		 void *stream, struct fsdp_tensor *const *tensors, size_t n,
		 struct tensor_order *ret, const uint8_t **ret_handle,
		 struct error *err);

/* The broker has heard of the event, or has refused it: from now on it may be
 * said to be done. Nothing for another order. */
void event_sent(struct fsdp_client *client, const struct tensor_order *order);

/* Is there any that is done or will be? */
static inline bool event_are_sent(const struct event_book *book)
{
	/* Relaxed: who has just added one sees it. */
	return atomic_load_explicit(&book->n, memory_order_relaxed) > 0;
}

/* Tell the broker, before whatever this thread asks next, which are done. They
 * are kept for event_told(). */
struct event_sent *event_tell(struct fsdp_client *client);
/* That was answered, and these are dropped; or it was not, and they are told
 * once more. */
void event_told(struct fsdp_client *client, struct event_sent *told,
		bool is_answered);

/* --- consumer --------------------------------------------------------------
 *
 * `ref`: a tensor that is held, of the device, and ordered so; by it the broker
 * gives the handle.
 */

/* As far as can be told without asking the broker. */
bool event_peek(struct fsdp_client *client, const struct tensor_order *order);

/* Is it done, or is the tensor ordered no more? Not, if the event cannot be
 * opened. */
int event_look(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct tensor_order *order, const struct device *device,
	       bool *ret, struct error *err);

/* Have `stream` wait until it is. */
int event_wait(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct tensor_order *order, const struct device *device,
	       void *stream, struct error *err);
