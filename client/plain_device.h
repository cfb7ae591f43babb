/*
 * A rank's device where fsdp-worker does the work: what little is left to do in
 * this process, each waited for. Needs a context, and nothing of NCCL.
 */
#pragma once
#include "client/comm.h"

/* Does the rank have one? */
static inline bool plain_is_device(const struct fsdp_comm *comm)
{
	return !comm->engine && !device_uuid_is_host(&comm->device);
}

/* Is `stream` one of the device's? -EINVAL. */
int plain_check_stream(const struct device_uuid *uuid, void *stream,
		       struct error *err);

/* Until all that is on the stream is done. */
int plain_await_stream(const struct device_uuid *uuid, void *stream,
		       struct error *err);

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
