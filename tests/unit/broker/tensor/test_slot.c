/* Tests the life of slots: their states, what keeps them, limbo, accounts, and
 * eviction. */
#include "broker/session/recorded_reply.h"
#include "broker/tensor/bundle_commit.h"
#include "broker/tensor/slot_adopt.h"
#include "tests/unit/broker/broker_fixture.h"

static const struct device_uuid host;

TestSuite(slot, .init = broker_set_up, .timeout = 300);

Test(slot, is_written_then_published_then_freed)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_assert(eq(int, word_state(broker, &ref), SLOT_WRITING));
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 128));
	cr_assert(eq(int, client_publish(&alice, &ref, "a", 0, 0), 1));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
	cr_assert(zero(int, client_remove(&alice, "a")));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
	client_close(&alice);
	client_close(&bob);
	assert_empty(broker, 1000);
}

Test(slot, stays_in_limbo_while_a_session_holds_it)
{
	struct slot_ref old = client_put(&alice, "a", 0);
	struct slot_ref new;

	cr_assert(zero(int, client_get(&bob, "a", &new)), "%s", bob.sentence);
	cr_assert(eq(u32, new.slot, old.slot));
	new = client_put(&alice, "a", PUBLISH_REPLACE);
	cr_assert(eq(int, word_state(broker, &old), SLOT_LIMBO));
	cr_assert(eq(int, word_state(broker, &new), SLOT_PUBLISHED));
	cr_assert(client_release(&bob, &old), "a release in limbo rings");
	collect_pending(&broker->store, &bob.session->holdings);
	cr_assert(eq(int, word_state(broker, &old), SLOT_FREE));
}

Test(slot, a_dead_session_has_no_holds)
{
	struct slot_ref ref = client_put(&alice, "a", 0);

	cr_assert(zero(int, client_get(&bob, "a", &ref)));
	client_acquire(&bob, &ref);
	cr_assert(zero(int, client_remove(&alice, "a")));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	client_close(&bob);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
	client_close(&alice);
	assert_empty(broker, 1000);
}

Test(slot, a_tensor_whose_writer_dies_is_freed)
{
	struct slot_ref ref = client_alloc(&alice, 1 << 20);

	client_close(&alice);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
	assert_empty(broker, 1000);
}

Test(slot, a_tensor_whose_writer_releases_it_is_freed)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(slot, the_generation_grows_with_every_use)
{
	struct slot_ref first = client_alloc(&alice, 100);
	struct slot_ref second;

	client_release_n(&alice, &first, 1);
	second = client_alloc(&alice, 100);
	cr_assert(eq(u32, second.slot, first.slot));
	cr_assert(gt(u64, second.generation, first.generation));
	cr_assert(eq(int, client_publish(&alice, &first, "a", 0, 0), -ESTALE));
}

Test(slot, an_anonymous_tensor_is_kept_only_by_its_holds)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_assert(zero(int, (int)client_publish(&alice, &ref, "", 0, 0)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_assert(eq(int, client_publish(&alice, &ref, "late", 0, 0), 1));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
	cr_assert(
		eq(int, client_publish(&alice, &ref, "other", 0, 0), -EINVAL));
}

Test(slot, two_batched_tensors_of_one_name_are_refused)
{
	struct slot_ref a = client_alloc(&alice, 1),
			b = client_alloc(&alice, 1);
	struct publish_item items[] = {{.ref = a, .name = "n"},
				       {.ref = b, .name = "n"}};
	struct request request = {.kind = MESSAGE_PUBLISH,
				  .publish = {2, items}};

	cr_assert(eq(int, client_ask(&alice, &request), -EINVAL));
	items[1] = (struct publish_item){.ref = a, .name = "m"};
	cr_assert(eq(int, client_ask(&alice, &request), -EINVAL));
	cr_assert(eq(int, word_state(broker, &a), SLOT_WRITING));
	cr_assert(zero(u32, index_find(&broker->store, "n")));
}

Test(slot, releasing_more_than_is_held_is_refused)
{
	struct slot_ref ref = client_alloc(&alice, 100);
	struct release_item items[] = {{ref, 1}, {ref, 1}};
	struct request request = {.kind = MESSAGE_RELEASE,
				  .release = {2, items}};

	cr_assert(eq(int, client_ask(&alice, &request), -EINVAL));
	cr_assert(eq(int, client_release_n(&bob, &ref, 1), -EINVAL));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_WRITING));
}

