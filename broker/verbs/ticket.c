/*
 * ticket and redeem pass a tensor without a name to another process. tickets
 * and revoke list outstanding tickets and end one.
 *
 * A ticket grants no rights: the process that redeems it must be allowed to
 * read the tensor. So any holder may make a ticket.
 */
#include "broker/tensor/ticket.h"
#include "broker/base/deadline.h"
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/shared_chunk.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/name.h"
#include <errno.h>

int verb_ticket(struct verb_call *call, struct error *err)
{
	const struct ticket_request *request = &call->request->ticket;
	struct broker *broker = call->broker;
	const struct session_record *maker = session_record(call->session);
	uint32_t session = call->session->holdings.index;
	uint32_t slot = slot_find(&broker->store, &request->ref, err);
	uint32_t grant;
	int r;

	if (!slot)
		return -ESTALE;
	grant = grant_find(&broker->store, session, slot);
	if (!grant || grant_holds(&broker->store, grant) <= 0)
		return error_set(err, -EINVAL,
				 "this session does not hold the tensor");
	if (slot_state(&broker->store, slot) == SLOT_WRITING &&
	    catalog_slot(&broker->store.catalog, slot)->writer != session)
		return error_set(err, -EINVAL,
				 "the tensor is still being written; publish "
				 "it or its bundle first");
	r = shared_chunk_check(&broker->store, slot, err);
	if (r < 0)
		return r;
	r = ticket_make(&broker->store, slot,
			(struct ticket_maker){maker->uid, maker->pid},
			request->n_uses, request->ttl_ms,
			call->reply->ticket.ticket, err);
	if (r < 0)
		return r;
	/* Writing ends when a tensor is passed on, as when it is published. */
	slot_end_writer(&broker->store, slot);
	slot_update_state(&broker->store, slot);
	return VERB_DONE;
}

static int find(const struct verb_call *call, uint32_t i, uint32_t *tickets,
		uint32_t *slots, struct error *err)
{
	const struct redeem_request *request = &call->request->redeem;
	const struct catalog *catalog = &call->broker->store.catalog;
	struct access_class access;
	uint32_t n_uses = 1;
	uint32_t j;

	tickets[i] = ticket_find(&call->broker->store, request->tickets[i]);
	for (j = 0; tickets[i] && j < i; j++)
		n_uses += tickets[j] == tickets[i];
	if (!tickets[i] ||
	    n_uses > catalog_ticket(catalog, tickets[i])->uses_left)
		return error_set(err, -ENOENT,
				 "tickets[%u] is unknown, used up, or expired",
				 i);
	slots[i] = catalog_ticket(catalog, tickets[i])->slot;
	access = slot_access(&call->broker->store, slots[i]);
	if (access_is_allowed(&call->session->holdings.credentials, &access,
			      ACCESS_READ))
		return 0;
	return error_set(err, -EACCES,
			 "the tensor of tickets[%u] (uid %u, gid %u, mode "
			 "%04o) is not readable for uid %u",
			 i, access.uid, access.gid, access.mode,
			 session_record(call->session)->uid);
}

int verb_redeem(struct verb_call *call, struct error *err)
{
	uint32_t n = call->request->redeem.n_tickets;
	struct broker *broker = call->broker;
	uint32_t *tickets = verb_scratch(call, n * sizeof(*tickets));
	uint32_t *slots = verb_scratch(call, n * sizeof(*slots));
	uint32_t i;
	int r;

	if (!tickets || !slots)
		return error_nomem(err, "the request");
	for (i = 0; i < n; i++) {
		r = find(call, i, tickets, slots, err);
		if (r < 0)
			return r;
	}
	r = grant_check_room(&call->session->holdings, n, err);
	if (r < 0)
		return r;
	verb_reply_places(call, slots, n);
	/* This comes last, since a client with invalid counts may lose the
	 * slots here. */
	for (i = 0; i < n; i++) {
		ticket_use(&broker->store, tickets[i]);
		slot_update_state(&broker->store, slots[i]);
	}
	return VERB_DONE;
}

/* --- tickets and revoke -------------------------------------------------- */

/* A page of this many tickets fits into a frame, even with names of full
 * length. */
#define PAGE_TICKETS 128
#define MAX_EXAMINED 4096

/* Returns whether the session may see and revoke the ticket: the user who made
 * it and administrators may. */
static bool may_manage(const struct verb_call *call, uint32_t ticket)
{
	uint32_t uid =
		catalog_ticket(&call->broker->store.catalog, ticket)->uid;

	return session_record(call->session)->uid == uid ||
	       session_is_admin(call->session);
}

static void fill_item(const struct broker *broker, uint32_t ticket, char *name,
		      struct ticket_item *ret)
{
	const struct catalog *catalog = &broker->store.catalog;
	const struct ticket_record *record = catalog_ticket(catalog, ticket);
	const struct slot_record *slot = catalog_slot(catalog, record->slot);
	struct block_use use = slot_block_use(&broker->store, record->slot);
	uint64_t now = now_ms();

	slot_describe(&broker->store, record->slot, NULL, name);
	*ret = (struct ticket_item){
		.id = ticket_shown(record->id),
		.ref = {record->slot, slot->generation},
		.name = name,
		.block_bytes = use.size,
		.uid = record->uid,
		.pid = record->pid,
		.uses_left = record->uses_left,
		.age_ms = now - record->born_ms,
		/* one that expires at this moment has not ended yet */
		.ttl_left_ms = record->deadline_ms > now
				       ? record->deadline_ms - now
				       : 1,
	};
}

int verb_tickets(struct verb_call *call, struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	struct tickets_reply *reply = &call->reply->tickets;
	uint64_t ticket = call->request->tickets.cursor;
	uint32_t last = catalog_n_touched(catalog, SECTION_TICKET);
	char *names =
		verb_scratch(call, (size_t)PAGE_TICKETS * (NAME_MAX_SIZE + 1));
	uint32_t n_examined = 0;

	reply->items = verb_scratch(call, PAGE_TICKETS * sizeof(*reply->items));
	if (!reply->items || !names)
		return error_nomem(err, "the tickets");
	for (ticket = ticket ? ticket : 1; ticket <= last; ticket++) {
		if (reply->n_items == PAGE_TICKETS ||
		    n_examined++ == MAX_EXAMINED) {
			reply->next_cursor = ticket;
			break;
		}
		if (!catalog_ticket(catalog, (uint32_t)ticket)->slot ||
		    !may_manage(call, (uint32_t)ticket))
			continue;
		fill_item(call->broker, (uint32_t)ticket,
			  names + (size_t)reply->n_items * (NAME_MAX_SIZE + 1),
			  &reply->items[reply->n_items]);
		reply->n_items++;
	}
	return VERB_DONE;
}

int verb_revoke(struct verb_call *call, struct error *err)
{
	struct broker *broker = call->broker;
	uint64_t shown = call->request->revoke.ticket;
	uint32_t ticket = ticket_find_shown(&broker->store, shown);

	if (!ticket)
		return error_set(err, -ENOENT,
				 "cannot revoke ticket %016llx: it is unknown, "
				 "used up, or expired",
				 (unsigned long long)shown);
	if (!may_manage(call, ticket))
		return error_set(
			err, -EPERM,
			"cannot revoke ticket %016llx: uid %u made "
			"it; that user, root and the admin group can",
			(unsigned long long)shown,
			catalog_ticket(&broker->store.catalog, ticket)->uid);
	ticket_expire(&broker->store, ticket);
	return VERB_DONE;
}
