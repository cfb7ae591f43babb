/*
 * ordered: the producer reports that events (ready_fence.h) are complete.
 *
 * The request has no recorded reply: it ignores reports that were made before
 * and slots that were freed in the meantime, so sending it again is harmless.
 */
#include "broker/broker.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/verbs.h"
#include "proto/failpoint.h"

static void end_event(struct verb_call *call, uint32_t slot, uint64_t event)
{
	struct store *store = &call->broker->store;
	uint32_t session = call->session->holdings.index;
	uint32_t ended;

	while ((ended = ready_fence_end_event(store, slot, session, event)) !=
	       0) {
		slot_update_state(store, ended);
		failpoint("ready_fence.event_ended");
		catalog_commit(&store->catalog);
	}
}

int verb_ordered(struct verb_call *call, struct error *err)
{
	const struct ordered_request *request = &call->request->ordered;

	(void)err;
	for (uint32_t i = 0; i < request->n_items; i++) {
		const struct ordered_item *item = &request->items[i];
		uint32_t slot =
			slot_find(&call->broker->store, &item->ref, NULL);

		if (slot)
			end_event(call, slot, item->event);
	}
	return VERB_DONE;
}
