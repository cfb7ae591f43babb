/* Tests grants. Their counts have two parts, which must be right over
 * generations of a slot and after deaths. */
#include "tests/unit/broker/broker_fixture.h"
#include <sys/stat.h>

TestSuite(grant, .init = broker_set_up, .timeout = 300);

static int64_t holds(const struct client *client, const struct slot_ref *ref)
{
	uint32_t grant = grant_find(&broker->store,
				    client->session->holdings.index, ref->slot);

	return grant ? grant_holds(&broker->store, grant) : 0;
}

Test(grant, holds_granted_by_the_broker_and_taken_by_the_client_add_up)
{
	struct slot_ref ref = client_put(&alice, "a", 0);

	cr_assert(zero(int, client_get(&bob, "a", &ref)));
	cr_assert(eq(i64, holds(&bob, &ref), 1));
	client_acquire(&bob, &ref);
	cr_assert(eq(i64, holds(&bob, &ref), 2));
	client_release(&bob, &ref);
	client_release(&bob, &ref);
	cr_assert(zero(i64, holds(&bob, &ref)));
	cr_assert(zero(i64, holds(&alice, &ref)));
}

Test(grant, getting_a_name_twice_takes_two_holds)
{
	struct slot_ref ref = client_put(&alice, "a", 0);
	const char *names[] = {"a", "a"};

	cr_assert(zero(
		int,
		client_ask(&bob, &(struct request){.kind = MESSAGE_GET,
						   .get = {.n_names = 2,
							   .names = names}})));
	cr_assert(eq(i64, holds(&bob, &ref), 2));
}

Test(grant, continues_counting_when_the_slot_is_reused)
{
	struct slot_ref first = client_alloc(&alice, 64), second;

	client_publish(&alice, &first, "", 0, 0);
	cr_assert(client_release(&alice, &first));
	collect_pending(&broker->store, &alice.session->holdings);
	cr_assert(eq(int, word_state(broker, &first), SLOT_FREE));
	cr_assert(zero(u32,
		       grant_find(&broker->store, alice.session->holdings.index,
				  first.slot)));
	second = client_alloc(&alice, 64);
	cr_assert(eq(u32, second.slot, first.slot));
	cr_assert(eq(i64, holds(&alice, &second), 1), "delta is still -1");
}

Test(grant, of_an_earlier_generation_does_not_keep_the_slot)
{
	struct slot_ref old = client_put(&alice, "a", 0), new;

	cr_assert(zero(int, client_get(&bob, "a", &old)));
	client_release(&bob, &old);
	client_remove(&alice, "a");
	new = client_put(&alice, "b", 0);
	cr_assert(eq(u32, new.slot, old.slot));
	/* Bob takes holds in his own file that he was not granted. */
	refs_hold(&bob.refs, new.slot);
	refs_hold(&bob.refs, new.slot);
	client_remove(&alice, "b");
	cr_assert(eq(int, word_state(broker, &new), SLOT_FREE));
}

Test(grant, a_negative_count_does_not_reduce_the_holds_of_others)
{
	struct slot_ref ref = client_put(&alice, "a", 0);
	struct slot_ref again;

	cr_assert(zero(int, client_get(&alice, "a", &again)));
	cr_assert(zero(int, client_get(&bob, "a", &again)));
	for (int i = 0; i < 5; i++)
		client_release(&bob, &ref);
	client_remove(&alice, "a");
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
}