Test(slot, a_view_keeps_the_block)
{
	struct slot_ref base = client_alloc(&alice, 100), view;
	struct alloc_item item = item_of(50);

	item.is_view = true;
	item.base = base;
	item.base_offset = 50;
	cr_assert(zero(int, client_alloc_item(&alice, &item, 0, 0, 0, &view)),
		  "%s", alice.sentence);
	cr_assert(eq(int, word_state(broker, &view), SLOT_LIMBO));
	cr_assert(zero(int, client_release_n(&alice, &base, 1)));
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 128));
	cr_assert(eq(int, client_publish(&alice, &view, "v", 0, 0), 1));
	cr_assert(zero(int, client_remove(&alice, "v")));
	cr_assert(zero(int, client_release_n(&alice, &view, 1)));
	cr_assert(zero(u64, used(broker, 1000, ACCOUNT_BYTES)));
}

Test(slot, a_view_that_exceeds_its_base_is_refused)
{
	struct slot_ref base = client_alloc(&alice, 100), view;
	struct alloc_item item = item_of(50);

	item.is_view = true;
	item.base = base;
	item.base_offset = 51;
	cr_assert(eq(int, client_alloc_item(&alice, &item, 0, 0, 0, &view),
		     -ERANGE));
	item.base_offset = INT64_MAX;
	cr_assert(lt(int, client_alloc_item(&alice, &item, 0, 0, 0, &view), 0));
	item.base_offset = 0;
	cr_assert(eq(int, client_alloc_item(&bob, &item, 0, 0, 0, &view),
		     -EINVAL),
		  "bob does not hold it");
	item = item_of(8);
	item.type.dtype = DTYPE_F32;
	item.is_view = true;
	item.base = base;
	item.base_offset = 2;
	cr_assert(eq(int, client_alloc_item(&alice, &item, 0, 0, 0, &view),
		     -EINVAL),
		  "misaligned");
}

Test(slot, a_request_beyond_the_budget_is_refused_or_waits)
{
	struct alloc_item item = item_of(200);
	struct slot_ref first, second = {0};
	struct client carol;
	struct reply reply;
	int code;

	client_open(&carol, broker, 1002, 256);
	first = client_alloc(&carol, 200);
	cr_assert(eq(int, client_alloc_item(&carol, &item, 0, 0, 0, &second),
		     -EDQUOT));
	client_send(&carol,
		    &(struct request){.kind = MESSAGE_ALLOC,
				      .alloc = {.access = {0, GID_DEFAULT, 0},
						.timeout_ms = -1,
						.n_items = 1,
						.items = &item}},
		    ++carol.number);
	cr_assert(not(client_recv(&carol, &reply, &code)), "it waits");
	cr_assert(eq(u32, carol.session->n_waiting, 1));
	client_send(&carol,
		    &(struct request){
			    .kind = MESSAGE_RELEASE,
			    .release = {1, &(struct release_item){first, 1}}},
		    ++carol.number);
	cr_assert(client_recv(&carol, &reply, &code));
	reply_deinit(&reply);
	while (!client_recv(&carol, &reply, &code))
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(zero(int, code));
	reply_deinit(&reply);
	item = item_of(257);
	cr_assert(eq(int, client_alloc_item(&carol, &item, 0, 0, -1, &second),
		     -EDQUOT),
		  "it could never fit");
}

