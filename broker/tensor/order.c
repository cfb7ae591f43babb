/*
 * Orders: the records, and the end of a session.
 */
#include "broker/tensor/order.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "broker/tensor/timeline_file.h"
#include "proto/failpoint.h"
#include "shm/timeline.h"
#include <assert.h>
#include <stddef.h>

_Static_assert(MESSAGE_MAX_TIMELINES == TIMELINES, "what a decoder lets pass");
_Static_assert(TIMELINE_POISON == INT64_MAX, "what a decoder lets pass");

#define SESSION_LINK offsetof(struct order_record, session_link)
#define COPY_LINK    offsetof(struct order_record, copy_link)

static bool is_reached(const struct store *store,
		       const struct order_record *order)
{
	const struct holdings *holdings = store->holdings[order->session];

	/* Of an event the producer says when it is done. */
	return holdings && order->timeline &&
	       timeline_file_has_reached(holdings, order->timeline,
					 order->value);
}

bool order_is_pending(const struct store *store, uint32_t slot)
{
	uint32_t order = catalog_slot(&store->catalog, slot)->order;

	return order &&
	       !is_reached(store, catalog_order(&store->catalog, order));
}

void order_describe(const struct store *store, uint32_t slot,
		    struct tensor_order *ret)
{
	const struct catalog *catalog = &store->catalog;
	const struct order_record *order;

	*ret = (struct tensor_order){0};
	if (!order_is_pending(store, slot))
		return;
	order = catalog_order(catalog, catalog_slot(catalog, slot)->order);
	ret->session = catalog_session(catalog, order->session)->id;
	ret->timeline = order->timeline;
	ret->value = order->value;
}

const uint8_t *order_event(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct order_record *order;
	uint32_t index = catalog_slot(catalog, slot)->order;

	if (!index)
		return NULL;
	order = catalog_order(catalog, index);
	if (order->original)
		order = catalog_order(catalog, order->original);
	return order->event ? catalog_blob(catalog, order->event) : NULL;
}

/* --- originals and copies ------------------------------------------------ */

static void detach(struct catalog *catalog, uint32_t copy)
{
	struct order_record *record = catalog_order(catalog, copy);

	if (!record->original)
		return;
	catalog_list_remove(catalog,
			    &catalog_order(catalog, record->original)->copies,
			    SECTION_ORDER, COPY_LINK, copy);
	catalog_set(catalog, record->original, 0);
}

static void detach_copies(struct catalog *catalog, struct order_record *record)
{
	while (record->copies.first)
		detach(catalog, record->copies.first);
}

static void set_handle(struct catalog *catalog, struct order_record *record,
		       uint64_t event)
{
	if (record->event)
		catalog_blob_release(catalog, record->event, ORDER_EVENT_SIZE);
	catalog_set(catalog, record->event, event);
}

/* --- making and ending --------------------------------------------------- */

static void unlink_from_session(struct catalog *catalog, uint32_t order)
{
	struct session_record *session = catalog_session(
		catalog, catalog_order(catalog, order)->session);

	catalog_list_remove(catalog, &session->orders, SECTION_ORDER,
			    SESSION_LINK, order);
}

static void link_to_session(struct catalog *catalog, uint32_t order,
			    uint32_t session)
{
	catalog_set(catalog, catalog_order(catalog, order)->session, session);
	catalog_list_append(catalog, &catalog_session(catalog, session)->orders,
			    SECTION_ORDER, SESSION_LINK, order);
}

void order_end(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t order = record->order;

	if (!order)
		return;
	detach(catalog, order);
	detach_copies(catalog, catalog_order(catalog, order));
	set_handle(catalog, catalog_order(catalog, order), 0);
	unlink_from_session(catalog, order);
	catalog_release(catalog, SECTION_ORDER, order);
	catalog_set(catalog, record->order, 0);
}

