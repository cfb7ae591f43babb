/*
 * Copies. Their behaviour depends on the memory:
 *
 *   - pageable host memory is read before the call returns, and written before
 *     it returns, even if the call is asynchronous;
 *   - the copy itself then still runs, even if the call is synchronous and the
 *     target is a device;
 *   - pinned memory is read and written when the copy runs.
 */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum side { SIDE_DEVICE, SIDE_PINNED, SIDE_PAGEABLE };

struct copy {
	struct work work;
	uint64_t to, from;
	size_t size;
	enum side to_side, from_side;
	char *staged; /* copy of the pageable memory, or NULL */
};

static enum side side_of(uint64_t address)
{
	const struct mapping *mapping = mapping_find(address);

	if (!mapping)
		return SIDE_PAGEABLE;
	return mapping->kind == MAPPING_HOST ||
			       mapping->kind == MAPPING_REGISTERED
		       ? SIDE_PINNED
		       : SIDE_DEVICE;
}

/* --- the work ------------------------------------------------------------ */

/* Host memory that is registered read-only is read-only for devices only. */
static bool can_touch(const struct copy *copy, uint64_t address, size_t size,
		      enum side side, bool is_write)
{
	const struct mapping *mapping;

	switch (side) {
	case SIDE_DEVICE:
		return mapping_allows(&copy->work, address, size, is_write);
	case SIDE_PINNED:
		mapping = mapping_find(address);
		return mapping &&
		       (!is_write ||
			mapping->access[0] != CU_MEM_ACCESS_FLAGS_PROT_READ);
	case SIDE_PAGEABLE:
		break;
	}
	return true;
}

static void take_time(const struct copy *copy)
{
	uint64_t us = settings()->copy_us;
	const struct timespec time = {.tv_sec = (time_t)(us / 1000000),
				      .tv_nsec = (long)(us % 1000000) * 1000};

	if (us > 0 &&
	    (copy->to_side == SIDE_PINNED || copy->from_side == SIDE_PINNED))
		nanosleep(&time, NULL);
}

