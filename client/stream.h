/*
 * Device tensors and streams: when a tensor is written, and when its users are
 * done with it.
 *
 * Each slot that this process holds has one fence, in the ref-counter file
 * (shm/refs.h): a value of one of our timelines, which the GPU reaches after
 * all work that this process's streams had at the release. It is stored before
 * a hold is dropped. On a device that cannot write timelines an event
 * (client/event.h) says when a tensor is written, and holds wait for events
 * (client/deferred.h).
 */
#pragma once
#include "client/tensor.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct fsdp_get_options;

/* Tell whether the tensor is on a device. */
static inline bool stream_is_for(const struct fsdp_tensor *tensor)
{
	return tensor_desc(tensor)->is_on_device;
}

/*
 * Make `stream` write a value after its work so far; this value becomes the
 * fence of the tensors, which must be of one connection and one device. On a
 * device that cannot write timelines, record an event there instead, whose
 * handle (`*ret_event`, otherwise NULL) is valid until event_sent(). For
 * tensors without elements nothing is done, and `ret` belongs to no session.
 * -EINVAL: the tensors are in host memory, or on another device than the
 * stream. -EAGAIN: too many events are in flight.
 */
int stream_mark(struct fsdp_tensor *const *tensors, size_t n, void *stream,
		struct fence *ret, const uint8_t **ret_event,
		struct error *err);

/*
 * Wait for the tensors that are on a device, as `options` say; NULL: do not
 * wait, and fail if a tensor is not written. timeout_ms runs from `start_ms`
 * (of clock_now_ms(); 0: now).
 */
int stream_await(struct fsdp_tensor *const *tensors, size_t n,
		 const struct fsdp_get_options *options, int64_t start_ms,
		 struct error *err);

/* Release a hold, which was already taken from the handle, after the stream's
 * work so far. */
int stream_drop(struct fsdp_tensor *tensor, void *stream, struct error *err);

/* Return -EOWNERDEAD and set the message. */
int stream_refuse_tainted(const struct fsdp_tensor *tensor, struct error *err);

/* Tell whether a tensor is written, as far as is known without a request. */
enum written stream_peek(const struct fsdp_tensor *tensor);
