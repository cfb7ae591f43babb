/*
 * Without an engine, each call has a stream of its own, because calls are rare,
 * and the library must not add work to the caller's streams.
 */
#include "client/rank/plain_device.h"
#include "client/clock.h"
#include "client/copy.h"
#include "client/pause.h"
#include "client/rank/engine.h"
#include "client/stream.h"
#include "client/timeline.h"
#include "cuda/context.h"
#include <errno.h>

static CUdeviceptr address_of(const struct fsdp_tensor *tensor)
{
	return (CUdeviceptr)(uintptr_t)tensor->data;
}

/* --- streams of the caller's --------------------------------------------- */

int plain_check_stream(const struct device_uuid *uuid, void *stream,
		       struct error *err)
{
	const struct device *device;
	int r = device_find(uuid, &device, err);

	return r < 0 ? r : context_check_stream(device, stream, err);
}

static int refuse_late(const struct fsdp_comm *comm, struct error *err)
{
	return error_set(err, -ETIMEDOUT,
			 "communicator '%s': the stream that was passed has "
			 "not finished its work yet",
			 comm->name);
}

/* Wait for a stream. Without timelines only the driver knows when it is
 * done. */
static int await_stream(const struct fsdp_comm *comm,
			const struct device *device, void *stream,
			struct error *err)
{
	int64_t deadline_ms = clock_now_ms() + comm->timeout_ms;
	struct pause pause = PAUSE_INIT;
	CUresult result;
	int r = context_enter(device, err);

	if (r < 0)
		return r;
	while ((result = cu.StreamQuery(stream)) == CUDA_ERROR_NOT_READY &&
	       clock_now_ms() < deadline_ms)
		pause_now(&pause);
	context_leave();
	if (result == CUDA_ERROR_NOT_READY)
		return refuse_late(comm, err);
	return driver_error(err, result,
			    "cannot wait for the stream that was passed");
}

int plain_note_stream(const struct fsdp_comm *comm, void *stream,
		      struct fsdp_tensor *tensor, struct fence *ret,
		      struct error *err)
{
	const struct device *device;
	const uint8_t *event;
	int r = device_find(&comm->device, &device, err);

	*ret = (struct fence){0};
	if (r < 0)
		return r;
	if (!device->has_wait_value)
		return await_stream(comm, device, stream, err);
	if (tensor && tensor->data)
		return stream_mark(&tensor, 1, stream, ret, &event, err);
	return timeline_signal(comm->client, device, stream, ret, err);
}

int plain_await(const struct fsdp_comm *comm, const struct fence *fence,
		int64_t deadline_ms, struct error *err)
{
	struct pause pause = PAUSE_INIT;

	while (fence->timeline && !timeline_peek(comm->client, fence)) {
		if (clock_now_ms() >= deadline_ms)
			return refuse_late(comm, err);
		pause_now(&pause);
	}
	return 0;
}

int plain_quiesce(const struct fsdp_comm *comm, struct error *err)
{
	const struct device *device;
	int r;

	if (!comm->written.timeline ||
	    timeline_peek(comm->client, &comm->written))
		return 0;
	r = device_find(&comm->device, &device, err);
	return r < 0 ? r : context_synchronize(device, comm->timeout_ms, err);
}

/* --- a stream of the library ---------------------------------------------- */

/* Enter the context. If there is no engine, which has a stream, make one. */
static int begin(const struct fsdp_comm *comm, CUstream *ret, struct error *err)
{
	const struct device *device;
	int r = device_find(&comm->device, &device, err);

	if (r == 0)
		r = context_enter(device, err);
	if (r < 0)
		return r;
	if (comm->engine)
		*ret = engine_stream(comm->engine);
	else
		r = driver_error(err,
				 cu.StreamCreate(ret, CU_STREAM_NON_BLOCKING),
				 "cannot make a stream");
	if (r < 0)
		context_leave();
	return r;
}

/* Wait for the stream, and destroy it if begin() has made it. `r` is the result
 * so far. */
static int end(const struct fsdp_comm *comm, CUstream stream, int r,
	       struct error *err)
{
	if (r == 0)
		r = driver_error(err, cu.StreamSynchronize(stream),
				 "cannot wait for a stream");
	if (!comm->engine)
		(void)cu.StreamDestroy(stream);
	context_leave();
	return r;
}

static uint64_t padding_of(const struct param *param)
{
	return param->chunk_size - param->shard_size;
}

int plain_zero_padding(struct fsdp_group *group, uint32_t side,
		       struct error *err)
{
	CUdeviceptr shards = address_of(group->shards[side]);
	CUstream stream;
	int r = begin(group->comm, &stream, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < group->n_params && r == 0; i++) {
		const struct param *param = &group->params[i];
		uint64_t at = param->shard_offset + param->shard_size;

		if (padding_of(param) > 0)
			r = driver_error(err,
					 cu.MemsetD8Async(shards + at, 0,
							  padding_of(param),
							  stream),
					 "zero the padding of a shard");
	}
	return end(group->comm, stream, r, err);
}

int plain_carry(struct fsdp_group *group, uint64_t offset, uint64_t size,
		struct error *err)
{
	CUdeviceptr from = address_of(group->shards[group->side]) + offset;
	CUdeviceptr to = address_of(group->shards[!group->side]) + offset;
	CUstream stream;
	int r = begin(group->comm, &stream, err);

	if (r < 0)
		return r;
	r = driver_error(err, cu.MemcpyDtoDAsync(to, from, size, stream),
			 "carry a frozen parameter over");
	return end(group->comm, stream, r, err);
}

/* --- bytes of the host --------------------------------------------------- */

int plain_put(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err)
{
	const struct device *device;
	int r = device_find(&comm->device, &device, err);

	return r < 0 ? r
		     : copiers_put(&comm->client->copiers, device, to, from,
				   size, err);
}

int plain_get(const struct fsdp_comm *comm, void *to, const void *from,
	      uint64_t size, struct error *err)
{
	const struct device *device;
	int r = device_find(&comm->device, &device, err);

	return r < 0 ? r
		     : copiers_get(&comm->client->copiers, device, to, from,
				   size, err);
}