Test(slot, a_tensor_without_holders_is_evicted_before_memory_is_refused)
{
	struct slot_ref held, loose, pinned, big;
	struct alloc_item item = item_of(UINT64_C(30) << 20);

	broker->base.config.memory_max = UINT64_C(48) << 20;
	cr_assert(
		zero(int, client_alloc_item(&alice, &item, 0644, 0, 0, &loose)),
		"%s", alice.sentence);
	client_publish(&alice, &loose, "loose", PUBLISH_EVICTABLE, 0);
	client_release_n(&alice, &loose, 1);
	held = client_put(&alice, "held", PUBLISH_EVICTABLE);
	pinned = client_put(&alice, "pinned", 0);
	cr_assert(zero(int, client_get(&bob, "held", &held)));
	cr_assert(zero(int, client_alloc_item(&alice, &item, 0644, 0, 0, &big)),
		  "%s", alice.sentence);
	cr_assert(eq(int, word_state(broker, &loose), SLOT_FREE));
	cr_assert(eq(int, word_state(broker, &held), SLOT_PUBLISHED));
	cr_assert(eq(int, word_state(broker, &pinned), SLOT_PUBLISHED));
	cr_assert(eq(u64, broker->store.n_evicted, 1));
}

Test(slot, a_name_ends_when_its_time_to_live_is_over)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_assert(eq(int, client_publish(&alice, &ref, "a", 0, 1), 1));
	client_release_n(&alice, &ref, 1);
	while (word_state(broker, &ref) != SLOT_FREE)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(zero(u32, index_find(&broker->store, "a")));
}

Test(slot, a_tied_name_ends_with_its_session)
{
	struct slot_ref tied = client_put(&alice, "t", PUBLISH_TIED);
	struct slot_ref free_one = client_put(&alice, "f", 0);

	client_close(&alice);
	cr_assert(eq(int, word_state(broker, &tied), SLOT_FREE));
	cr_assert(eq(int, word_state(broker, &free_one), SLOT_PUBLISHED));
}

Test(slot, a_group_of_which_the_caller_is_not_a_member_is_refused)
{
	struct alloc_item item = item_of(1);
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = 4242, .mode = 0660},
			  .n_items = 1,
			  .items = &item},
	};

	cr_assert(eq(int, client_ask(&alice, &request), -EPERM));
}

Test(slot, an_empty_tensor_is_allowed)
{
	struct slot_ref ref = client_alloc(&alice, 0);

	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 64));
	client_release_n(&alice, &ref, 1);
	cr_assert(zero(u64, used(broker, 1000, ACCOUNT_BYTES)));
}

/* --- groups and pins ----------------------------------------------------- */

/* Make a slot that alice holds, and that has no keeper. */
static struct slot_ref client_anonymous(uint64_t size)
{
	struct slot_ref ref = client_alloc(&alice, size);

	cr_assert(zero(int, (int)client_publish(&alice, &ref, "", 0, 0)));
	return ref;
}

static uint32_t n_in_limbo(void)
{
	return broker->store.catalog.header->limbo.n;
}

Test(slot, a_pin_keeps_a_slot_without_holders)
{
	struct slot_ref ref = client_anonymous(100);

	slot_pin(&broker->store, ref.slot);
	slot_pin(&broker->store, ref.slot);
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_assert(zero(u32, n_in_limbo()), "limbo is what nothing keeps");
	cr_assert(not(slot_unpin(&broker->store, ref.slot)));
	cr_assert(zero(u32, collect_all(&broker->store)));
	cr_assert(slot_unpin(&broker->store, ref.slot));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
	client_close(&alice);
	assert_empty(broker, 1000);
}

Test(slot, a_slot_that_is_held_outlives_its_pin)
{
	struct slot_ref ref = client_anonymous(100);

	slot_pin(&broker->store, ref.slot);
	cr_assert(not(slot_unpin(&broker->store, ref.slot)));
	cr_assert(eq(u32, n_in_limbo(), 1));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(slot, the_death_of_a_client_does_not_free_a_pinned_slot)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	slot_pin(&broker->store, ref.slot);
	client_close(&alice);
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 128));
	cr_assert(slot_unpin(&broker->store, ref.slot));
	assert_empty(broker, 1000);
}

Test(slot, a_pinned_slot_is_not_evicted_and_outlives_its_name)
{
	struct slot_ref ref = client_put(&alice, "a", PUBLISH_EVICTABLE);

	slot_pin(&broker->store, ref.slot);
	cr_assert(eq(int, evict(&broker->store, 1, &host, NULL), EVICT_NONE));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
	cr_assert(zero(int, client_remove(&alice, "a")));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_assert(slot_unpin(&broker->store, ref.slot));
}

