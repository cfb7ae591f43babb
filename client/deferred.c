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
	struct stream_node node;
	const struct device *device;
	struct event *event;
	uint32_t slot;
};

static void drop(struct deferred *deferred)
{
	event_cache_put(deferred->event);
	free(deferred);
}

void deferred_deinit(struct stream_list *list)
{
	while (list->first) {
		struct deferred *deferred = (struct deferred *)list->first;

		list->first = list->first->next;
		drop(deferred);
	}
}

/* Tell whether the event is complete. If the device has failed, it does no more
 * work, so the wait is over, too. */
static bool is_over(struct stream_node *node)
{
	const struct deferred *deferred = (struct deferred *)node;
	bool is_done;

	return event_query(deferred->device, deferred->event->handle, &is_done,
			   NULL) < 0 ||
	       is_done;
}

/* --- releases ------------------------------------------------------------ */

static int record(struct deferred *deferred, struct error *err)
{
	const struct device *device = deferred->device;
	int r;

	r = context_check_stream(device, deferred->node.stream, err);
	if (r == 0)
		r = event_cache_take(device, EVENT_NO_TIMING, &deferred->event,
				     err);
	if (r == 0)
		r = context_enter(device, err);
	if (r < 0)
		return r;
	r = driver_error(
		err,
		cu.EventRecord(deferred->event->handle, deferred->node.stream),
		"cannot record an event on %s", device->name);
	context_leave();
	return r;
}

static int check_room(struct stream_list *list, struct error *err)
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
	struct stream_list *list = &client->deferred;
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
	deferred->node.stream = stream;
	deferred->slot = slot;
	r = record(deferred, err);
	if (r < 0) {
		drop(deferred);
		return r;
	}
	stream_list_add(list, &deferred->node);
	return 0;
}

static void give_back_all(struct fsdp_client *client, struct stream_node *done)
{
	bool must_ring = false;

	while (done) {
		struct deferred *deferred = (struct deferred *)done;

		done = done->next;
		if (tensor_give_back_unrung(client, deferred->slot, 1))
			must_ring = true;
		drop(deferred);
	}
	if (must_ring)
		connection_ring_anew(&client->connection);
}

void deferred_collect(struct fsdp_client *client)
{
	struct stream_list *list = &client->deferred;

	if (stream_list_is_busy(list))
		give_back_all(client, stream_list_take_over(list, is_over));
}
