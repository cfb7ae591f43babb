/*
 * Tickets: how an unnamed tensor travels between processes.
 */
#include "client/client.h"
#include "client/places.h"
#include <string.h>

int fsdp_ticket_make(struct fsdp_tensor *tensor, uint32_t n_uses,
		     uint64_t ttl_ms, struct fsdp_ticket *ret)
{
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_TICKET,
		.ticket = {.n_uses = n_uses, .ttl_ms = ttl_ms},
	};
	struct answer answer;
	int r;

	r = client_check_tensor(tensor, err);
	if (r < 0)
		return r;
	request.ticket.ref = (struct slot_ref){
		.slot = tensor->slot, .generation = tensor->generation};
	r = client_call(tensor->client, &request, &answer, err);
	if (r < 0)
		return r;
	memcpy(ret->bytes, answer.reply.ticket.ticket, sizeof(ret->bytes));
	answer_deinit(&answer);
	return 0;
}

int fsdp_ticket_redeem(struct fsdp_client *client,
		       const struct fsdp_ticket *tickets, size_t n,
		       struct fsdp_tensor **ret)
{
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = (uint32_t)n,
			   .tickets = (const uint8_t(*)[TICKET_SIZE])tickets},
	};
	struct places_use use = {.n = n};
	struct answer answer;
	struct places_reply *places = &answer.reply.places;
	int r;

	r = client_check(client, err);
	if (r == 0)
		r = client_check_batch(n, err);
	if (r < 0 || n == 0)
		return r;
	r = client_call(client, &request, &answer, err);
	if (r < 0)
		return r;
	places_take_chunks(client, &answer, places->chunks, places->n_chunks,
			   0);
	r = places_adopt_batch(client, places, &use, ret, err);
	answer_deinit(&answer);
	return r;
}
