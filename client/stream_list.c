#include "client/stream_list.h"
#include <stddef.h>

void stream_list_init(struct stream_list *list)
{
	*list = (struct stream_list){.first = NULL};
	pthread_mutex_init(&list->lock, NULL);
}

static void append(struct stream_list *list, struct stream_node *node)
{
	node->next = NULL;
	if (list->last)
		list->last->next = node;
	else
		list->first = node;
	list->last = node;
	/* Relaxed: see stream_list_is_busy(). */
	atomic_fetch_add_explicit(&list->n, 1, memory_order_relaxed);
}

void stream_list_add(struct stream_list *list, struct stream_node *first)
{
	pthread_mutex_lock(&list->lock);
	while (first) {
		struct stream_node *node = first;

		first = node->next;
		append(list, node);
	}
	pthread_mutex_unlock(&list->lock);
}

struct stream_node *stream_list_take_over(struct stream_list *list,
					  stream_node_is_over_fn *is_over)
{
	struct stream_node *node, *next, *over = NULL, **end = &over;
	CUstream busy = NULL;

	pthread_mutex_lock(&list->lock);
	node = list->first;
	list->first = list->last = NULL;
	atomic_store_explicit(&list->n, 0, memory_order_relaxed);
	for (; node; node = next) {
		next = node->next;
		if ((!busy || node->stream != busy) && is_over(node)) {
			*end = node;
			end = &node->next;
			continue;
		}
		busy = node->stream;
		append(list, node);
	}
	*end = NULL;
	pthread_mutex_unlock(&list->lock);
	return over;
}
