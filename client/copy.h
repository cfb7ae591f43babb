/*
 * Copies between host memory and tensors: what devices need for that is kept
 * for the next one.
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
/* In a forked child the driver is left alone. */
void copiers_deinit(struct copiers *copiers, bool is_forked);

/* Bytes of the host to the device and back; waits for them. */
int copiers_put(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err);
int copiers_get(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err);
