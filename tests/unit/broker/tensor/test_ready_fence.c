/*
 * Tests ready fences of tensors. Readers are told that a device still writes
 * the memory. The memory is not reused before the device has finished, and it
 * becomes tainted if the writer ends first.
 */
#include "broker/tensor/ready_fence.h"
#include "tests/unit/broker/tensor/fence_fixture.h"

TestSuite(ready_fence, .init = fence_set_up, .fini = gpu_close, .timeout = 300);

static struct slot_ref make(void)
{
	struct slot_ref ref;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &ref)));
	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	return ref;
}

static bool word_is_tainted(const struct slot_ref *ref)
{
	return table_word_is_tainted(
		table_load(&broker->store.table, ref->slot));
}

Test(ready_fence, readers_get_the_fence_until_it_is_reached)
{
	struct slot_ref ref = make();
	struct tensor_place place;

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 3, 7)), "%s",
		  alice.sentence);
	place = client_get_place(&bob, "a");
	cr_expect(eq(u64, place.fence.session, client_session_id(&alice)));
	cr_expect(eq(u32, place.fence.timeline, 3));
	cr_expect(eq(u64, place.fence.value, 7));
	cr_expect(not(place.is_tainted));
	client_reach(&alice, 3, 7);
	place = client_get_place(&bob, "a");
	cr_expect(zero(u64, place.fence.session));
	cr_expect(zero(u64, place.fence.value));
}

Test(ready_fence, memory_that_is_still_written_is_not_reused)
{
	struct slot_ref ref = make();

	cr_assert(zero(int, client_publish_at(&alice, &ref, "", 1, 2)));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_expect(eq(u32, broker->store.limbo.n_fenced, 1));
	client_reach(&alice, 1, 2);
	while (word_state(broker, &ref) != SLOT_FREE)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_expect(zero(u32, catalog_n_live(&broker->store.catalog,
					   SECTION_READY_FENCE)));
}

Test(ready_fence, a_later_fence_replaces_an_earlier_one)
{
	struct slot_ref ref = make();

	cr_assert(zero(int, client_publish_at(&alice, &ref, "", 1, 2)));
	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 3)));
	cr_expect(eq(u64, client_get_place(&bob, "a").fence.value, 3));
	cr_expect(
		eq(u32,
		   catalog_n_live(&broker->store.catalog, SECTION_READY_FENCE),
		   1));
	cr_expect(eq(u32, session_record(alice.session)->fences.n, 1));
}

Test(ready_fence, a_name_published_later_keeps_the_fence)
{
	struct slot_ref ref = make();

	cr_assert(zero(int, client_publish_at(&alice, &ref, "", 1, 2)));
	cr_assert(client_publish(&alice, &ref, "a", 0, 0) > 0);
	cr_expect(eq(u64, client_get_place(&bob, "a").fence.value, 2));
}

Test(ready_fence, a_fence_for_host_memory_is_refused)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	cr_expect(eq(int, client_publish_at(&alice, &ref, "a", 1, 1), -EINVAL));
	cr_expect(ne(ptr, strstr(alice.sentence, "synchronise"), NULL), "%s",
		  alice.sentence);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_WRITING));
}

Test(ready_fence, a_fence_of_a_session_without_timelines_is_refused)
{
	struct slot_ref ref;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &ref)));
	cr_expect(eq(int, client_publish_at(&alice, &ref, "a", 1, 1), -EINVAL));
	cr_expect(ne(ptr, strstr(alice.sentence, "timelines"), NULL), "%s",
		  alice.sentence);
}

Test(ready_fence, a_writer_that_dies_taints_its_unfinished_tensors)
{
	struct slot_ref late = make(), done = make();
	struct tensor_place place;

	cr_assert(zero(int, client_publish_at(&alice, &done, "done", 1, 1)));
	cr_assert(zero(int, client_publish_at(&alice, &late, "late", 1, 2)));
	client_reach(&alice, 1, 1);
	client_close(&alice);
	place = client_get_place(&bob, "late");
	cr_expect(place.is_tainted);
	cr_expect(zero(u64, place.fence.session), "nobody waits for the dead");
	cr_expect(word_is_tainted(&late));
	cr_expect(eq(int, word_state(broker, &late), SLOT_PUBLISHED));
	place = client_get_place(&bob, "done");
	cr_expect(not(place.is_tainted));
	cr_expect(not(word_is_tainted(&done)));
	cr_expect(eq(u64, broker->store.n_tainted, 1));
	cr_expect(zero(u32, catalog_n_live(&broker->store.catalog,
					   SECTION_READY_FENCE)));
}

Test(ready_fence, a_tainted_tensor_is_not_acquired_without_the_broker)
{
	struct slot_ref ref = make();

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	(void)client_get_place(&bob, "a");
	client_close(&alice);
	cr_expect(eq(int,
		     refs_acquire(&bob.refs, &broker->store.table, ref.slot,
				  ref.generation),
		     REFS_STALE));
	/* A tainted tensor is released like any other. */
	cr_assert(zero(int, client_remove(&carol, "a")));
	cr_expect(client_release(&bob, &ref));
	(void)collect_pending(&broker->store, &bob.session->holdings);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES)));
}

