/*
 * Unmaps memory on threads. It takes the kernel some 0.1 ms to unmap each MiB
 * that was touched, and longer if no other process has the memory, whose pages
 * are then freed. With threads, a process that gets a new version of a model
 * does not wait until the old one is unmapped.
 */
#pragma once
#include <pthread.h>
#include <stddef.h>

struct unmapper {
	pthread_mutex_t lock;
	pthread_cond_t is_idle;
	unsigned int n_threads;
};

void unmapper_init(struct unmapper *unmapper);

/* Unmap host memory, now or soon. It must not be used any more. */
void unmapper_add(struct unmapper *unmapper, void *address, size_t size);

/* Wait until everything is unmapped. Must not be called in a forked child,
 * which has no such threads. */
void unmapper_deinit(struct unmapper *unmapper);
