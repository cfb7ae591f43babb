/*
 * release: releases holds by a request, for clients that need to know that the
 * memory is free, or whose tensor is still being written.
 */
#include "broker/broker.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>

/* Check that the session has that many holds, in addition to those that earlier
 * items release. */
static int check_holds(const struct verb_call *call, const uint32_t *slots,
		       uint32_t i, struct error *err)
{
	const struct release_item *items = call->request->release.items;
	uint32_t grant = grant_find(&call->broker->store,
				    call->session->holdings.index, slots[i]);
	int64_t holds = grant ? grant_holds(&call->broker->store, grant) : 0;
	int64_t wanted = items[i].n_holds;
	uint32_t j;

	for (j = 0; j < i; j++) {
		if (slots[j] == slots[i])
			wanted += items[j].n_holds;
	}
	if (grant && wanted <= holds)
		return 0;
	return error_set(err, -EINVAL,
			 "the session holds slot %u %lld times, and cannot "
			 "release it %lld times",
			 slots[i], (long long)holds, (long long)wanted);
}

int verb_release(struct verb_call *call, struct error *err)
{
	const struct release_request *request = &call->request->release;
	uint32_t session = call->session->holdings.index;
	uint32_t *slots = verb_scratch(call, request->n_items * sizeof(*slots));
	uint32_t i;
	int r;

	if (!slots)
		return error_nomem(err, "the request");
	for (i = 0; i < request->n_items; i++) {
		slots[i] = slot_find(&call->broker->store,
				     &request->items[i].ref, err);
		if (!slots[i])
			return -ESTALE;
		r = check_holds(call, slots, i, err);
		if (r < 0)
			return r;
	}
	/* All counts are changed first, so that the state of a slot that occurs
	 * twice is updated when all of its holds are released. */
	for (i = 0; i < request->n_items; i++)
		grant_add(&call->broker->store, session, slots[i],
			  (int32_t)(0 - request->items[i].n_holds));
	for (i = 0; i < request->n_items; i++)
		slot_update_state(&call->broker->store, slots[i]);
	return VERB_DONE;
}
