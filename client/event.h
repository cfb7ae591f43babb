/*
 * Ordering by interprocess events (cuda/event_ipc.h), on devices whose streams
 * cannot write timelines (client/timeline.h).
 *
 * A process that publishes on a stream records an event after its work, and the
 * broker keeps the handle of the event. Only the producer can see whether the
 * event is complete. It looks at its events in calls that send a request to the
 * broker, reports complete events with the request, and drops these events
 * after the reply. It never waits for a device; when EVENT_IPC_MAX events are
 * in flight, the call fails and may be repeated later.
 *
 * A consumer gets the handle from the broker, opens the event, makes a stream
 * wait for it or queries it, and closes it. If the producer has dropped the
 * event in between, the broker knows by then that the tensor is written.
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
 * Record an event after the work so far of `stream`, which belongs to the
 * device. When the event is complete, the tensors are written. `*ret_handle`
 * (MESSAGE_HANDLE_SIZE bytes) is valid until event_sent(). -EAGAIN:
 * EVENT_IPC_MAX events are in flight.
 */
int event_record(struct fsdp_client *client, const struct device *device,
		 void *stream, struct fsdp_tensor *const *tensors, size_t n,
		 struct fence *ret, const uint8_t **ret_handle,
		 struct error *err);

/* Call this when the broker has received or refused the event: from then on the
 * event may be reported complete. A fence that is not an event is ignored. */
void event_sent(struct fsdp_client *client, const struct fence *fence);

/* --- consumer --------------------------------------------------------------
 *
 * `ref` is a tensor of the device that is held and has this fence; because of
 * this hold, the broker gives the handle of the event.
 */

/* Tell whether the event is complete, as far as this process knows without a
 * request. */
bool event_peek(struct fsdp_client *client, const struct fence *fence);

/* Store whether the event is complete, or the tensor has no fence any more. If
 * the event cannot be opened, this is false. */
int event_look(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct fence *fence, const struct device *device,
	       bool *ret, struct error *err);

/* Make `stream` wait until the event is complete. */
int event_wait(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct fence *fence, const struct device *device,
	       void *stream, struct error *err);
