/*
 * Contexts of client processes: the device's primary context, which the CUDA
 * runtime and PyTorch use too. It is retained once per process and device and
 * never released, because another library may still use our memory at exit.
 *
 * Every block of work is bracketed: afterwards the caller's current context is
 * restored, and calls within the bracket do not disturb a stream capture that
 * is under way.
 */
#pragma once
#include "cuda/device.h"

/* Make the device's primary context current on this thread. -EBUSY,
 * -EPERM: device_check_shareable(). */
int context_enter(const struct device *device, struct error *err);
void context_leave(void);

/*
 * Wait until all that this process gave the device is done, or the device has
 * failed. The driver knows no such wait with a limit, so a thread of our own
 * waits; when it is late (-ETIMEDOUT), it goes on by itself.
 */
int context_synchronize(const struct device *device, int32_t timeout_ms,
			struct error *err);

/* Is `stream` (not NULL) of the device's primary context? -EINVAL names both.
 * -EINVAL also while it is captured into a graph. A stream that was destroyed
 * ends the process, in the driver. */
int context_check_stream(const struct device *device, CUstream stream,
			 struct error *err);
