/*
 * Releases on streams of devices that cannot write timelines, where no fence
 * can tell when the stream has passed them. The hold stays until an event after
 * the stream's work is complete. Completion wakes no thread: later calls look
 * for it.
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
/* The holds end with the session. */
void deferred_deinit(struct deferred_list *list);

/* Drop one hold of the slot, which the caller has, when `stream` of the device
 * has finished its work so far. -EAGAIN: DEFERRED_MAX holds wait already. */
int deferred_add(struct fsdp_client *client, uint32_t slot,
		 const struct device *device, void *stream, struct error *err);

static inline bool deferred_are_waiting(const struct deferred_list *list)
{
	/* Relaxed: the thread that has just added one sees it. */
	return atomic_load_explicit(&list->n, memory_order_relaxed) > 0;
}

/* Drop the holds whose streams have passed them. Never waits. */
void deferred_collect(struct fsdp_client *client);
