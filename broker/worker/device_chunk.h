/*
 * Device memory that the broker made: a VMM chunk. It is mapped when a rank
 * first uses it, since mapping needs the device's context.
 */
#pragma once
#include "cuda/vmm.h"

struct error;

struct device_chunk; /* opaque */

/* The fd stays the caller's. */
int device_chunk_new(const struct device_uuid *device, uint64_t size, int fd,
		     struct device_chunk **ret, struct error *err);
/* No work that uses it may be under way. NULL is fine. */
void device_chunk_free(struct device_chunk *chunk);

bool device_chunk_is_on(const struct device_chunk *chunk,
			const struct device_uuid *device);

/* Gives its first address in this process, on its device. Any thread may call
 * it. */
int device_chunk_map(struct device_chunk *chunk, const struct device *device,
		     CUdeviceptr *ret, struct error *err);
