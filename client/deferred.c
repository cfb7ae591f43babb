/*
 * Releases that wait for streams.
 */
#include "client/deferred.h"
#include "client/client.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include <errno.h>
#include <stdlib.h>

struct deferred {
	struct deferred *next;
	const struct device *device;
	CUstream stream;
	struct event *event;
	uint32_t slot;
};

void deferred_init(struct deferred_list *list)
{
	*list = (struct deferred_list){.first = NULL};
	pthread_mutex_init(&list->lock, NULL);
}

static void drop(struct deferred *deferred)
{
	event_cache_put(deferred->event);
	free(deferred);
}

void deferred_deinit(struct deferred_list *list)
{
	while (list->first) {
		struct deferred *deferred = list->first;

		list->first = deferred->next;
		drop(deferred);
	}
}

/* --- the list (lock held) ------------------------------------------------ */

static void append(struct deferred_list *list, struct deferred *deferred)
{
	deferred->next = NULL;
	if (list->last)
		list->last->next = deferred;
	else
		list->first = deferred;
	list->last = deferred;
	/* Relaxed: the count orders no other access. */
	atomic_fetch_add_explicit(&list->n, 1, memory_order_relaxed);
}

/* Tell whether the event is complete. If the device has failed, it does no more
 * work, so the wait is over, too. */
static bool is_over(const struct deferred *deferred)
{
	bool is_done;

	return event_query(deferred->device, deferred->event->handle, &is_done,
			   NULL) < 0 ||
	       is_done;
}

/* Move the complete releases to another list. An event is not queried if an
 * earlier one of the same stream is not complete. */
static struct deferred *take_done(struct deferred_list *list)
{
	struct deferred *deferred = list->first, *next, *done = NULL;
	CUstream busy = NULL;

	list->first = list->last = NULL;
	atomic_store_explicit(&list->n, 0, memory_order_relaxed);
	for (; deferred; deferred = next) {
		next = deferred->next;
		if ((!busy || deferred->stream != busy) && is_over(deferred)) {
			deferred->next = done;
			done = deferred;
			continue;
		}
		busy = deferred->stream;
		append(list, deferred);
	}
	return done;
}

/* --- releases ------------------------------------------------------------ */

static int record(struct deferred *deferred, struct error *err)
{
	const struct device *device = deferred->device;
	int r;

	r = context_check_stream(device, deferred->stream, err);
	if (r == 0)
		r = event_cache_take(device, EVENT_NO_TIMING, &deferred->event,
				     err);
	if (r == 0)
		r = context_enter(device, err);
	if (r < 0)
		return r;
	r = driver_error(
		err, cu.EventRecord(deferred->event->handle, deferred->stream),
		"cannot record an event on %s", device->name);
	context_leave();
	return r;
}

static int check_room(struct deferred_list *list, struct error *err)
{
	if (atomic_load_explicit(&list->n, memory_order_relaxed) < DEFERRED_MAX)
		return 0;
	return error_set(err, -EAGAIN,
			 "%d releases wait for streams that have not reached "
			 "them; wait for one of the streams, then release",
			 DEFERRED_MAX);
}

int deferred_add(struct fsdp_client *client, uint32_t slot,
		 const struct device *device, void *stream, struct error *err)
{
	struct deferred_list *list = &client->deferred;
	struct deferred *deferred;
	int r;

	deferred_collect(client);
	r = check_room(list, err);
	if (r < 0)
		return r;
	deferred = calloc(1, sizeof(*deferred));
	if (!deferred)
		return error_nomem(err, "a release");
	deferred->device = device;
	deferred->stream = stream;
	deferred->slot = slot;
	r = record(deferred, err);
	if (r < 0) {
		drop(deferred);
		return r;
	}
	pthread_mutex_lock(&list->lock);
	append(list, deferred);
	pthread_mutex_unlock(&list->lock);
	return 0;
}

static void give_back_all(struct fsdp_client *client, struct deferred *done)
{
	bool must_ring = false;

	while (done) {
		struct deferred *deferred = done;

		done = deferred->next;
		if (tensor_give_back_unrung(client, deferred->slot, 1))
			must_ring = true;
		drop(deferred);
	}
	if (must_ring)
		connection_ring_anew(&client->connection);
}

void deferred_collect(struct fsdp_client *client)
{
	struct deferred_list *list = &client->deferred;
	struct deferred *done;

	if (!deferred_are_waiting(list))
		return;
	pthread_mutex_lock(&list->lock);
	done = take_done(list);
	pthread_mutex_unlock(&list->lock);
	give_back_all(client, done);
}
