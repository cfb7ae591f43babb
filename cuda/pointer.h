/*
 * Pointers of callers: which allocation of device memory one is in, and how
 * that can be shared. Found without being told the device.
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
