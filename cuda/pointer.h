/*
 * Pointers of callers: the allocation of device memory that contains one, and
 * how it can be shared. The device is found as well.
 */
#pragma once
#include "cuda/device.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

struct pointer {
	const struct device *device;
	CUdeviceptr base; /* of the whole allocation */
	uint64_t size;
	bool is_legacy; /* of cuMemAlloc(): ipc.h; else perhaps vmm_export() */
};

/*
 * -EINVAL: no device memory that this process knows; -EOPNOTSUPP: managed
 * memory. -ENODEV and others as driver_load(). Makes no context.
 */
int pointer_find(CUdeviceptr address, struct pointer *ret, struct error *err);
