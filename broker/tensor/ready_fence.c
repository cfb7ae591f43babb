/*
 * Ready fences: their records, and the end of a session.
 */
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "broker/tensor/timeline_file.h"
#include "proto/failpoint.h"
#include "shm/timeline.h"
#include <assert.h>
#include <stddef.h>

_Static_assert(MESSAGE_MAX_TIMELINES == TIMELINES, "what a decoder lets pass");
_Static_assert(TIMELINE_POISON == INT64_MAX, "what a decoder lets pass");

#define SESSION_LINK offsetof(struct ready_fence_record, session_link)
#define COPY_LINK    offsetof(struct ready_fence_record, copy_link)

static bool is_reached(const struct store *store,
		       const struct ready_fence_record *fence)
{
	const struct holdings *holdings = store->holdings[fence->session];

	/* For an event, the producer reports when it is complete. */
	return holdings && fence->timeline &&
	       timeline_file_has_reached(holdings, fence->timeline,
					 fence->value);
}

bool ready_fence_is_pending(const struct store *store, uint32_t slot)
{
	uint32_t fence = catalog_slot(&store->catalog, slot)->ready_fence;

	return fence &&
	       !is_reached(store, catalog_ready_fence(&store->catalog, fence));
}

void ready_fence_describe(const struct store *store, uint32_t slot,
			  struct fence *ret)
{
	const struct catalog *catalog = &store->catalog;
	const struct ready_fence_record *fence;

	*ret = (struct fence){0};
	if (!ready_fence_is_pending(store, slot))
		return;
	fence = catalog_ready_fence(catalog,
				    catalog_slot(catalog, slot)->ready_fence);
	ret->session = catalog_session(catalog, fence->session)->id;
	ret->timeline = fence->timeline;
	ret->value = fence->value;
}

/* Returns the fence of the slot or, if that is a copy, its original. Returns
 * NULL if the slot has no fence. */
static const struct ready_fence_record *find_original(const struct store *store,
						      uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t index = catalog_slot(catalog, slot)->ready_fence;
	const struct ready_fence_record *fence;

	if (!index)
		return NULL;
	fence = catalog_ready_fence(catalog, index);
	return fence->original ? catalog_ready_fence(catalog, fence->original)
			       : fence;
}

const uint8_t *ready_fence_event(const struct store *store, uint32_t slot)
{
	const struct ready_fence_record *fence = find_original(store, slot);

	return fence && fence->event
		       ? catalog_blob(&store->catalog, fence->event)
		       : NULL;
}

/* --- originals and copies ------------------------------------------------ */

static void detach(struct catalog *catalog, uint32_t copy)
{
	struct ready_fence_record *record = catalog_ready_fence(catalog, copy);

	if (!record->original)
		return;
	catalog_list_remove(
		catalog,
		&catalog_ready_fence(catalog, record->original)->copies,
		SECTION_READY_FENCE, COPY_LINK, copy);
	catalog_set(catalog, record->original, 0);
}

static void detach_copies(struct catalog *catalog,
			  struct ready_fence_record *record)
{
	while (record->copies.first)
		detach(catalog, record->copies.first);
}

static void set_handle(struct catalog *catalog,
		       struct ready_fence_record *record, uint64_t event)
{
	if (record->event)
		catalog_blob_release(catalog, record->event, FENCE_EVENT_SIZE);
	catalog_set(catalog, record->event, event);
}

/* --- making and ending --------------------------------------------------- */

static void unlink_from_session(struct catalog *catalog, uint32_t fence)
{
	struct session_record *session = catalog_session(
		catalog, catalog_ready_fence(catalog, fence)->session);

	catalog_list_remove(catalog, &session->fences, SECTION_READY_FENCE,
			    SESSION_LINK, fence);
}

static void link_to_session(struct catalog *catalog, uint32_t fence,
			    uint32_t session)
{
	catalog_set(catalog, catalog_ready_fence(catalog, fence)->session,
		    session);
	catalog_list_append(catalog, &catalog_session(catalog, session)->fences,
			    SECTION_READY_FENCE, SESSION_LINK, fence);
}

void ready_fence_end(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t fence = record->ready_fence;

	if (!fence)
		return;
	detach(catalog, fence);
	detach_copies(catalog, catalog_ready_fence(catalog, fence));
	set_handle(catalog, catalog_ready_fence(catalog, fence), 0);
	unlink_from_session(catalog, fence);
	catalog_release(catalog, SECTION_READY_FENCE, fence);
	catalog_set(catalog, record->ready_fence, 0);
}

