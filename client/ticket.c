/*
 * Tickets, which pass a tensor without a name to another process.
 */
#include "client/client.h"
#include "client/pages.h"
#include "client/places.h"
#include <endian.h>
#include <errno.h>
#include <string.h>

int fsdp_ticket_make(struct fsdp_tensor *tensor, uint32_t n_uses,
		     uint64_t ttl_ms, struct fsdp_ticket *ret)
{
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_TICKET,
		.ticket = {.n_uses = n_uses, .ttl_ms = ttl_ms},
	};
	struct received received;
	int r;

	r = client_check_tensor(tensor, err);
	if (r < 0)
		return r;
	request.ticket.ref = (struct slot_ref){
		.slot = tensor->slot, .generation = tensor->generation};
	r = client_call(tensor->client, &request, &received, err);
	if (r < 0)
		return r;
	memcpy(ret->bytes, received.reply.ticket.ticket, sizeof(ret->bytes));
	received_deinit(&received);
	return 0;
}

uint64_t fsdp_ticket_id(const struct fsdp_ticket *ticket)
{
	uint64_t id;

	memcpy(&id, ticket->bytes, sizeof(id));
	return be64toh(id);
}

static int show_ticket(const struct ticket_item *item, fsdp_ticket_fn *fn,
		       void *data)
{
	struct fsdp_ticket_entry entry = {
		.struct_size = sizeof(entry),
		.id = item->id,
		.slot = item->ref.slot,
		.generation = item->ref.generation,
		.name = item->name,
		.block_size = item->block_bytes,
		.uid = item->uid,
		.pid = item->pid,
		.uses_left = item->uses_left,
		.age_ms = item->age_ms,
		.ttl_left_ms = item->ttl_left_ms,
	};

	return fn(&entry, data);
}

int fsdp_tickets(struct fsdp_client *client, fsdp_ticket_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_TICKETS};
	struct pages pages = PAGES(client, &request, tickets);
	const struct tickets_reply *page = &pages.received.reply.tickets;

	pages_for_each (&pages, page, item)
		pages.r = show_ticket(item, fn, data);
	return pages.r;
}

int fsdp_ticket_revoke(struct fsdp_client *client, uint64_t id)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_REVOKE,
				  .revoke = {.ticket = id}};

	return client_command(client, &request, err);
}

static int check_nameless(const struct places_reply *places, struct error *err)
{
	for (uint32_t i = 0; i < places->n_places; i++) {
		if (places->places[i].version)
			return error_set(
				err, -EPERM,
				"the tensor of tickets[%u] was "
				"published, so it is read-only; redeem "
				"it by fsdp_ticket_redeem()",
				i);
	}
	return 0;
}

static int redeem(struct fsdp_client *client, const struct fsdp_ticket *tickets,
		  struct places_use use, struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	uint32_t n = (uint32_t)use.n;
	struct request request = {
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = n,
			   .tickets = (const uint8_t(*)[TICKET_SIZE])tickets},
	};
	struct received received;
	struct places_reply *places = &received.reply.places;
	int r;

	r = client_check_batch(client, use.n, err);
	if (r < 0 || n == 0)
		return r;
	r = client_call(client, &request, &received, err);
	if (r < 0)
		return r;
	r = use.is_writable ? check_nameless(places, err) : 0;
	if (r == 0)
		return places_receive(client, &received, &use, ret, err);
	places_give_back(client, places);
	received_deinit(&received);
	return r;
}

int fsdp_ticket_redeem(struct fsdp_client *client,
		       const struct fsdp_ticket *tickets, size_t n,
		       struct fsdp_tensor **ret)
{
	return redeem(client, tickets, (struct places_use){.n = n}, ret);
}

int fsdp_ticket_redeem_mut(struct fsdp_client *client,
			   const struct fsdp_ticket *tickets, size_t n,
			   struct fsdp_tensor **ret)
{
	const struct places_use use = {.n = n, .is_writable = true};

	return redeem(client, tickets, use, ret);
}
