/*
 * Two pinned buffers and a stream. While the copy engine works on one buffer,
 * the other is filled (staging_put) or emptied (staging_get); the event of a
 * buffer says when the device is done with it.
 */
#include "cuda/staging.h"

#include "proto/error.h"
#include <stdlib.h>
#include <string.h>

#define SIZE_DEFAULT (16 << 20)

struct buffer {
	void *bytes;
	CUevent is_free; /* recorded after the last copy */
};

struct staging {
	const struct device *device;
	size_t size; /* bytes of each buffer */
	CUstream stream;
	struct buffer buffers[2];
	unsigned int next; /* number of the next buffer, modulo 2 */
};

static int say(const struct staging *staging, CUresult result, const char *what,
	       struct error *err)
{
	char text[DEVICE_TEXT_SIZE];

	device_format(&staging->device->uuid, text);
	return driver_error(err, result, "cannot %s device %s", what, text);
}

/* The context must be entered. */
static CUresult allocate(struct staging *staging)
{
	CUresult result =
		cu.StreamCreate(&staging->stream, CU_STREAM_NON_BLOCKING);

	for (int i = 0; i < 2 && result == CUDA_SUCCESS; i++) {
		struct buffer *buffer = &staging->buffers[i];

		result = cu.MemHostAlloc(&buffer->bytes, staging->size,
					 CU_MEMHOSTALLOC_PORTABLE);
		/* With this flag a thread that waits for the event sleeps
		 * instead of spinning. */
		if (result == CUDA_SUCCESS)
			result =
				cu.EventCreate(&buffer->is_free,
					       CU_EVENT_BLOCKING_SYNC |
						       CU_EVENT_DISABLE_TIMING);
	}
	return result;
}

int staging_new(const struct device *device, size_t size, struct staging **ret,
		struct error *err)
{
	struct staging *staging = calloc(1, sizeof(*staging));
	int r;

	if (!staging)
		return error_nomem(err, "a staging buffer");
	staging->device = device;
	staging->size = size ? size : SIZE_DEFAULT;
	r = context_enter(device, err);
	if (r == 0) {
		r = say(staging, allocate(staging), "pin buffers to stage for",
			err);
		context_leave();
	}
	if (r < 0)
		staging_free(staging);
	else
		*ret = staging;
	return r;
}

void staging_free(struct staging *staging)
{
	if (!staging)
		return;
	if (context_enter(staging->device, NULL) == 0) {
		/* The copy engine may still read the memory that is freed
		 * below. */
		if (staging->stream) {
			(void)cu.StreamSynchronize(staging->stream);
			(void)cu.StreamDestroy(staging->stream);
		}
		for (int i = 0; i < 2; i++) {
			struct buffer *buffer = &staging->buffers[i];

			if (buffer->is_free)
				(void)cu.EventDestroy(buffer->is_free);
			if (buffer->bytes)
				(void)cu.MemFreeHost(buffer->bytes);
		}
		context_leave();
	}
	free(staging);
}

/* Returns the buffers in turn. */
static struct buffer *take_buffer(struct staging *staging)
{
	return &staging->buffers[staging->next++ % 2];
}

static int wait_for(const struct staging *staging, const struct buffer *buffer,
		    struct error *err)
{
	return say(staging, cu.EventSynchronize(buffer->is_free), "stage for",
		   err);
}

static int put_part(struct staging *staging, CUdeviceptr to, size_t size,
		    staging_read_fn *read, void *data, struct error *err)
{
	struct buffer *buffer = take_buffer(staging);
	CUresult result;
	int r = wait_for(staging, buffer, err);

	if (r == 0)
		r = read(data, buffer->bytes, size, err);
	if (r < 0)
		return r;
	result = cu.MemcpyHtoDAsync(to, buffer->bytes, size, staging->stream);
	if (result == CUDA_SUCCESS)
		result = cu.EventRecord(buffer->is_free, staging->stream);
	return say(staging, result, "copy to", err);
}

static size_t part_of(const struct staging *staging, uint64_t left)
{
	return left < staging->size ? (size_t)left : staging->size;
}

int staging_put(struct staging *staging, CUdeviceptr to, uint64_t size,
		staging_read_fn *read, void *data, struct error *err)
{
	int r = context_enter(staging->device, err);

	if (r < 0)
		return r;
	while (size > 0 && r == 0) {
		size_t n = part_of(staging, size);

		r = put_part(staging, to, n, read, data, err);
		to += n;
		size -= n;
	}
	context_leave();
	return r;
}

/* A staging_read_fn; `data` points to the next bytes. */
static int read_bytes(void *data, void *into, size_t size, struct error *err)
{
	const char **from = data;

	(void)err;
	memcpy(into, *from, size);
	*from += size;
	return 0;
}

int staging_put_bytes(struct staging *staging, CUdeviceptr to, const void *from,
		      uint64_t size, struct error *err)
{
	return staging_put(staging, to, size, read_bytes, &from, err);
}

int staging_finish(struct staging *staging, struct error *err)
{
	int r = context_enter(staging->device, err);

	if (r < 0)
		return r;
	for (int i = 0; i < 2 && r == 0; i++)
		r = wait_for(staging, &staging->buffers[i], err);
	context_leave();
	return r;
}

/* A copy from the device that is under way, or size 0. */
struct part {
	struct buffer *buffer;
	size_t size;
};

/* Begins to copy the next part to a buffer. Its previous contents are no longer
 * needed: the stream copies them to the device first, or end_get() has emptied
 * the buffer. */
static int begin_get(struct staging *staging, CUdeviceptr from, size_t size,
		     struct part *ret, struct error *err)
{
	struct part part = {take_buffer(staging), size};
	CUresult result = cu.MemcpyDtoHAsync(part.buffer->bytes, from, size,
					     staging->stream);

	if (result == CUDA_SUCCESS)
		result = cu.EventRecord(part.buffer->is_free, staging->stream);
	if (result == CUDA_SUCCESS)
		*ret = part;
	return say(staging, result, "copy from", err);
}

static int end_get(struct staging *staging, const struct part *part, void *to,
		   struct error *err)
{
	int r = wait_for(staging, part->buffer, err);

	if (r == 0)
		memcpy(to, part->buffer->bytes, part->size);
	return r;
}

/* The context must be entered. One part is always fetched ahead. */
static int get(struct staging *staging, char *to, CUdeviceptr from,
	       uint64_t size, struct error *err)
{
	struct part now, next = {.size = 0};
	int r = begin_get(staging, from, part_of(staging, size), &now, err);

	for (; r == 0 && now.size > 0; now = next) {
		from += now.size;
		size -= now.size;
		next.size = part_of(staging, size);
		if (next.size > 0)
			r = begin_get(staging, from, next.size, &next, err);
		if (r == 0)
			r = end_get(staging, &now, to, err);
		to += now.size;
	}
	return r;
}

int staging_get(struct staging *staging, void *to, CUdeviceptr from,
		uint64_t size, struct error *err)
{
	int r = context_enter(staging->device, err);

	if (r < 0)
		return r;
	r = size ? get(staging, to, from, size, err) : 0;
	context_leave();
	return r;
}