/* A new one, without values. */
static uint32_t make(struct store *store, uint32_t slot, uint32_t session)
{
	struct catalog *catalog = &store->catalog;
	uint32_t order = catalog_alloc(catalog, SECTION_ORDER);

	assert(order > 0); /* there are as many as slots */
	catalog_order(catalog, order)->slot = slot;
	link_to_session(catalog, order, session);
	catalog_set(catalog, catalog_slot(catalog, slot)->order, order);
	return order;
}

static void set_values(struct catalog *catalog, uint32_t order,
		       uint32_t session, uint32_t timeline, uint64_t value)
{
	struct order_record *record = catalog_order(catalog, order);

	unlink_from_session(catalog, order);
	link_to_session(catalog, order, session);
	catalog_set(catalog, record->timeline, timeline);
	catalog_set(catalog, record->value, value);
}

/* What views of it wait for changes likewise. Gives the record. */
static struct order_record *set(struct store *store, uint32_t slot,
				uint32_t session, uint32_t timeline,
				uint64_t value)
{
	struct catalog *catalog = &store->catalog;
	uint32_t order = catalog_slot(catalog, slot)->order, copy;
	struct order_record *record;

	if (!order)
		order = make(store, slot, session);
	detach(catalog, order);
	set_values(catalog, order, session, timeline, value);
	record = catalog_order(catalog, order);
	for (copy = record->copies.first; copy;
	     copy = catalog_order(catalog, copy)->copy_link.next)
		set_values(catalog, copy, session, timeline, value);
	return record;
}

void order_set(struct store *store, uint32_t slot, uint32_t session,
	       uint32_t timeline, uint64_t value)
{
	struct catalog *catalog = &store->catalog;
	struct order_record *record =
		set(store, slot, session, timeline, value);

	detach_copies(catalog, record);
	set_handle(catalog, record, 0);
	failpoint("order.set");
}

void order_set_event(struct store *store, uint32_t slot, uint32_t session,
		     uint64_t number, uint64_t event)
{
	set_handle(&store->catalog, set(store, slot, session, 0, number),
		   event);
	failpoint("order.set_event");
}

/* What a copy copies is held, and stays ordered as long as the copy is. */
static void copy_event(struct store *store, uint32_t order, uint32_t to)
{
	struct catalog *catalog = &store->catalog;
	const struct order_record *from = catalog_order(catalog, order);
	uint32_t original = from->original ? from->original : order;
	uint32_t copy;

	(void)set(store, to, from->session, 0, from->value);
	copy = catalog_slot(catalog, to)->order;
	catalog_set(catalog, catalog_order(catalog, copy)->original, original);
	catalog_list_append(catalog, &catalog_order(catalog, original)->copies,
			    SECTION_ORDER, COPY_LINK, copy);
}

void order_copy(struct store *store, uint32_t from, uint32_t to)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, from);
	const struct order_record *order;

	if (record->flags & SLOT_FLAG_TAINTED)
		slot_taint(store, to);
	if (!order_is_pending(store, from))
		return;
	order = catalog_order(catalog, record->order);
	if (order->timeline)
		order_set(store, to, order->session, order->timeline,
			  order->value);
	else
		copy_event(store, record->order, to);
}

uint32_t order_end_event(struct store *store, uint32_t slot, uint32_t session,
			 uint64_t number)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t order = catalog_slot(catalog, slot)->order;
	const struct order_record *record;

	if (!order)
		return 0;
	record = catalog_order(catalog, order);
	if (!record->event || record->session != session ||
	    record->value != number)
		return 0;
	if (record->copies.first)
		slot = catalog_order(catalog, record->copies.first)->slot;
	order_end(store, slot);
	return slot;
}

uint32_t order_end_next(struct store *store, uint32_t session)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t order = catalog_session(catalog, session)->orders.first;
	const struct order_record *record;
	uint32_t slot;

	if (!order)
		return 0;
	record = catalog_order(catalog, order);
	slot = record->slot;
	if (!is_reached(store, record)) {
		slot_taint(store, slot);
		store->n_tainted++;
	}
	order_end(store, slot);
	return slot;
}
