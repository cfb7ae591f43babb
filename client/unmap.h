/*
 * Unmapping without a pause: to unmap memory takes the kernel some 0.1 ms for
 * each MiB that was touched, and longer if nobody else has the memory, whose
 * pages are then freed. Threads do it, so that a process that goes on to a new
 * version of a model does not wait for the end of an old one.
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

/* Unmap memory of the host that nothing uses any more, now or soon. */
void unmapper_add(struct unmapper *unmapper, void *address, size_t size);

/* Wait until everything is unmapped; not in a forked child. */
void unmapper_deinit(struct unmapper *unmapper);