Test(slot, a_group_keeps_a_slot_until_the_group_releases_it)
{
	struct slot_ref ref = client_anonymous(100);

	slot_set_group(&broker->store, ref.slot, 7);
	slot_update_state(&broker->store, ref.slot);
	client_close(&alice);
	cr_assert(zero(u32, collect_all(&broker->store)));
	cr_assert(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	slot_set_group(&broker->store, ref.slot, 0);
	cr_assert(slot_update_state(&broker->store, ref.slot));
	assert_empty(broker, 1000);
}

/* Pins end with the broker's process, unless the next broker makes them again.
 * Groups outlive it. */
Test(slot, adoption_keeps_slots_of_groups_and_frees_slots_that_were_pinned)
{
	struct slot_ref pinned_anew = client_anonymous(64);
	struct slot_ref grouped = client_anonymous(64);
	struct slot_ref pinned = client_anonymous(64);
	struct error err = ERROR_NULL;

	slot_set_group(&broker->store, grouped.slot, 7);
	slot_pin(&broker->store, grouped.slot);
	slot_pin(&broker->store, pinned.slot);
	slot_pin(&broker->store, pinned_anew.slot);
	client_close(&alice);
	client_close(&bob);
	cr_assert(eq(int, word_state(broker, &pinned), SLOT_LIMBO));
	accounts_deinit(&broker->base.accounts);
	accounts_init(&broker->base.accounts, &broker->base.config);
	broker->store.limbo = (struct limbo){0};
	slot_forget_pins(&broker->store);
	slot_pin(&broker->store, pinned_anew.slot);
	must(slot_adopt_all(&broker->store, &err), &err);
	cr_assert(eq(int, word_state(broker, &pinned), SLOT_FREE));
	cr_assert(slot_unpin(&broker->store, pinned_anew.slot));
	cr_assert(eq(int, word_state(broker, &grouped), SLOT_LIMBO));
	slot_set_group(&broker->store, grouped.slot, 0);
	cr_assert(slot_update_state(&broker->store, grouped.slot));
	assert_empty(broker, 1000);
}

/* A new broker must derive the same state from the catalog. */
Test(slot, adoption_repeats_charges_and_updates_states)
{
	struct slot_ref kept = client_put(&alice, "kept", PUBLISH_EVICTABLE);
	struct slot_ref lost = client_alloc(&alice, 64);
	struct error err = ERROR_NULL;

	/* The state is that after a transaction was undone: the word has
	 * changed, but the record has not. */
	table_store(&broker->store.table, kept.slot,
		    table_word(kept.generation, SLOT_FREE));
	accounts_deinit(&broker->base.accounts);
	accounts_init(&broker->base.accounts, &broker->base.config);
	alice.session->holdings.account =
		accounts_get(&broker->base.accounts, 1000);
	account_charge_adopted(alice.session->holdings.account,
			       ACCOUNT_SESSIONS, 1);
	account_charge_adopted(alice.session->holdings.account, ACCOUNT_GRANTS,
			       session_record(alice.session)->grants.n);
	account_charge_adopted(alice.session->holdings.account, ACCOUNT_REFS,
			       alice.session->holdings.n_ref_pages *
				       refs_page_size());
	recorded_reply_adopt(alice.session);
	broker->store.limbo = (struct limbo){0};
	evictable_deinit(&broker->store);
	alice.session->holdings.n_bytes = 0;
	must(slot_adopt_all(&broker->store, &err), &err);
	cr_assert(eq(int, word_state(broker, &kept), SLOT_PUBLISHED));
	cr_assert(eq(int, word_state(broker, &lost), SLOT_WRITING));
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_SLOTS), 2));
	cr_assert(eq(u64, used(broker, 1000, ACCOUNT_BYTES), 192));
	cr_assert(eq(u64, alice.session->holdings.n_bytes, 192));
	cr_assert(eq(u32, broker->store.evictables.all[0].n, 1));
	client_close(&alice);
	cr_assert(eq(int, word_state(broker, &lost), SLOT_FREE));
}

/* --- undo ---------------------------------------------------------------- */

