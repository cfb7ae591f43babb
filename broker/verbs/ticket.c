/*
 * ticket and redeem: how a tensor without a name travels between processes.
 *
 * A ticket gives no right: who redeems it must be allowed to read. So any
 * holder may make one.
 */
#include "broker/ticket.h"
#include "broker/broker.h"
#include "broker/grant.h"
#include "broker/shared_chunk.h"
#include "broker/slot.h"
#include "broker/verbs.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

int verb_ticket(struct verb_call *call, struct error *err)
{
	const struct ticket_request *request = &call->request->ticket;
	struct broker *broker = call->broker;
	uint32_t session = call->session->index;
	uint32_t slot = slot_find(broker, &request->ref, err);
	uint32_t grant;
	int r;

	if (!slot)
		return -ESTALE;
	grant = grant_find(broker, session, slot);
	if (!grant || grant_holds(broker, grant) <= 0)
		return error_set(err, -EINVAL,
				 "this session does not hold the tensor");
	if (slot_state(broker, slot) == SLOT_WRITING &&
	    catalog_slot(&broker->catalog, slot)->writer != session)
		return error_set(err, -EINVAL,
				 "the tensor is still being written; publish "
				 "it or its bundle first");
	r = shared_chunk_check(broker, slot, err);
	if (r < 0)
		return r;
	r = ticket_make(broker, slot, session_record(call->session)->uid,
			request->n_uses, request->ttl_ms,
			call->reply->ticket.ticket, err);
	if (r < 0)
		return r;
	/* Handing a tensor on is the end of writing it, like publishing. */
	slot_end_writer(broker, slot);
	slot_settle(broker, slot);
	return VERB_DONE;
}

static int find(const struct verb_call *call, uint32_t i, uint32_t *tickets,
		uint32_t *slots, struct error *err)
{
	const struct redeem_request *request = &call->request->redeem;
	const struct catalog *catalog = &call->broker->catalog;
	struct access_class access;
	uint32_t n_uses = 1;
	uint32_t j;

	tickets[i] = ticket_find(call->broker, request->tickets[i]);
	for (j = 0; tickets[i] && j < i; j++)
		n_uses += tickets[j] == tickets[i];
	if (!tickets[i] ||
	    n_uses > catalog_ticket(catalog, tickets[i])->uses_left)
		return error_set(err, -ENOENT,
				 "ticket %u of %u is unknown, used up, or "
				 "expired",
				 i + 1, request->n_tickets);
	slots[i] = catalog_ticket(catalog, tickets[i])->slot;
	access = slot_access(call->broker, slots[i]);
	if (session_may(call->session, &access, ACCESS_READ))
		return 0;
	return error_set(err, -EACCES,
			 "the tensor of ticket %u of %u (uid %u, gid %u, mode "
			 "%04o) is not readable for uid %u",
			 i + 1, request->n_tickets, access.uid, access.gid,
			 access.mode, session_record(call->session)->uid);
}

int verb_redeem(struct verb_call *call, struct error *err)
{
	uint32_t n = call->request->redeem.n_tickets;
	struct broker *broker = call->broker;
	uint32_t *tickets = verb_alloc(call, n * sizeof(*tickets));
	uint32_t *slots = verb_alloc(call, n * sizeof(*slots));
	bool is_granted;
	uint32_t i;
	int r;

	if (!tickets || !slots)
		return error_set(err, -ENOMEM, "no memory for the request");
	for (i = 0; i < n; i++) {
		r = find(call, i, tickets, slots, err);
		if (r < 0)
			return r;
	}
	r = grant_check_room(call->session, n, err);
	if (r < 0)
		return r;
	for (i = 0; i < n; i++) {
		is_granted =
			grant_add(broker, call->session->index, slots[i], 1);
		assert(is_granted); /* there was room */
	}
	verb_fill_places(call, slots, n);
	/* Last: a client that wrote nonsense into its counts may lose the slots
	 * right here. */
	for (i = 0; i < n; i++) {
		ticket_use(broker, tickets[i]);
		slot_settle(broker, slots[i]);
	}
	return VERB_DONE;
}
