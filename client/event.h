/*
 * Ordering by interprocess events (cuda/event_ipc.h), on devices whose streams
 * cannot write timelines (client/timeline.h).
 *
 * A process that publishes on a stream records an event after its work, and the
 * broker keeps the handle. Other processes cannot see whether the event is
 * complete. So the producer looks, in calls that talk to the broker anyway,
 * reports complete events with them, and drops these events after the reply. It
 * never waits for a device; when EVENT_IPC_MAX events are in flight, the call
 * fails and may be repeated later.
 *
 * A consumer asks the broker for the handle, opens the event, makes a stream
 * wait or looks itself, and closes it. If the producer has dropped the event in
 * between, the broker knows by then that the tensor is written.
 */
#pragma once
#include "cuda/device.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct fsdp_client;
struct fsdp_tensor;

static inline bool event_is_for(const struct device *device)
{
	return !device->has_wait_value && device->has_ipc_events;
}

static inline bool fence_is_event(const struct fence *fence)
{
	return fence->session && !fence->timeline;
}

/* --- producer ------------------------------------------------------------ */

/*
 * Record the work so far of `stream`, which belongs to the device: when it is
 * complete, the tensors are written. `ret_handle` (MESSAGE_HANDLE_SIZE) is
 * valid until event_sent(). -EAGAIN: EVENT_IPC_MAX events are in flight.
 */
int event_record(struct fsdp_client *client, const struct device *device,
		 void *stream, struct fsdp_tensor *const *tensors, size_t n,
		 struct fence *ret, const uint8_t **ret_handle,
		 struct error *err);

/* The broker has received the event, or has refused it: from now on it may be
 * reported complete. A fence that is not an event is ignored. */
void event_sent(struct fsdp_client *client, const struct fence *fence);

/* --- consumer --------------------------------------------------------------
 *
 * `ref`: a tensor that is held, of the device, with this fence; by it the
 * broker gives the handle.
 */

/* As far as can be known without a request to the broker. */
bool event_peek(struct fsdp_client *client, const struct fence *fence);

/* Is it complete, or has the tensor no fence any more? False if the event
 * cannot be opened. */
int event_look(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct fence *fence, const struct device *device,
	       bool *ret, struct error *err);

/* Make `stream` wait until it is complete. */
int event_wait(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct fence *fence, const struct device *device,
	       void *stream, struct error *err);