/* Makes a fence without values. */
static uint32_t make(struct store *store, uint32_t slot, uint32_t session)
{
	struct catalog *catalog = &store->catalog;
	uint32_t fence = catalog_alloc(catalog, SECTION_READY_FENCE);

	assert(fence > 0); /* there are as many as slots */
	catalog_ready_fence(catalog, fence)->slot = slot;
	link_to_session(catalog, fence, session);
	catalog_set(catalog, catalog_slot(catalog, slot)->ready_fence, fence);
	return fence;
}

static void set_values(struct catalog *catalog, uint32_t fence,
		       uint32_t session, uint32_t timeline, uint64_t value)
{
	struct ready_fence_record *record = catalog_ready_fence(catalog, fence);

	unlink_from_session(catalog, fence);
	link_to_session(catalog, fence, session);
	catalog_set(catalog, record->timeline, timeline);
	catalog_set(catalog, record->value, value);
}

/* Sets the values of a slot's fence, and of its copies for views. Makes the
 * fence if there is none. Returns its record. */
static struct ready_fence_record *set(struct store *store, uint32_t slot,
				      uint32_t session, uint32_t timeline,
				      uint64_t value)
{
	struct catalog *catalog = &store->catalog;
	uint32_t fence = catalog_slot(catalog, slot)->ready_fence, copy;
	struct ready_fence_record *record;

	if (!fence)
		fence = make(store, slot, session);
	detach(catalog, fence);
	set_values(catalog, fence, session, timeline, value);
	record = catalog_ready_fence(catalog, fence);
	for (copy = record->copies.first; copy;
	     copy = catalog_ready_fence(catalog, copy)->copy_link.next)
		set_values(catalog, copy, session, timeline, value);
	return record;
}

void ready_fence_set(struct store *store, uint32_t slot, uint32_t session,
		     uint32_t timeline, uint64_t value)
{
	struct catalog *catalog = &store->catalog;
	struct ready_fence_record *record =
		set(store, slot, session, timeline, value);

	detach_copies(catalog, record);
	set_handle(catalog, record, 0);
	failpoint("ready_fence.set");
}

void ready_fence_set_event(struct store *store, uint32_t slot, uint32_t session,
			   uint64_t number, uint64_t event)
{
	set_handle(&store->catalog, set(store, slot, session, 0, number),
		   event);
	failpoint("ready_fence.set_event");
}

/* Copies a fence that is an event. The copy refers to the original for the
 * handle; the slot of the original is held, and keeps its fence as long as the
 * copy exists. */
static void copy_event(struct store *store, uint32_t fence, uint32_t to)
{
	struct catalog *catalog = &store->catalog;
	const struct ready_fence_record *from =
		catalog_ready_fence(catalog, fence);
	uint32_t original = from->original ? from->original : fence;
	uint32_t copy;

	(void)set(store, to, from->session, 0, from->value);
	copy = catalog_slot(catalog, to)->ready_fence;
	catalog_set(catalog, catalog_ready_fence(catalog, copy)->original,
		    original);
	catalog_list_append(catalog,
			    &catalog_ready_fence(catalog, original)->copies,
			    SECTION_READY_FENCE, COPY_LINK, copy);
}

void ready_fence_copy(struct store *store, uint32_t from, uint32_t to)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, from);
	const struct ready_fence_record *fence;

	if (record->flags & SLOT_FLAG_TAINTED)
		slot_taint(store, to);
	if (!ready_fence_is_pending(store, from))
		return;
	fence = catalog_ready_fence(catalog, record->ready_fence);
	if (fence->timeline)
		ready_fence_set(store, to, fence->session, fence->timeline,
				fence->value);
	else
		copy_event(store, record->ready_fence, to);
}

uint32_t ready_fence_n_copies(const struct store *store, uint32_t slot)
{
	const struct ready_fence_record *fence = find_original(store, slot);

	return fence ? fence->copies.n : 0;
}

uint32_t ready_fence_end_event(struct store *store, uint32_t slot,
			       uint32_t session, uint64_t number)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t fence = catalog_slot(catalog, slot)->ready_fence;
	const struct ready_fence_record *record;

	if (!fence)
		return 0;
	record = catalog_ready_fence(catalog, fence);
	if (!record->event || record->session != session ||
	    record->value != number)
		return 0;
	if (record->copies.first)
		slot = catalog_ready_fence(catalog, record->copies.first)->slot;
	ready_fence_end(store, slot);
	return slot;
}

uint32_t ready_fence_end_next(struct store *store, uint32_t session)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t fence = catalog_session(catalog, session)->fences.first;
	const struct ready_fence_record *record;
	uint32_t slot;

	if (!fence)
		return 0;
	record = catalog_ready_fence(catalog, fence);
	slot = record->slot;
	if (!is_reached(store, record)) {
		slot_taint(store, slot);
		store->n_tainted++;
	}
	ready_fence_end(store, slot);
	return slot;
}
