/*
 * Copies. What they are like depends on the memory:
 *
 *   - pageable host memory is read before the call returns, and written before
 *     it returns, also where the call is asynchronous;
 *   - the copy itself is then still under way, also where the call is not
 *     asynchronous and the target is a device;
 *   - pinned memory is read and written when it is the copy's turn.
 */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>
#include <string.h>

enum side { SIDE_DEVICE, SIDE_PINNED, SIDE_PAGEABLE };

/* Rows, for the sake of two-dimensional ones. */
struct shape {
	size_t width, height;
	size_t from_pitch, to_pitch;
};

struct copy {
	struct work work;
	uint64_t to, from;
	struct shape shape;
	enum side to_side, from_side;
	char *staged; /* rows of pageable memory, without gaps; NULL */
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

/* From its first to its last byte. */
static size_t extent(const struct shape *shape, size_t pitch)
{
	return pitch * (shape->height - 1) + shape->width;
}

static void copy_rows(char *to, size_t to_pitch, const char *from,
		      size_t from_pitch, const struct shape *shape)
{
	for (size_t row = 0; row < shape->height; row++)
		memmove(to + row * to_pitch, from + row * from_pitch,
			shape->width);
}

/* --- the work ----------------------------------------------------------------
 */

/* Host memory that is registered read-only is so for the device only. */
static bool can_touch(const struct copy *copy, uint64_t address, size_t size,
		      enum side side, bool is_write)
{
	const struct mapping *mapping;

