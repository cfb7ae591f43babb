/* events: lists changes of the names that a session may read. */
#include "broker/tensor/events.h"
#include "broker/base/clock.h"
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <string.h>

/* The number of events of other names that one run skips. Then it replies, and
 * the client continues from there. */
#define MAX_SKIPPED 512
/* A page of this many events fits into a frame, even with names of full
 * length. */
#define PAGE_EVENTS 128

static bool is_wanted(const struct verb_call *call,
		      const struct noted_event *event)
{
	const char *prefix = call->request->events.prefix;

	return strncmp(event->name, prefix, strlen(prefix)) == 0 &&
	       access_is_allowed(&call->session->holdings.credentials,
				 &event->access, ACCESS_READ);
}

static void fill_item(const struct noted_event *event, struct event_item *ret)
{
	*ret = (struct event_item){
		.event = event->kind,
		.name = event->name,
		.version = event->version,
		.uid = event->access.uid,
		.age_ms = now_ms() - event->at_ms,
	};
}

/* Fill the page with events from `reply->next` on. Returns the number of events
 * that were skipped. */
static uint32_t fill_page(const struct verb_call *call,
			  struct events_reply *reply)
{
	const struct events *events = &call->broker->store.events;
	uint32_t n_skipped = 0;

	while (reply->next < events->next && n_skipped < MAX_SKIPPED &&
	       reply->n_items < PAGE_EVENTS) {
		const struct noted_event *event =
			&events->ring[reply->next++ % EVENTS_KEPT];

		if (is_wanted(call, event))
			fill_item(event, &reply->items[reply->n_items++]);
		else
			n_skipped++;
	}
	return n_skipped;
}

static int watch(struct verb_call *call, struct error *err)
{
	int r = 0;

	if (!call->session->is_watching)
		r = events_watch(&call->broker->store, err);
	if (r == 0)
		call->session->is_watching = true;
	return r;
}

int verb_events(struct verb_call *call, struct error *err)
{
	const struct events_request *request = &call->request->events;
	struct events *events = &call->broker->store.events;
	struct events_reply *reply = &call->reply->events;
	uint32_t n_skipped;
	int r = watch(call, err);

	if (r < 0)
		return r;
	reply->next = request->since ? request->since : events->next;
	if (reply->next < events->first || reply->next > events->next) {
		reply->is_lost = true;
		reply->next = events->first;
	}
	reply->items = verb_scratch(call, PAGE_EVENTS * sizeof(*reply->items));
	if (!reply->items)
		return error_nomem(err, "the events");
	n_skipped = fill_page(call, reply);
	if (request->since == 0 || reply->n_items || reply->is_lost ||
	    n_skipped == MAX_SKIPPED || call->is_timed_out ||
	    request->timeout_ms == 0)
		return VERB_DONE;
	call->wait_name = EVENTS_KEY;
	call->wait_ms = request->timeout_ms;
	return VERB_PARK_NAME;
}
