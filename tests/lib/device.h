/*
 * Streams of test processes, and the work that tests queue on them for tensors
 * on a device, with the fake driver or a real one. An error that is not the
 * subject of a test ends the process.
 *
 * A loaded driver does not survive fork(): actors are started before the first
 * of these calls.
 */
#pragma once
#include "client/fsdp.h"
#include "cuda/device.h"
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the i-th device that this process sees. */
const struct device *gpu_nth(uint32_t i);
struct fsdp_device gpu_name(uint32_t i);
uint32_t n_gpus(void);

/* Makes a stream that does not wait for other streams, and that exists until
 * the process ends. */
CUstream stream_make(const struct device *device);

/* Queues a fill of the tensor on the stream. */
void stream_fill(CUstream stream, const struct fsdp_tensor *tensor,
		 uint8_t value);
/* Queues a copy of `size` bytes of the tensor to `to`, which must be from
 * pinned_memory(). */
void stream_read(CUstream stream, void *to, const struct fsdp_tensor *tensor,
		 size_t size);
/* Blocks the stream until a process posts the semaphore. Processes may share
 * it. */
void stream_hold(CUstream stream, sem_t *gate);

bool stream_is_done(CUstream stream);
/* Waits until the stream is done. Returns false if it failed. */
bool stream_finish(CUstream stream);

void *pinned_memory(size_t size);

/* Copies bytes from an address of the device to the host, or back, and
 * waits. */
void gpu_get(const struct device *device, void *to, const void *from,
	     size_t size);
void gpu_put(const struct device *device, void *to, const void *from,
	     size_t size);

/* Returns whether all `n` bytes at `from` have this value. */
bool is_filled(const void *from, size_t n, uint8_t value);
/* Returns whether all bytes of a held tensor have this value. */
bool holds_value(struct fsdp_tensor *tensor, uint8_t value);

/* Returns whether this process has loaded the driver. */
bool gpu_is_loaded(void);
