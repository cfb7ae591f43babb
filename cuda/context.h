/*
 * Client processes use the primary context of a device, as the CUDA runtime and
 * PyTorch do. It is retained once per process and device and never released,
 * because another library may still use our memory at exit.
 *
 * Each sequence of driver calls is between context_enter() and context_leave().
 * Afterwards the caller's current context is restored. The calls in between do
 * not disturb a stream capture that is under way.
 */
#pragma once
#include "cuda/device.h"

/* Makes the device's primary context current on this thread. -EBUSY and -EPERM
 * are as in device_check_shareable(). */
int context_enter(const struct device *device, struct error *err);
/* Does the same with the context that is current on this thread already. */
int context_enter_again(CUcontext context, struct error *err);
void context_leave(void);

/*
 * Waits until the device has completed all work of this process, or has failed.
 * The driver has no timed wait, so a thread of our own waits. On -ETIMEDOUT
 * this thread continues to wait, and ends by itself.
 */
int context_synchronize(const struct device *device, int32_t timeout_ms,
			struct error *err);

/* Checks that `stream` (not NULL) belongs to the device's primary context and
 * is not being captured into a graph. Returns -EINVAL if not; the sentence
 * names both devices. If the stream was destroyed, the driver crashes the
 * process. */
int context_check_stream(const struct device *device, CUstream stream,
			 struct error *err);
