/*
 * Streams of test processes, and what they are given to do with tensors on a
 * device: on the double of the driver, or a real one.
 *
 * What no test is about ends the process. A driver that was loaded does not
 * survive fork(): actors are started before the first of these calls.
 */
#pragma once
#include "client/fsdp.h"
#include "cuda/device.h"
#include <semaphore.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The i-th device that this process sees. */
const struct device *gpu_nth(uint32_t i);
struct fsdp_device gpu_name(uint32_t i);
uint32_t n_gpus(void);

/* A stream that waits for no other, for the life of the process. */
CUstream stream_make(const struct device *device);

/* Given to the stream; done behind all it was given before. */
void stream_fill(CUstream stream, const struct fsdp_tensor *tensor,
		 uint8_t value);
/* Copy `size` bytes of the tensor to `to`, which is pinned_memory(). */
void stream_read(CUstream stream, void *to, const struct fsdp_tensor *tensor,
		 size_t size);
/* Stop until somebody posts. The semaphore may be shared by processes. */
void stream_hold(CUstream stream, sem_t *gate);

bool stream_is_done(CUstream stream);
/* Wait until it is; false: it failed. */
bool stream_finish(CUstream stream);

void *pinned_memory(size_t size);

/* Bytes at an address of the device, to the host and back; waits. */
void gpu_get(const struct device *device, void *to, const void *from,
	     size_t size);
void gpu_put(const struct device *device, void *to, const void *from,
	     size_t size);

/* Is `n` bytes at `from` nothing but `value`? */
bool is_filled(const void *from, size_t n, uint8_t value);

/* Is the driver in this process's memory? */
bool gpu_is_loaded(void);
