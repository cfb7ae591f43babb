/*
 * Releases on streams of devices that cannot write timelines: no fence can say
 * when the stream is past them. The hold stays ours until an event behind the
 * stream's work is done. Nobody is woken by that: it is looked at in later
 * calls.
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

/* Holds that wait for streams, at most. */
#define DEFERRED_MAX 1000

struct deferred_list {
	pthread_mutex_t lock;
	struct deferred *first, *last; /* oldest first; owned */
	_Atomic uint32_t n;
};

void deferred_init(struct deferred_list *list);
/* The holds go with the session. */
void deferred_deinit(struct deferred_list *list);

/* Drop one hold of the slot, which the caller has, when `stream`, of the
 * device, has done all that it was given. -EAGAIN: DEFERRED_MAX wait already.
 */
int deferred_add(struct fsdp_client *client, uint32_t slot,
		 const struct device *device, void *stream, struct error *err);

static inline bool deferred_are_waiting(const struct deferred_list *list)
{
	/* Relaxed: who has just added one sees it. */
	return atomic_load_explicit(&list->n, memory_order_relaxed) > 0;
}

/* Drop those whose streams are past them. Never waits. */
void deferred_collect(struct fsdp_client *client);
