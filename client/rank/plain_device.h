/*
 * If fsdp-worker does the work of a rank's device, these few operations remain
 * in this process. They wait for the device. They need a context, but not NCCL.
 */
#pragma once
#include "client/rank/comm.h"

/* Does this rank have such a device? */
static inline bool plain_is_device(const struct fsdp_comm *comm)
{
	return !comm->engine && !device_uuid_is_host(&comm->device);
}

/* Does `stream` belong to the device? -EINVAL. */
int plain_check_stream(const struct device_uuid *uuid, void *stream,
		       struct error *err);

/* Record the progress of the stream, for plain_await() and other processes.
 * Without a timeline of the device, the call has waited for the stream, within
 * the communicator's time-out. */
int plain_note_stream(const struct fsdp_comm *comm, void *stream,
		      struct fence *ret, struct error *err);
/* Wait on the host until the stream has reached it: -ETIMEDOUT, may be
 * repeated. */
int plain_await(const struct fsdp_comm *comm, const struct fence *fence,
		int64_t deadline_ms, struct error *err);

/* Zero the bytes after this rank's part of each parameter. */
int plain_zero_padding(struct fsdp_group *group, uint32_t side,
		       struct error *err);

/* Copy host bytes to the device or back. */
int plain_put(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err);
int plain_get(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err);

/* Copy a part of the committed shards to the next ones. */
int plain_carry(struct fsdp_group *group, uint64_t offset, uint64_t size,
		struct error *err);
