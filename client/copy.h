/*
 * Copies between host memory and tensors. Devices need pinned buffers for them,
 * which are kept for later copies.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct copier;
struct device;
struct error;

struct copiers {
	pthread_mutex_t lock;
	struct copier *idle; /* owned; not used by a thread now */
};

void copiers_init(struct copiers *copiers);
/* Free the buffers. In a forked child the driver must not be called, and only
 * the list is freed. */
void copiers_deinit(struct copiers *copiers, bool is_forked);

/* Copy `size` bytes from the host to the device (put) or from the device to the
 * host (get), and wait for the copy. */
int copiers_put(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err);
int copiers_get(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err);
