/*
 * Device operations of a rank that remain in this process if fsdp-worker does
 * the work, and changes of shards on a device, which an engine has, too. They
 * wait for the device. They need a context, but not NCCL.
 */
#pragma once
#include "client/rank/comm.h"

/* Tell whether this rank has such a device. */
static inline bool plain_is_device(const struct fsdp_comm *comm)
{
	return !comm->engine && !device_uuid_is_host(&comm->device);
}

/* Check that `stream` belongs to the device. Returns -EINVAL if not. */
int plain_check_stream(const struct device_uuid *uuid, void *stream,
		       struct error *err);

/* Record the progress of the stream for plain_await() and for other processes.
 * The memory of `tensor`, if it is not NULL, is not used again before the
 * stream has reached that point. If there is no timeline of the device, the
 * call waits for the stream, within the communicator's time-out. */
int plain_note_stream(const struct fsdp_comm *comm, void *stream,
		      struct fsdp_tensor *tensor, struct fence *ret,
		      struct error *err);
/* Wait on the host until the stream has reached that point. Returns -ETIMEDOUT
 * if the time is over; the call may be repeated. */
int plain_await(const struct fsdp_comm *comm, const struct fence *fence,
		int64_t deadline_ms, struct error *err);

/* Wait until no stream writes shards of a commit that was not waited for.
 * Returns -ETIMEDOUT if the device is still at work after the communicator's
 * time-out. */
int plain_quiesce(const struct fsdp_comm *comm, struct error *err);

/* Zero the bytes after this rank's part of each parameter. */
int plain_zero_padding(struct fsdp_group *group, uint32_t side,
		       struct error *err);

/* Copy bytes of the host to the device or back. */
int plain_put(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err);
int plain_get(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err);

/* Copy a part of the committed shards to the next ones. */
int plain_carry(struct fsdp_group *group, uint64_t offset, uint64_t size,
		struct error *err);
