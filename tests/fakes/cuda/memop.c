/*
 * Stream memory operations: 64-bit words that streams write and wait for, in
 * device memory or in host memory that devices can access. A wait polls, less
 * and less often, so any change of the word ends it: by a stream of any
 * process, by a copy, or by a store of a CPU.
 */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/stream.h"
#include <stdatomic.h>
#include <stdlib.h>

struct memop {
	struct work work;
	uint64_t address, value;
	unsigned int flags; /* polling time of a wait */
};

static bool can_touch(const struct memop *memop, bool is_write)
{
	bool can;

	process_lock();
	can = mapping_allows(&memop->work, memop->address, sizeof(uint64_t),
			     is_write);
	process_unlock();
	return can;
}

static CUresult run_write(struct work *work)
{
	struct memop *memop = (struct memop *)work;

	if (!can_touch(memop, true))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	/* seq_cst: devices and CPUs see all earlier work of the stream before
	 * this write (the interface's __threadfence_system()) */
	atomic_store((_Atomic uint64_t *)(uintptr_t)memop->address,
		     memop->value);
	return CUDA_SUCCESS;
}

static bool is_reached(const struct memop *memop)
{
	/* acquire: what was done before the write is visible after the wait */
	uint64_t found = atomic_load_explicit(
		(_Atomic uint64_t *)(uintptr_t)memop->address,
		memory_order_acquire);

	if (memop->flags == CU_STREAM_WAIT_VALUE_EQ)
		return found == memop->value;
	return (int64_t)(found - memop->value) >= 0;
}

static CUresult run_wait(struct work *work)
{
	struct memop *memop = (struct memop *)work;
	unsigned int us = 0;

	do {
		if (!can_touch(memop, false))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		if (is_reached(memop))
			return CUDA_SUCCESS;
		stream_back_off(&us);
	} while (!stream_is_stopping(work->stream));
	return CUDA_SUCCESS;
}

/* Checks that it can be enqueued. */
static CUresult check(const struct memop *memop, bool is_wait)
{
	if (!device_has(FEATURE_MEMOPS))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (memop->address % sizeof(uint64_t) ||
	    !mapping_has_device(memop->address, sizeof(uint64_t)))
		return CUDA_ERROR_INVALID_VALUE;
	if (is_wait)
		return memop->flags == CU_STREAM_WAIT_VALUE_GEQ ||
				       memop->flags == CU_STREAM_WAIT_VALUE_EQ
			       ? CUDA_SUCCESS
			       : CUDA_ERROR_NOT_SUPPORTED;
	return memop->flags == CU_STREAM_WRITE_VALUE_DEFAULT
		       ? CUDA_SUCCESS
		       : CUDA_ERROR_INVALID_VALUE;
}

static CUresult enqueue(struct stream *stream, const struct memop *wanted,
			bool is_wait)
{
	struct memop *memop = calloc(1, sizeof(*memop));

	if (!memop)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*memop = *wanted;
	memop->work.run = is_wait ? run_wait : run_write;
	memop->work.is_wait = is_wait;
	stream_enqueue(stream, &memop->work);
	return CUDA_SUCCESS;
}

static CUresult call_one(enum call call, CUstream handle,
			 const struct memop *memop, bool is_wait)
{
	struct context *context;
	struct stream *stream;
	CUresult r = call_begin_context(call, &context);

	if (r)
		return r;
	r = stream_find(context, handle, &stream);
	if (r == CUDA_SUCCESS)
		r = check(memop, is_wait);
	if (r == CUDA_SUCCESS)
		r = enqueue(stream, memop, is_wait);
	return call_end(r);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address,
			      cuuint64_t value, unsigned int flags)
{
	struct memop memop = {
		.address = address, .value = value, .flags = flags};

	return call_one(CALL_StreamWriteValue64, stream, &memop, false);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address,
			     cuuint64_t value, unsigned int flags)
{
	struct memop memop = {
		.address = address, .value = value, .flags = flags};

	return call_one(CALL_StreamWaitValue64, stream, &memop, true);
}
