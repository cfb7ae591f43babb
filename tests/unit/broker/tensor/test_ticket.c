/* Tests what tickets keep, for how long, and which clients can redeem them. */
#include "tests/unit/broker/broker_fixture.h"

TestSuite(ticket, .init = broker_set_up, .timeout = 300);

static int make(struct client *client, const struct slot_ref *ref,
		uint32_t n_uses, uint64_t ttl_ms, uint8_t ret[TICKET_SIZE])
{
	struct request request = {.kind = MESSAGE_TICKET,
				  .ticket = {*ref, n_uses, ttl_ms}};
	struct reply reply;
	int r = client_call(client, &request, &reply);

	if (r == 0)
		memcpy(ret, reply.ticket.ticket, TICKET_SIZE);
	reply_deinit(&reply);
	return r;
}

static int redeem(struct client *client, const uint8_t id[TICKET_SIZE],
		  uint32_t n)
{
	uint8_t ids[4][TICKET_SIZE];

	for (uint32_t i = 0; i < n; i++)
		memcpy(ids[i], id, TICKET_SIZE);
	return client_ask(client, &(struct request){.kind = MESSAGE_REDEEM,
						    .redeem = {n, ids}});
}

Test(ticket, carries_a_tensor_to_another_session)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	uint8_t id[TICKET_SIZE];

	cr_assert(zero(int, make(&alice, &ref, 1, 60000, id)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	client_close(&alice);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO),
		  "the ticket keeps it");
	cr_assert(zero(int, redeem(&bob, id, 1)));
	cr_assert(eq(int, redeem(&bob, id, 1), -ENOENT), "it is used up");
	cr_assert(client_release(&bob, &ref));
	collect_pending(&broker->store, &bob.session->holdings);
	client_close(&bob);
	assert_empty(broker, 1000);
}

Test(ticket, is_good_for_its_number_of_uses)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	uint8_t id[TICKET_SIZE];

	cr_assert(zero(int, make(&alice, &ref, 3, 60000, id)));
	cr_assert(eq(int, redeem(&bob, id, 4), -ENOENT));
	cr_assert(zero(int, redeem(&bob, id, 2)));
	cr_assert(zero(int, redeem(&alice, id, 1)));
	cr_assert(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_TICKET)));
}

Test(ticket, gives_no_right_to_read)
{
	struct alloc_item item = item_of(8);
	uint8_t id[TICKET_SIZE] = {0};
	struct slot_ref ref;

	cr_assert(
		zero(int, client_alloc_item(&alice, &item, 0600, 0, 0, &ref)));
	cr_assert(zero(int, make(&alice, &ref, 1, 60000, id)));
	cr_assert(eq(int, redeem(&bob, id, 1), -EACCES));
	cr_assert(zero(int, redeem(&alice, id, 1)), "no use was lost");
}

Test(ticket, releases_its_tensor_when_it_expires)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	uint8_t id[TICKET_SIZE];

	cr_assert(zero(int, make(&alice, &ref, 1, 1, id)));
	client_release_n(&alice, &ref, 1);
	while (word_state(broker, &ref) != SLOT_FREE)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(zero(u32, ticket_find(&broker->store, id)));
	cr_assert(zero(u64, used(broker, 1000, ACCOUNT_SLOTS)));
}

Test(ticket, can_only_be_made_by_a_holder)
{
	struct slot_ref ref = client_put(&alice, "a", 0);
	uint8_t id[TICKET_SIZE];

	cr_assert(eq(int, make(&bob, &ref, 1, 1000, id), -EINVAL));
	cr_assert(zero(int, client_get(&bob, "a", &ref)));
	cr_assert(zero(int, make(&bob, &ref, 1, 1000, id)));
	cr_assert(eq(u64, used(broker, 1001, ACCOUNT_TICKETS), 1));
}

Test(ticket, out_of_range_is_refused)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	struct error err = ERROR_NULL;
	uint8_t id[TICKET_SIZE];

	cr_assert(
		eq(int,
		   ticket_make(&broker->store, ref.slot,
			       (struct ticket_maker){1000, 1}, 0, 1, id, &err),
		   -EINVAL));
	cr_assert(eq(int,
		     ticket_make(&broker->store, ref.slot,
				 (struct ticket_maker){1000, 1},
				 TICKET_MAX_USES + 1, 1, id, &err),
		     -EINVAL));
	cr_assert(eq(int,
		     ticket_make(&broker->store, ref.slot,
				 (struct ticket_maker){1000, 1}, 1,
				 TICKET_MAX_TTL_MS + 1, id, &err),
		     -EINVAL));
	cr_assert(zero(u32, ticket_find(&broker->store, id)));
}