	switch (side) {
	case SIDE_DEVICE:
		return mapping_allows(copy->work.stream->context, address, size,
				      is_write);
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

static CUresult run_copy(struct work *work)
{
	struct copy *copy = (struct copy *)work;
	const struct shape *shape = &copy->shape;
	const char *from = (const char *)(uintptr_t)copy->from;
	size_t from_pitch = shape->from_pitch;
	bool can;

	process_lock();
	can = can_touch(copy, copy->to, extent(shape, shape->to_pitch),
			copy->to_side, true) &&
	      can_touch(copy, copy->from, extent(shape, from_pitch),
			copy->from_side, false);
	process_unlock();
	if (!can)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	if (copy->staged) {
		from = copy->staged;
		from_pitch = shape->width;
	}
	copy_rows((char *)(uintptr_t)copy->to, shape->to_pitch, from,
		  from_pitch, shape);
	return CUDA_SUCCESS;
}

static void end_copy(struct work *work, bool is_done)
{
	struct copy *copy = (struct copy *)work;

	(void)is_done;
	free(copy->staged);
	free(copy);
}

/* --- the call ----------------------------------------------------------------
 */

static CUresult stage(struct copy *copy)
{
	const struct shape *shape = &copy->shape;

	copy->staged = malloc(shape->width * shape->height);
	if (!copy->staged)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy_rows(copy->staged, shape->width,
		  (const char *)(uintptr_t)copy->from, shape->from_pitch,
		  shape);
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

/* Must the caller wait until it is done? */
static bool is_synchronous(const struct copy *copy, bool is_async)
{
	if (copy->to_side == SIDE_PAGEABLE)
		return true;
	if (is_async)
		return false;
	return copy->to_side == SIDE_PINNED || copy->from_side == SIDE_PINNED;
}

/* What is to be done before the copy is in the queue. */
static CUresult prepare(struct stream *stream, struct copy *copy, bool is_async)
{
	CUresult r = CUDA_SUCCESS;

	if (copy->from_side != SIDE_PAGEABLE)
		return CUDA_SUCCESS;
	/* Documented: a synchronous one waits for the stream first. */
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

	stream->n_refs++; /* while the lock is let go of */
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

/* Refuses what no memory is known to be. */
static CUresult start(struct stream *stream, uint64_t to, uint64_t from,
		      const struct shape *shape, bool is_async)
{
	struct copy *copy;
	enum side to_side = side_of(to), from_side = side_of(from);

	if (shape->width == 0 || shape->height == 0)
		return CUDA_SUCCESS;
	if (!to || !from ||
	    !has_all(to, extent(shape, shape->to_pitch), to_side) ||
	    !has_all(from, extent(shape, shape->from_pitch), from_side))
		return CUDA_ERROR_INVALID_VALUE;
	copy = calloc(1, sizeof(*copy));
	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	copy->work.run = run_copy;
	copy->work.end = end_copy;
	copy->to = to;
	copy->from = from;
	copy->shape = *shape;
	copy->to_side = to_side;
	copy->from_side = from_side;
	return enqueue(stream, copy, is_async);
}

/* What a function says of a pointer. */
enum claim { CLAIM_NOTHING, CLAIM_HOST, CLAIM_DEVICE };

static bool is_true(enum claim claim, uint64_t address)
{
	switch (claim) {
	case CLAIM_HOST:
		return side_of(address) != SIDE_DEVICE;
	case CLAIM_DEVICE:
		return mapping_has_device(address, 1);
	case CLAIM_NOTHING:
		break;
	}
	return true;
}

/* One end of a copy, and what the function called says that it is. */
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

static struct end any_end(CUdeviceptr address)
{
	return (struct end){address, CLAIM_NOTHING};
}

static CUresult copy_bytes(enum call call, struct end to, struct end from,
			   size_t size, CUstream handle, bool is_async)
{
	struct shape shape = {size, 1, size, size};
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
		start(stream, to.address, from.address, &shape, is_async));
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return copy_bytes(CALL_Memcpy, any_end(to), any_end(from), size, NULL,
			  false);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size,
		       CUstream stream)
{
	return copy_bytes(CALL_MemcpyAsync, any_end(to), any_end(from), size,
			  stream, true);
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

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size)
{
	return copy_bytes(CALL_MemcpyDtoD, device_end(to), device_end(from),
			  size, NULL, false);
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

/* --- two-dimensional ---------------------------------------------------------
 */

static bool find_end(CUmemorytype type, const void *host, CUdeviceptr device,
		     struct end *ret)
{
	switch (type) {
	case CU_MEMORYTYPE_HOST:
		*ret = host_end(host);
		break;
	case CU_MEMORYTYPE_DEVICE:
		*ret = device_end(device);
		break;
	case CU_MEMORYTYPE_UNIFIED:
		*ret = any_end(device);
		break;
	default:
		return false; /* arrays, and what is none */
	}
	return true;
}

static CUresult start_2d(struct stream *stream, const CUDA_MEMCPY2D *copy)
{
	struct shape shape;
	struct end to, from;

	if (!copy ||
	    !find_end(copy->srcMemoryType, copy->srcHost, copy->srcDevice,
		      &from) ||
	    !find_end(copy->dstMemoryType, copy->dstHost, copy->dstDevice,
		      &to) ||
	    !is_true(from.claim, from.address) ||
	    !is_true(to.claim, to.address))
		return CUDA_ERROR_INVALID_VALUE;
	shape = (struct shape){
		.width = copy->WidthInBytes,
		.height = copy->Height,
		.from_pitch =
			copy->srcPitch ? copy->srcPitch : copy->WidthInBytes,
		.to_pitch =
			copy->dstPitch ? copy->dstPitch : copy->WidthInBytes,
	};
	if (shape.from_pitch < copy->srcXInBytes + shape.width ||
	    shape.to_pitch < copy->dstXInBytes + shape.width)
		return CUDA_ERROR_INVALID_VALUE;
	from.address += copy->srcY * shape.from_pitch + copy->srcXInBytes;
	to.address += copy->dstY * shape.to_pitch + copy->dstXInBytes;
	return start(stream, to.address, from.address, &shape, true);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream handle)
{
	struct context *context;
	struct stream *stream;
	CUresult r = call_begin_context(CALL_Memcpy2DAsync, &context);

	if (r)
		return r;
	r = stream_find(context, handle, &stream);
	if (r)
		return call_end(r);
	return call_end(start_2d(stream, copy));
}