#define RECORDS_AT ((64 << 10) + (8 << 20)) /* after header and journal */

struct snapshot {
	struct catalog_header header;
	uint64_t size[64], offset[64];
	uint8_t *bytes[64];
	int n;
};

/* Copy all records and blobs in use. */
static void take(struct snapshot *snapshot)
{
	int fd = broker->store.catalog.fd;
	off_t end = (off_t)broker->store.catalog.header->blob_top;
	off_t from = RECORDS_AT, to;

	*snapshot = (struct snapshot){.header = *broker->store.catalog.header};
	while ((from = lseek(fd, from, SEEK_DATA)) >= 0 && from < end) {
		int i = snapshot->n++;

		cr_assert(lt(int, i, 64));
		to = lseek(fd, from, SEEK_HOLE);
		to = to < end ? to : end;
		snapshot->offset[i] = (uint64_t)from;
		snapshot->size[i] = (uint64_t)(to - from);
		snapshot->bytes[i] = malloc(snapshot->size[i]);
		memcpy(snapshot->bytes[i], broker->store.catalog.base + from,
		       snapshot->size[i]);
		from = to;
	}
}

/* Compare the catalog with the snapshot, which is freed. */
static void assert_same(struct snapshot *snapshot)
{
	size_t from = offsetof(struct catalog_header, epoch);

	cr_assert(
		zero(int, memcmp((uint8_t *)broker->store.catalog.header + from,
				 (uint8_t *)&snapshot->header + from,
				 sizeof(snapshot->header) - from)));
	for (int i = 0; i < snapshot->n; i++) {
		uint8_t *now = broker->store.catalog.base + snapshot->offset[i];

		cr_assert(zero(int, memcmp(snapshot->bytes[i], now,
					   snapshot->size[i])));
		free(snapshot->bytes[i]);
	}
}

/* If the broker is killed at this point, nothing may be left of the
 * transaction. */
Test(slot, an_unfinished_transaction_leaves_no_trace)
{
	struct bundle_begin_request request = {
		.name = "m/",
		.access = {.gid = 1000},
	};
	struct slot_ref gone = client_put(&alice, "gone", 0);
	struct slot_ref held = client_put(&alice, "held", PUBLISH_TIED);
	struct slot_ref limbo = client_put(&alice, "limbo", 0);
	struct slot_ref writing = client_alloc(&alice, 100);
	struct error err = ERROR_NULL;
	struct catalog adopted;
	struct snapshot before;
	uint8_t ticket[TICKET_SIZE];
	uint64_t id;

	cr_assert(zero(int, client_get(&bob, "gone", &gone)));
	client_release(&bob, &gone);
	cr_assert(zero(int, client_get(&bob, "held", &held)));
	cr_assert(zero(int, client_get(&bob, "limbo", &limbo)));
	client_remove(&alice, "limbo");
	take(&before);
	slot_end_name(&broker->store, gone.slot);
	cr_assert(slot_update_state(&broker->store, gone.slot));
	slot_end_name(&broker->store, held.slot);
	cr_assert(not(slot_update_state(&broker->store, held.slot)));
	cr_assert(grant_add(&broker->store, alice.session->holdings.index,
			    limbo.slot, 1));
	grant_drop(&broker->store,
		   grant_find(&broker->store, bob.session->holdings.index,
			      limbo.slot));
	must(bundle_begin(&broker->store, &alice.session->holdings, &request,
			  &id, &err),
	     &err);
	must(ticket_make(&broker->store, limbo.slot,
			 (struct ticket_maker){1000, 1}, 1, 60000, ticket,
			 &err),
	     &err);
	must(prefix_claim(&broker->store, "fresh", 1000, &err), &err);
	slot_set_name(
		&broker->store, writing.slot, "fresh/a",
		slot_reserve_name(&broker->store, writing.slot, "fresh/a"));
	slot_end_writer(&broker->store, writing.slot);
	slot_update_state(&broker->store, writing.slot);
	must(catalog_adopt(&adopted,
			   fcntl(broker->store.catalog.fd, F_DUPFD_CLOEXEC, 3),
			   &err),
	     &err);
	assert_same(&before);
	catalog_close(&adopted);
}
