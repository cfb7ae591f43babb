/*
 * Releases on streams of devices that cannot write timelines. On such a device
 * no fence can tell when a stream has passed a release, so the hold stays until
 * an event after the stream's work is complete. The completion of an event
 * wakes no thread: later calls look for it.
 */
#pragma once
#include "cuda/device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct deferred;
struct error;
struct fsdp_client;

/* The maximum number of holds that wait for streams. */
#define DEFERRED_MAX 1000

struct deferred_list {
	pthread_mutex_t lock;
	struct deferred *first, *last; /* oldest first; owned */
	_Atomic uint32_t n;
};

void deferred_init(struct deferred_list *list);
/* Drop the events; the holds end with the session. */
void deferred_deinit(struct deferred_list *list);

/* Drop one hold of the slot when `stream` of the device has finished its work
 * so far. The caller must have taken this hold from the handle. -EAGAIN:
 * DEFERRED_MAX holds are waiting already. */
int deferred_add(struct fsdp_client *client, uint32_t slot,
		 const struct device *device, void *stream, struct error *err);

static inline bool deferred_are_waiting(const struct deferred_list *list)
{
	/* Relaxed: a thread that has added one sees its own addition. */
	return atomic_load_explicit(&list->n, memory_order_relaxed) > 0;
}

/* Drop the holds whose streams have reached their release. Never waits. */
void deferred_collect(struct fsdp_client *client);
