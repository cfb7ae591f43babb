/*
 * Finds the device and the allocation of device memory that contain a caller's
 * pointer, and how the allocation can be shared.
 */
#pragma once
#include "cuda/device.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

struct pointer {
	const struct device *device;
	CUdeviceptr base; /* address of the whole allocation */
	uint64_t size;
	/* the driver's number of it, which no other allocation has had */
	uint64_t buffer;
	/* of cuMemAlloc(), for ipc.h; otherwise vmm_export() may work */
	bool is_legacy;
};

/*
 * Returns -EINVAL if the address is not device memory of this process,
 * -EOPNOTSUPP for managed memory, -ENODEV if the device is not visible, or
 * fails like driver_load(). It makes no context.
 */
int pointer_find(CUdeviceptr address, struct pointer *ret, struct error *err);
