/*
 * Device tensors and streams: when one is written, and when those who had it
 * are done with it.
 *
 * A slot of ours has one fence, in the ref-counter file (shm/refs.h): a value
 * of one of our timelines, behind which all that this process's streams were
 * told of it is done. It is stored before a hold is dropped. On a device that
 * cannot write timelines an event (client/event.h) says when a tensor is
 * written, and holds wait for events (client/deferred.h).
 */
#pragma once
#include "client/tensor.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct fsdp_get_options;

/* Is the tensor on a device? */
static inline bool stream_is_for(const struct fsdp_tensor *tensor)
{
	return tensor_known(tensor)->is_on_device;
}

/*
 * Have `stream` write a value behind all that it was given, which becomes the
 * fence of the tensors, all of one connection and one device; or record an
 * event there, whose handle stays until event_sent(). Nothing is done for those
 * without elements, and `ret` is of no session. -EINVAL: they are in host
 * memory, or on another device than the stream. -EAGAIN: too many events.
 */
int stream_mark(struct fsdp_tensor *const *tensors, size_t n, void *stream,
		struct tensor_order *ret, const uint8_t **ret_event,
		struct error *err);

/*
 * Wait for those that are on a device as `options` say; NULL: they must be
 * written. timeout_ms runs from `start_ms` (of handshake_now_ms(); 0: now).
 */
int stream_await(struct fsdp_tensor *const *tensors, size_t n,
		 const struct fsdp_get_options *options, int64_t start_ms,
		 struct error *err);

/* -EOWNERDEAD, with the sentence. */
int stream_refuse_tainted(const struct fsdp_tensor *tensor, struct error *err);

/* As far as can be told without asking anybody. */
enum written stream_peek(const struct fsdp_tensor *tensor);
