/*
 * Copies between host memory and tensors: what devices need for that is kept
 * for the next one.
 */
#pragma once
#include <pthread.h>
#include <stdbool.h>

struct copier;

struct copiers {
	pthread_mutex_t lock;
	struct copier *idle; /* owned */
};

void copiers_init(struct copiers *copiers);
/* In a forked child the driver is left alone. */
void copiers_deinit(struct copiers *copiers, bool is_forked);
