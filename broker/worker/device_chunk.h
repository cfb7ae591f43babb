/*
 * Memory of a device that the broker made: a VMM chunk, mapped when a rank
 * first uses it, since that wants the device's context.
 */
#pragma once
#include "cuda/vmm.h"

struct error;

struct device_chunk; /* opaque */

/* The fd stays the caller's. */
int device_chunk_new(const struct device_uuid *device, uint64_t size, int fd,
		     struct device_chunk **ret, struct error *err);
/* No work that uses it is under way. NULL is fine. */
void device_chunk_free(struct device_chunk *chunk);

bool device_chunk_is_on(const struct device_chunk *chunk,
			const struct device_uuid *device);

/* Where it begins, in this process, on the device that it is on. From any
 * thread. */
int device_chunk_map(struct device_chunk *chunk, const struct device *device,
		     CUdeviceptr *ret, struct error *err);
