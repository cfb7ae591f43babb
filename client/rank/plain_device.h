/*
 * A rank's device where fsdp-worker does the work: what little is left to do in
 * this process, each waited for. Needs a context, and nothing of NCCL.
 */
#pragma once
#include "client/rank/comm.h"

/* Does the rank have one? */
static inline bool plain_is_device(const struct fsdp_comm *comm)
{
	return !comm->engine && !device_uuid_is_host(&comm->device);
}

/* Is `stream` one of the device's? -EINVAL. */
int plain_check_stream(const struct device_uuid *uuid, void *stream,
		       struct error *err);

/* Note how far the stream is, for plain_await() and other processes. No
 * timeline: the device has none, so it was waited for, within the
 * communicator's time-out. */
int plain_note_stream(const struct fsdp_comm *comm, void *stream,
		      struct tensor_order *ret, struct error *err);
/* Wait here until it has come so far: -ETIMEDOUT, may be repeated. */
int plain_await(const struct fsdp_comm *comm, const struct tensor_order *order,
		int64_t deadline_ms, struct error *err);

/* Zero what is behind this rank's part of each parameter. */
int plain_zero_padding(struct fsdp_group *group, uint32_t side,
		       struct error *err);

/* Bytes of the host to the device and back. */
int plain_put(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err);
int plain_get(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err);

/* Copy a part of the committed shards to the next. */
int plain_carry(struct fsdp_group *group, uint64_t offset, uint64_t size,
		struct error *err);
