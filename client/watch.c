/*
 * Waiting for events of names. They come in pages; each page contains the
 * position of the next one.
 */
#include "client/client.h"

static int show(const struct event_item *item, fsdp_event_fn *fn, void *data)
{
	struct fsdp_event event = {
		.struct_size = sizeof(event),
		.kind = (enum fsdp_event_kind)item->event,
		.name = item->name,
		.version = item->version,
		.uid = item->uid,
		.age_ms = item->age_ms,
	};

	return fn(&event, data);
}

static int show_all(const struct events_reply *reply, fsdp_event_fn *fn,
		    void *data)
{
	struct fsdp_event lost = {.struct_size = sizeof(lost),
				  .kind = FSDP_EVENT_LOST,
				  .name = ""};
	int r = reply->is_lost ? fn(&lost, data) : 0;

	for (uint32_t i = 0; i < reply->n_items && r == 0; i++)
		r = show(&reply->items[i], fn, data);
	return r;
}

int fsdp_watch(struct fsdp_client *client, const char *prefix, uint64_t *cursor,
	       int32_t timeout_ms, fsdp_event_fn *fn, void *data)
{
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_EVENTS,
		.events = {.since = *cursor,
			   .prefix = prefix ? prefix : "",
			   .timeout_ms = timeout_ms},
	};
	struct received received;
	int r = client_call(client, &request, &received, err);

	if (r < 0)
		return r;
	*cursor = received.reply.events.next;
	r = show_all(&received.reply.events, fn, data);
	received_deinit(&received);
	return r;
}
