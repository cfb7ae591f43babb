/* Fills. All of them are asynchronous, because the interface does not promise
 * more. */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>
#include <string.h>

struct fill {
	struct work work;
	uint64_t to;
	unsigned char value;
	size_t n;
};

static CUresult run_fill(struct work *work)
{
	struct fill *fill = (struct fill *)work;
	bool can;

	process_lock();
	can = mapping_allows(work, fill->to, fill->n, true);
	process_unlock();
	if (!can)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	memset((void *)(uintptr_t)fill->to, fill->value, fill->n);
	return CUDA_SUCCESS;
}

static CUresult enqueue(struct context *context, CUstream handle,
			const struct fill *wanted)
{
	struct stream *stream;
	struct fill *fill;
	CUresult r = stream_find(context, handle, &stream);

	if (r)
		return r;
	if (wanted->n == 0)
		return CUDA_SUCCESS;
	if (!mapping_is_writable(stream, wanted->to, wanted->n))
		return CUDA_ERROR_INVALID_VALUE;
	fill = calloc(1, sizeof(*fill));
	if (!fill)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*fill = *wanted;
	fill->work.run = run_fill;
	stream_enqueue(stream, &fill->work);
	return CUDA_SUCCESS;
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t n)
{
	struct fill fill = {.to = to, .value = value, .n = n};
	struct context *context;
	CUresult r = call_begin_context(CALL_MemsetD8, &context);

	if (r)
		return r;
	return call_end(enqueue(context, NULL, &fill));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n,
			 CUstream stream)
{
	struct fill fill = {.to = to, .value = value, .n = n};
	struct context *context;
	CUresult r = call_begin_context(CALL_MemsetD8Async, &context);

	if (r)
		return r;
	return call_end(enqueue(context, stream, &fill));
}