Test(grant, of_a_session_without_a_file_counts_as_held)
{
	struct slot_ref ref = client_put(&alice, "a", 0);

	cr_assert(zero(int, client_get(&bob, "a", &ref)));
	client_release(&bob, &ref);
	refs_close(&bob.session->holdings.refs);
	client_remove(&alice, "a");
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	client_close(&bob);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(grant, a_session_that_ends_drops_all_its_grants)
{
	char name[16];

	for (int i = 0; i < 300; i++) {
		struct slot_ref ref;

		snprintf(name, sizeof(name), "n/%d", i);
		client_put(&alice, name, 0);
		cr_assert(zero(int, client_get(&bob, name, &ref)));
		cr_assert(zero(int, client_remove(&alice, name)));
	}
	cr_assert(eq(u32, broker->store.catalog.header->limbo.n, 300));
	client_close(&bob);
	client_close(&alice);
	assert_empty(broker, 1000);
}

Test(grant, a_repeated_request_grants_once)
{
	struct slot_ref ref = client_put(&alice, "a", 0);
	const char *name = "a";
	struct request get = {.kind = MESSAGE_GET,
			      .get = {.n_names = 1, .names = &name}};
	struct reply reply;
	int code;

	for (int i = 0; i < 3; i++) {
		client_send(&bob, &get, 7);
		cr_assert(client_recv(&bob, &reply, &code));
		cr_assert(zero(int, code));
		cr_assert(eq(u32, reply.places.places[0].ref.slot, ref.slot));
		reply_deinit(&reply);
	}
	cr_assert(eq(i64, holds(&bob, &ref), 1));
}

/* --- pages of ref-counter files ------------------------------------------ */

#define N_MANY (2 * (int)refs_page_size() / (int)sizeof(struct refs_entry))

/* Bob gets every sixteenth tensor, so that his session ends in one round. */
static void get_many(void)
{
	struct slot_ref ref;
	char name[32];

	for (int i = 0; i < N_MANY; i++) {
		snprintf(name, sizeof(name), "n/%d", i);
		client_put(&alice, name, 0);
		if (i % 16 < 15)
			continue;
		cr_assert(zero(int, client_get(&bob, name, &ref)), "%s",
			  bob.sentence);
		cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	}
}

Test(grant, charges_a_page_of_counters_once_until_the_session_ends)
{
	const uint64_t three = 3 * refs_page_size();

	get_many();
	/* Slot numbers begin with 1, so the last entries are in a third
	 * page. */
	cr_assert(eq(u64, used(broker, 1001, ACCOUNT_REFS), three));
	/* Set the state that a broker finds when it takes over. */
	account_refund(bob.session->holdings.account, ACCOUNT_REFS, three);
	memset(bob.session->holdings.ref_pages, 0,
	       sizeof(bob.session->holdings.ref_pages));
	bob.session->holdings.n_ref_pages = 0;
	grant_adopt_all(&broker->store);
	cr_assert(eq(u64, used(broker, 1001, ACCOUNT_REFS), three));
	client_close(&bob);
	cr_assert(zero(u64, used(broker, 1001, ACCOUNT_REFS)));
}

Test(grant, is_refused_beyond_quota_refs_and_the_error_names_that_key)
{
	struct slot_ref ref = client_put(&alice, "a", 0);

	broker->base.config.quota_refs = refs_page_size() - 1;
	cr_assert(eq(int, client_get(&bob, "a", &ref), -EDQUOT));
	cr_assert(ne(ptr, strstr(bob.sentence, "quota_refs"), NULL), "%s",
		  bob.sentence);
	broker->base.config.quota_refs = refs_page_size();
	cr_assert(zero(int, client_get(&bob, "a", &ref)), "%s", bob.sentence);
}

static int64_t blocks_of(const struct client *client)
{
	struct stat status;

	cr_assert(zero(int, fstat(client->session->holdings.refs.fd, &status)));
	return status.st_blocks;
}

Test(grant, listing_allocates_no_page_of_a_ref_counter_file)
{
	struct request list = {.kind = MESSAGE_LIST,
			       .list = {.prefix = "", .filter = LIST_ALL}};
	struct request clients = {.kind = MESSAGE_CLIENTS};
	struct slot_ref ref = client_put(&alice, "a", 0);
	struct reply reply;
	int64_t before;

	cr_assert(zero(int, client_get(&bob, "a", &ref)));
	before = blocks_of(&bob);
	cr_assert(zero(int, client_call(&alice, &list, &reply)));
	cr_assert(eq(u32, reply.list.n_items, 1));
	cr_expect(eq(u32, reply.list.items[0].n_holders, 1));
	reply_deinit(&reply);
	cr_assert(zero(int, client_ask(&alice, &clients)));
	cr_expect(eq(i64, blocks_of(&bob), before));
	/* The broker sees it once the holder has counted there. */
	client_release(&bob, &ref);
	cr_assert(zero(int, client_call(&alice, &list, &reply)));
	cr_expect(zero(u32, reply.list.items[0].n_holders));
	reply_deinit(&reply);
}
