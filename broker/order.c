/*
 * Orders: the records, and the end of a session.
 */
#include "broker/order.h"
#include "broker/broker.h"
#include "broker/slot.h"
#include "broker/timeline_file.h"
#include "proto/point.h"
#include "shm/timeline.h"
#include <assert.h>
#include <stddef.h>

_Static_assert(MESSAGE_MAX_TIMELINES == TIMELINES, "what a decoder lets pass");
_Static_assert(TIMELINE_POISON == INT64_MAX, "what a decoder lets pass");

#define SESSION_LINK offsetof(struct order_record, session_link)

static bool is_reached(const struct broker *broker,
		       const struct order_record *order)
{
	const struct session *session = broker->sessions[order->session];

	return session && timeline_file_has_reached(session, order->timeline,
						    order->value);
}

bool order_is_pending(const struct broker *broker, uint32_t slot)
{
	uint32_t order = catalog_slot(&broker->catalog, slot)->order;

	return order &&
	       !is_reached(broker, catalog_order(&broker->catalog, order));
}

void order_describe(const struct broker *broker, uint32_t slot,
		    struct tensor_order *ret)
{
	const struct catalog *catalog = &broker->catalog;
	const struct order_record *order;

	*ret = (struct tensor_order){0};
	if (!order_is_pending(broker, slot))
		return;
	order = catalog_order(catalog, catalog_slot(catalog, slot)->order);
	ret->session = catalog_session(catalog, order->session)->id;
	ret->timeline = order->timeline;
	ret->value = order->value;
}

void order_end(struct broker *broker, uint32_t slot)
{
	struct catalog *catalog = &broker->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t order = record->order;

	if (!order)
		return;
	catalog_list_remove(
		catalog,
		&catalog_session(catalog,
				 catalog_order(catalog, order)->session)
			 ->orders,
		SECTION_ORDER, SESSION_LINK, order);
	catalog_release(catalog, SECTION_ORDER, order);
	catalog_set(catalog, record->order, 0);
}

void order_set(struct broker *broker, uint32_t slot, uint32_t session,
	       uint32_t timeline, uint64_t value)
{
	struct catalog *catalog = &broker->catalog;
	struct order_record *record;
	uint32_t order;

	order_end(broker, slot);
	order = catalog_alloc(catalog, SECTION_ORDER);
	assert(order > 0); /* there are as many as slots */
	record = catalog_order(catalog, order);
	record->slot = slot;
	record->session = session;
	record->timeline = timeline;
	record->value = value;
	catalog_list_append(catalog, &catalog_session(catalog, session)->orders,
			    SECTION_ORDER, SESSION_LINK, order);
	catalog_set(catalog, catalog_slot(catalog, slot)->order, order);
	point("order.set");
}

void order_copy(struct broker *broker, uint32_t from, uint32_t to)
{
	const struct catalog *catalog = &broker->catalog;
	const struct slot_record *record = catalog_slot(catalog, from);
	const struct order_record *order;

	if (record->flags & SLOT_FLAG_TAINTED)
		slot_taint(broker, to);
	if (!order_is_pending(broker, from))
		return;
	order = catalog_order(catalog, record->order);
	order_set(broker, to, order->session, order->timeline, order->value);
}

void order_end_session(struct broker *broker, uint32_t session)
{
	struct catalog *catalog = &broker->catalog;
	const struct list *orders = &catalog_session(catalog, session)->orders;
	const struct order_record *order;
	uint32_t slot;

	while (orders->first) {
		order = catalog_order(catalog, orders->first);
		slot = order->slot;
		if (!is_reached(broker, order)) {
			slot_taint(broker, slot);
			broker->n_tainted++;
		}
		order_end(broker, slot);
		/* It may be that nothing else has kept its memory. */
		slot_settle(broker, slot);
		point("order.ended");
		catalog_commit(catalog);
	}
}