static CUresult check_touch(const struct copy *copy)
{
	bool can;

	process_lock();
	can = can_touch(copy, copy->to, copy->size, copy->to_side, true) &&
	      can_touch(copy, copy->from, copy->size, copy->from_side, false);
	process_unlock();
	return can ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult run_copy(struct work *work)
{
	struct copy *copy = (struct copy *)work;
	const void *from = (const void *)(uintptr_t)copy->from;
	CUresult r;

	take_time(copy);
	r = check_touch(copy);
	if (r)
		return r;
	memmove((void *)(uintptr_t)copy->to, copy->staged ? copy->staged : from,
		copy->size);
	/* checks that all memory was mapped until the end */
	return check_touch(copy);
}

static void end_copy(struct work *work, bool is_done)
{
	struct copy *copy = (struct copy *)work;

	if (is_done && copy->from_side == SIDE_PINNED &&
	    copy->to_side == SIDE_DEVICE)
		call_note(NOTE_PINNED_IN);
	free(copy->staged);
	free(copy);
}

/* --- the call ------------------------------------------------------------ */

static CUresult stage(struct copy *copy)
{
	copy->staged = malloc(copy->size);
	if (!copy->staged)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(copy->staged, (const void *)(uintptr_t)copy->from, copy->size);
	return CUDA_SUCCESS;
}

static bool has_all(uint64_t address, size_t size, enum side side)
{
	switch (side) {
	case SIDE_DEVICE:
		return mapping_has_device(address, size);
	case SIDE_PINNED:
		return size <=
		       mapping_find(address)->size -
			       (address - mapping_find(address)->address);
	case SIDE_PAGEABLE:
		break;
	}
	return true;
}

/* Returns whether the caller must wait until the copy is done. */
static bool is_synchronous(const struct copy *copy, bool is_async)
{
	if (copy->to_side == SIDE_PAGEABLE)
		return true;
	if (is_async)
		return false;
	return copy->to_side == SIDE_PINNED || copy->from_side == SIDE_PINNED;
}

/* Called before the copy is queued. */
static CUresult prepare(struct stream *stream, struct copy *copy, bool is_async)
{
	CUresult r = CUDA_SUCCESS;

	if (copy->from_side != SIDE_PAGEABLE)
		return CUDA_SUCCESS;
	/* The interface says that a synchronous copy waits for the stream
	 * first. */
	if (!is_async) {
		r = stream_synchronize(stream);
		if (r == CUDA_SUCCESS && stream->is_destroyed)
			r = CUDA_ERROR_INVALID_HANDLE;
	}
	return r ? r : stage(copy);
}

static CUresult enqueue(struct stream *stream, struct copy *copy, bool is_async)
{
	bool is_sync = is_synchronous(copy, is_async);
	CUresult r;

	stream->n_refs++; /* while the lock is released */
	r = is_async ? CUDA_SUCCESS : stream_await_memory();
	if (r == CUDA_SUCCESS)
		r = prepare(stream, copy, is_async);
	if (r)
		free(copy);
	else
		stream_enqueue(stream, &copy->work);
	if (r == CUDA_SUCCESS && is_sync)
		r = stream_synchronize(stream);
	stream_unref(stream);
	return r;
}

/* Refuses an address that belongs to no known memory. */
static CUresult start(struct stream *stream, uint64_t to, uint64_t from,
		      size_t size, bool is_async)
{
	struct copy *copy;
	enum side to_side = side_of(to), from_side = side_of(from);

	if (size == 0)
		return CUDA_SUCCESS;
	if (!to || !from || !has_all(to, size, to_side) ||
	    !has_all(from, size, from_side) ||
	    (to_side == SIDE_DEVICE && !mapping_is_writable(stream, to, size)))
		return CUDA_ERROR_INVALID_VALUE;
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->work.run = run_copy;
	copy->work.end = end_copy;
	copy->to = to;
	copy->from = from;
	copy->size = size;
	copy->to_side = to_side;
	copy->from_side = from_side;
	return enqueue(stream, copy, is_async);
}

/* The kind of memory to which a function's pointer must refer. */
enum claim { CLAIM_HOST, CLAIM_DEVICE };

static bool is_true(enum claim claim, uint64_t address)
{
	return claim == CLAIM_HOST ? side_of(address) != SIDE_DEVICE
				   : mapping_has_device(address, 1);
}

/* One end of a copy, with the kind of memory that the called function
 * requires. */
struct end {
	uint64_t address;
	enum claim claim;
};

static struct end host_end(const void *pointer)
{
	return (struct end){(uintptr_t)pointer, CLAIM_HOST};
}

static struct end device_end(CUdeviceptr address)
{
	return (struct end){address, CLAIM_DEVICE};
}

static CUresult copy_bytes(enum call call, struct end to, struct end from,
			   size_t size, CUstream handle, bool is_async)
{
	struct context *context;
	struct stream *stream;
	CUresult r = call_begin_context(call, &context);

	if (r)
		return r;
	r = stream_find(context, handle, &stream);
	if (r)
		return call_end(r);
	if (size > 0 && (!is_true(to.claim, to.address) ||
			 !is_true(from.claim, from.address)))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	return call_end(
		start(stream, to.address, from.address, size, is_async));
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size)
{
	return copy_bytes(CALL_MemcpyHtoD, device_end(to), host_end(from), size,
			  NULL, false);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size)
{
	return copy_bytes(CALL_MemcpyDtoH, host_end(to), device_end(from), size,
			  NULL, false);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size,
			   CUstream stream)
{
	return copy_bytes(CALL_MemcpyHtoDAsync, device_end(to), host_end(from),
			  size, stream, true);
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size,
			   CUstream stream)
{
	return copy_bytes(CALL_MemcpyDtoHAsync, host_end(to), device_end(from),
			  size, stream, true);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
			   CUstream stream)
{
	return copy_bytes(CALL_MemcpyDtoDAsync, device_end(to),
			  device_end(from), size, stream, true);
}
