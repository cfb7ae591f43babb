/* The ring of events. */
#include "broker/tensor/events.h"
#include "broker/base/deadline.h"
#include "broker/broker.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/slot.h"
#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>

/* How long a woken watcher may lag: one wake-up serves all events within. */
#define WAKE_MS 2
/* A broker that notes fewer than this many events in each millisecond never
 * reaches the numbers of the next one. */
#define NUMBERS_PER_MS (UINT64_C(1) << 20)

uint64_t events_next(struct broker *broker)
{
	struct events *events = &broker->events;

	if (!events->next)
		events->first = events->next = now_ms() * NUMBERS_PER_MS;
	return events->next;
}

int events_watch(struct broker *broker, struct error *err)
{
	struct events *events = &broker->events;

	if (!events->ring) {
		events->ring = calloc(EVENTS_KEPT, sizeof(*events->ring));
		if (!events->ring)
			return error_set(err, -ENOMEM,
					 "no memory to keep events");
		/* Others that happened before were not kept. */
		events->next = events_next(broker) + 1;
		events->first = events->next;
	}
	events->n_watchers++;
	return 0;
}

void events_unwatch(struct broker *broker)
{
	if (--broker->events.n_watchers > 0)
		return;
	free(broker->events.ring);
	broker->events.ring = NULL;
}

static void on_wake(void *data, uint32_t index)
{
	const struct broker *broker = data;

	(void)index;
	wake_name(&broker->wake, EVENTS_KEY);
}

/* Without memory for the deadline the next event tries again. */
static void plan_wake(struct broker *broker)
{
	struct deadline deadline = {
		.at_ms = now_ms() + WAKE_MS,
		.fn = on_wake,
		.data = broker,
		.position = &broker->events.wake_position,
	};

	if (!broker->events.wake_position)
		(void)deadlines_add(&broker->deadlines, &deadline, NULL);
}

/* The record of one more event, without its name. */
static struct noted_event *append(struct broker *broker, enum name_event kind)
{
	struct events *events = &broker->events;
	struct noted_event *event = &events->ring[events->next % EVENTS_KEPT];

	events->next++;
	if (events->next - events->first > EVENTS_KEPT)
		events->first++;
	event->at_ms = now_ms();
	event->kind = kind;
	plan_wake(broker);
	return event;
}

void events_note_slot(struct broker *broker, uint32_t slot,
		      enum name_event kind)
{
	const struct slot_record *record = catalog_slot(&broker->catalog, slot);
	struct noted_event *event;

	if (!broker->events.ring || !(record->flags & SLOT_FLAG_NAMED))
		return;
	event = append(broker, kind);
	event->version = record->version;
	event->access = slot_access(broker, slot);
	slot_describe(broker, slot, NULL, event->name);
}

void events_note_bundle(struct broker *broker, uint32_t bundle,
			enum name_event kind)
{
	const struct bundle_record *record =
		catalog_bundle(&broker->catalog, bundle);
	struct noted_event *event;

	if (!broker->events.ring || record->state != BUNDLE_COMMITTED)
		return;
	event = append(broker, kind);
	event->version = record->version;
	event->access = slot_access(broker, record->members.first);
	bundle_name(broker, bundle, event->name);
}

void events_deinit(struct events *events)
{
	free(events->ring);
	*events = (struct events){0};
}