Test(ready_fence, the_next_tensor_in_the_slot_is_not_tainted)
{
	struct slot_ref ref = make(), next;

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	client_close(&alice);
	cr_assert(zero(int, client_remove(&carol, "a")));
	next = client_alloc(&bob, 100);
	cr_assert(eq(u32, next.slot, ref.slot));
	cr_expect(not(word_is_tainted(&next)));
}

Test(ready_fence, poisoned_timelines_release_their_waiters)
{
	struct timelines mine = TIMELINES_NULL;
	struct slot_ref ref = make();
	struct error err = ERROR_NULL;

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	must(timelines_open(&mine,
			    fcntl(alice.session->holdings.timelines.fd,
				  F_DUPFD_CLOEXEC, 3),
			    true, &err),
	     &err);
	client_close(&alice);
	cr_expect(timeline_has_reached(timelines_load(&mine, 1), 2));
	timelines_close(&mine);
}

Test(ready_fence, a_view_has_the_fence_and_taint_of_its_original)
{
	struct alloc_item item = item_of(10);
	struct slot_ref ref = make(), early, late;

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	(void)client_get_place(&carol, "a");
	item.is_view = true;
	item.base = ref;
	cr_assert(zero(int, client_alloc_item(&carol, &item, 0, 0, 0, &early)),
		  "%s", carol.sentence);
	cr_expect(ready_fence_is_pending(&broker->store, early.slot));
	client_close(&alice);
	cr_expect(word_is_tainted(&early));
	cr_assert(zero(int, client_alloc_item(&carol, &item, 0, 0, 0, &late)));
	cr_expect(word_is_tainted(&late));
}

Test(ready_fence, the_replies_to_list_and_who_show_the_taint)
{
	struct request list = {.kind = MESSAGE_LIST,
			       .list = {.prefix = "a", .filter = LIST_NAMED}};
	struct request who = {.kind = MESSAGE_WHO, .who = {.name = "a"}};
	struct slot_ref ref = make();
	struct reply reply;

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	client_close(&alice);
	cr_assert(zero(int, client_call(&carol, &list, &reply)));
	cr_assert(eq(u32, reply.list.n_items, 1));
	cr_expect(reply.list.items[0].place.is_tainted);
	cr_expect(zero(int, memcmp(&reply.list.items[0].device, &gpu, 16)));
	cr_expect(eq(u32, reply.list.items[0].state, SLOT_PUBLISHED));
	reply_deinit(&reply);
	cr_assert(zero(int, client_call(&carol, &who, &reply)));
	cr_expect(reply.who.place.is_tainted);
	reply_deinit(&reply);
}

/* --- whose timelines ----------------------------------------------------- */

Test(ready_fence, a_reader_gets_the_timelines_of_a_tensor_that_it_holds)
{
	struct slot_ref ref = make();

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	cr_expect(eq(int,
		     client_timelines(&bob, client_session_id(&alice), &ref,
				      false),
		     -EINVAL),
		  "not before it holds it");
	(void)client_get_place(&bob, "a");
	cr_expect(zero(int, client_timelines(&bob, client_session_id(&alice),
					     &ref, false)),
		  "%s", bob.sentence);
	cr_expect(eq(int,
		     client_timelines(&bob, client_session_id(&carol), &ref,
				      false),
		     -ESRCH),
		  "it is not hers");
}

Test(ready_fence, only_the_same_user_gets_writable_timelines)
{
	struct slot_ref ref = make();

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	(void)client_get_place(&bob, "a");
	(void)client_get_place(&carol, "a");
	cr_expect(eq(
		int,
		client_timelines(&bob, client_session_id(&alice), &ref, true),
		-EACCES));
	cr_expect(zero(int, client_timelines(&carol, client_session_id(&alice),
					     &ref, true)));
}

Test(ready_fence, timelines_of_a_session_that_has_ended_are_refused)
{
	struct slot_ref ref = make();
	uint64_t id = client_session_id(&alice);

	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	(void)client_get_place(&bob, "a");
	client_close(&alice);
	cr_expect(eq(int, client_timelines(&bob, id, &ref, false), -ESRCH));
	cr_expect(ne(ptr, strstr(bob.sentence, "tainted"), NULL), "%s",
		  bob.sentence);
}

/* --- files --------------------------------------------------------------- */

Test(ready_fence, a_session_that_asks_repeatedly_has_one_file_of_timelines)
{
	int fd;

	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	fd = alice.session->holdings.timelines.fd;
	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	cr_expect(eq(int, alice.session->holdings.timelines.fd, fd));
	cr_expect(eq(u32, broker->store.pools.n_timelines, 1));
	cr_expect(eq(u64, used(broker, 1000, ACCOUNT_TIMELINES), 1));
	client_close(&alice);
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_TIMELINES)));
}

Test(ready_fence, the_number_of_files_is_limited_per_user_and_in_total)
{
	broker->base.config.quota_timelines = 1;
	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	cr_expect(eq(int, client_timelines(&carol, 0, NULL, false), -EDQUOT));
	cr_expect(ne(ptr, strstr(carol.sentence, "quota_timelines"), NULL));
	broker->store.pools.n_timelines = TIMELINE_FILES_MAX;
	cr_expect(eq(int, client_timelines(&bob, 0, NULL, false), -ENFILE));
	cr_expect(zero(u64, used(broker, 1001, ACCOUNT_TIMELINES)));
}
