/* The ring of events. */
#include "broker/tensor/events.h"
#include "broker/base/deadline.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <stdlib.h>

/* The delay between an event and the wake-up of watchers; one wake-up serves
 * all events within it. */
#define WAKE_MS 2
/* A broker that records fewer events than this in each millisecond never
 * reaches the numbers of the next broker. */
#define NUMBERS_PER_MS (UINT64_C(1) << 20)

/* Returns the next number. The numbers of a new broker are above those of an
 * earlier one. */
static uint64_t next_number(struct store *store)
{
	struct events *events = &store->events;

	if (!events->next)
		events->first = events->next = now_ms() * NUMBERS_PER_MS;
	return events->next;
}

int events_watch(struct store *store, struct error *err)
{
	struct events *events = &store->events;

	if (!events->ring) {
		events->ring = calloc(EVENTS_KEPT, sizeof(*events->ring));
		if (!events->ring)
			return error_nomem(err, "events");
		/* The gap shows that earlier events were not kept. */
		events->next = next_number(store) + 1;
		events->first = events->next;
	}
	events->n_watchers++;
	return 0;
}

void events_unwatch(struct store *store)
{
	if (--store->events.n_watchers > 0)
		return;
	free(store->events.ring);
	store->events.ring = NULL;
}

static void on_wake(void *data, uint32_t index)
{
	const struct store *store = data;

	(void)index;
	wake_name(&store->base->wake, EVENTS_KEY);
}

/* Plans a wake-up. If there is no memory for the deadline, the next event tries
 * again. */
static void plan_wake(struct store *store)
{
	struct deadline deadline = {
		.at_ms = now_ms() + WAKE_MS,
		.fn = on_wake,
		.data = store,
		.position = &store->events.wake_position,
	};

	if (!store->events.wake_position)
		(void)deadlines_add(&store->base->deadlines, &deadline, NULL);
}

/* Appends an event. The caller fills in its name. */
static struct noted_event *append(struct store *store, enum name_event kind)
{
	struct events *events = &store->events;
	struct noted_event *event = &events->ring[events->next % EVENTS_KEPT];

	events->next++;
	if (events->next - events->first > EVENTS_KEPT)
		events->first++;
	event->at_ms = now_ms();
	event->kind = kind;
	plan_wake(store);
	return event;
}

void events_note_slot(struct store *store, uint32_t slot, enum name_event kind)
{
	const struct slot_record *record = catalog_slot(&store->catalog, slot);
	struct noted_event *event;

	if (!store->events.ring || !(record->flags & SLOT_FLAG_NAMED))
		return;
	event = append(store, kind);
	event->version = record->version;
	event->access = slot_access(store, slot);
	slot_describe(store, slot, NULL, event->name);
}

void events_note_bundle(struct store *store, uint32_t bundle,
			enum name_event kind)
{
	const struct bundle_record *record =
		catalog_bundle(&store->catalog, bundle);
	struct noted_event *event;

	if (!store->events.ring || record->state != BUNDLE_COMMITTED)
		return;
	event = append(store, kind);
	event->version = record->version;
	event->access = slot_access(store, record->members.first);
	bundle_name(store, bundle, event->name);
}

void events_deinit(struct events *events)
{
	free(events->ring);
	*events = (struct events){0};
}
