/*
 * Staging copies host bytes to a device and back, through two pinned buffers in
 * alternation, so that reading the source overlaps with the copy engine.
 */
#pragma once
#include "cuda/context.h"
#include <stddef.h>

struct staging; /* defined in staging.c; used by one thread at a time */

/* `size` is the size of each buffer in bytes; 0 means 16 MiB. */
int staging_new(const struct device *device, size_t size, struct staging **ret,
		struct error *err);
void staging_free(struct staging *staging); /* `staging` may be NULL */

/* Reads exactly the next `size` bytes of the source. Returns 0, or a negative
 * errno with a sentence in `err`. */
typedef int staging_read_fn(void *data, void *into, size_t size,
			    struct error *err);
/* Begins a copy, which is complete when staging_finish() has returned. `read`
 * is called in order, once for each buffer. If it fails, its result is
 * returned; the bytes on the device are then undefined, but `staging` can be
 * used again. */
int staging_put(struct staging *staging, CUdeviceptr to, uint64_t size,
		staging_read_fn *read, void *data, struct error *err);
int staging_put_bytes(struct staging *staging, CUdeviceptr to, const void *from,
		      uint64_t size, struct error *err);
/* Waits until all copies to the device are complete. */
int staging_finish(struct staging *staging, struct error *err);
/* Waits until the bytes are in `to`. */
int staging_get(struct staging *staging, void *to, CUdeviceptr from,
		uint64_t size, struct error *err);
