/*
 * ordered: the producer says that events (order.h) are done.
 *
 * Nothing of it is recorded: what was said once and what was freed meanwhile
 * is passed over, so a request that is sent again does no harm.
 */
#include "broker/broker.h"
#include "broker/order.h"
#include "broker/slot.h"
#include "broker/verbs.h"

int verb_ordered(struct verb_call *call, struct error *err)
{
	const struct ordered_request *request = &call->request->ordered;

	(void)err;
	for (uint32_t i = 0; i < request->n_items; i++) {
		const struct ordered_item *item = &request->items[i];
		uint32_t slot = slot_find(call->broker, &item->ref, NULL);

		if (slot)
			order_end_event(call->broker, slot,
					call->session->index, item->event);
	}
	return VERB_DONE;
}