Test(ticket, survives_a_restart_with_its_deadline)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	struct error err = ERROR_NULL;
	uint8_t id[TICKET_SIZE] = {0};

	cr_assert(zero(int, make(&alice, &ref, 1, 60000, id)));
	deadlines_stop(&broker->base.deadlines);
	uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	must(deadlines_init(&broker->base.deadlines, &broker->base.loop.uv,
			    NULL, &err),
	     &err);
	must(ticket_adopt_all(&broker->store, &err), &err);
	cr_assert(eq(sz, broker->base.deadlines.n, 1));
	cr_assert(zero(int, redeem(&bob, id, 1)));
	cr_assert(zero(sz, broker->base.deadlines.n));
}

/* --- lists and revoking -------------------------------------------------- */

static uint32_t list(struct client *client, struct ticket_item *ret)
{
	struct request request = {.kind = MESSAGE_TICKETS};
	struct reply reply;
	uint32_t n;

	cr_assert(zero(int, client_call(client, &request, &reply)));
	n = reply.tickets.n_items;
	if (n)
		*ret = reply.tickets.items[n - 1];
	cr_assert(zero(u64, reply.tickets.next_cursor));
	reply_deinit(&reply);
	return n;
}

static int take_back(struct client *client, const uint8_t id[TICKET_SIZE])
{
	return client_ask(client,
			  &(struct request){.kind = MESSAGE_REVOKE,
					    .revoke = {ticket_shown(id)}});
}

Test(ticket, that_is_valid_is_listed_for_the_user_that_made_it)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	struct ticket_item item;
	uint8_t id[TICKET_SIZE];
	struct client root;

	client_open(&root, broker, 0, 0);
	cr_assert(zero(u32, list(&alice, &item)));
	cr_assert(zero(int, make(&alice, &ref, 3, 60000, id)));
	cr_assert(zero(u32, list(&bob, &item)));
	cr_assert(eq(u32, list(&root, &item), 1));
	cr_assert(eq(u32, list(&alice, &item), 1));
	cr_assert(eq(u64, item.id, ticket_shown(id)));
	cr_assert(eq(u32, item.ref.slot, ref.slot));
	cr_assert(eq(u64, item.ref.generation, ref.generation));
	cr_assert(eq(u64, item.block_bytes, 128));
	cr_assert(eq(u32, item.uid, 1000));
	cr_assert(eq(u32, item.pid, session_record(alice.session)->pid));
	cr_assert(eq(u32, item.uses_left, 3));
	cr_assert(le(u64, item.ttl_left_ms, 60000));
}

Test(ticket, is_revoked_only_by_the_user_that_made_it_and_by_root)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	uint8_t id[2][TICKET_SIZE];
	struct client root;

	client_open(&root, broker, 0, 0);
	cr_assert(zero(int, make(&alice, &ref, 1, 60000, id[0])));
	cr_assert(zero(int, make(&alice, &ref, 1, 60000, id[1])));
	cr_assert(eq(int, take_back(&bob, id[0]), -EPERM));
	cr_assert(zero(int, take_back(&alice, id[0])));
	cr_assert(eq(int, take_back(&alice, id[0]), -ENOENT));
	cr_assert(eq(int, redeem(&alice, id[0], 1), -ENOENT));
	cr_assert(zero(int, take_back(&root, id[1])));
	cr_assert(zero(u64, used(broker, 1000, ACCOUNT_TICKETS)));
}

/* The memory that an abandoned ticket kept is returned at once. */
Test(ticket, that_is_revoked_keeps_no_memory)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	uint8_t id[TICKET_SIZE];

	cr_assert(zero(int, make(&alice, &ref, 1, 60000, id)));
	client_close(&alice);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	client_open(&alice, broker, 1000, 0);
	cr_assert(zero(int, take_back(&alice, id)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
	cr_assert(zero(u64, used(broker, 1000, ACCOUNT_BYTES)));
}
