/*
 * Copies between host memory and tensors. The buffers that devices need for
 * them are kept for later copies.
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
	struct copier *idle; /* owned */
};

void copiers_init(struct copiers *copiers);
/* In a forked child the driver is not called. */
void copiers_deinit(struct copiers *copiers, bool is_forked);

/* Copy host bytes to the device or back, and wait for the copy. */
int copiers_put(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err);
int copiers_get(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err);
