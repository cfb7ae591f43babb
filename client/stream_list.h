/*
 * A list of what waits for streams, oldest first: each node waits until its
 * stream has reached a point.
 */
#pragma once
#include "cuda/device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The first member of what is in the list. */
struct stream_node {
	struct stream_node *next;
	CUstream stream;
};

struct stream_list {
	pthread_mutex_t lock;
	struct stream_node *first, *last;
	_Atomic uint32_t n;
};

void stream_list_init(struct stream_list *list);
/* Append nodes that are linked by `next`. Takes the lock. */
void stream_list_add(struct stream_list *list, struct stream_node *first);

/* Take the nodes that are over out of the list; they are linked by `next`. A
 * node is not looked at if an earlier one of the same stream is not over. Takes
 * the lock. */
typedef bool stream_node_is_over_fn(struct stream_node *node);
struct stream_node *stream_list_take_over(struct stream_list *list,
					  stream_node_is_over_fn *is_over);

static inline bool stream_list_is_busy(const struct stream_list *list)
{
	/* Relaxed: a thread that has added one sees its own addition. */
	return atomic_load_explicit(&list->n, memory_order_relaxed) > 0;
}
