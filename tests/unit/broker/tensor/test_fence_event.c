/*
 * Tests ready fences by events: the broker keeps a handle that it cannot check,
 * until the producer reports that the event is done.
 */
#include "broker/tensor/ready_fence.h"
#include "cuda/handle.h"
#include "tests/unit/broker/tensor/fence_fixture.h"

TestSuite(fence_event, .init = fence_set_up, .fini = gpu_close, .timeout = 300);

static struct slot_ref make(void)
{
	struct slot_ref ref;

	cr_assert(zero(int, client_alloc_on(&alice, &gpu, 100, 0, &ref)));
	return ref;
}

static struct handle event(uint64_t number)
{
	struct handle handle = {
		.version = HANDLE_VERSION,
		.kind = HANDLE_EVENT,
		.origin = 77,
		.generation = number,
	};

	memset(&handle.event, (int)number, sizeof(handle.event));
	return handle;
}

/* Returns the code. */
static int publish_handle(struct client *client, const struct slot_ref *ref,
			  const char *name, const struct handle *handle)
{
	struct publish_item item = {.ref = *ref,
				    .name = name,
				    .flags = *name ? PUBLISH_REPLACE : 0,
				    .event = (const uint8_t *)handle};

	return client_ask(client, &(struct request){.kind = MESSAGE_PUBLISH,
						    .publish = {1, &item}});
}

static int publish(struct client *client, const struct slot_ref *ref,
		   const char *name, uint64_t number)
{
	const struct handle handle = event(number);

	return publish_handle(client, ref, name, &handle);
}

static int say_done(struct client *client, const struct slot_ref *ref,
		    uint64_t number)
{
	struct ordered_item item = {*ref, number};

	return client_ask(client, &(struct request){.kind = MESSAGE_ORDERED,
						    .ordered = {1, &item}});
}

/* Request the ready fence. Returns the code and, in `ret_number`, the number of
 * the event. */
static int ask(struct client *client, const struct slot_ref *ref,
	       uint64_t *ret_number)
{
	const struct request request = {
		.kind = MESSAGE_TIMELINES,
		.timelines = {.session = client_session_id(&alice),
			      .ref = *ref},
	};
	struct handle handle;
	struct reply reply;
	int r = client_call(client, &request, &reply);

	if (r == 0) {
		cr_assert(reply.timelines.has_event);
		memcpy(&handle, reply.timelines.event, sizeof(handle));
		*ret_number = handle.generation;
	}
	reply_deinit(&reply);
	return r;
}

static struct slot_ref view(struct client *client, const struct slot_ref *base)
{
	struct alloc_item item = item_of(10);
	struct slot_ref ref;

	item.is_view = true;
	item.base = *base;
	cr_assert(zero(int, client_alloc_item(client, &item, 0, 0, 0, &ref)),
		  "%s", client->sentence);
	return ref;
}

static uint32_t n_fences(void)
{
	return catalog_n_live(&broker->store.catalog, SECTION_READY_FENCE);
}

Test(fence_event, a_holder_is_told_which_event_to_wait_for)
{
	struct slot_ref ref = make();
	struct tensor_place place;
	uint64_t number = 0;

	cr_assert(zero(int, publish(&alice, &ref, "a", 7)), "%s",
		  alice.sentence);
	cr_expect(eq(int, ask(&bob, &ref, &number), -EINVAL),
		  "not before it holds it");
	place = client_get_place(&bob, "a");
	cr_expect(eq(u64, place.fence.session, client_session_id(&alice)));
	cr_expect(zero(u32, place.fence.timeline));
	cr_expect(eq(u64, place.fence.value, 7));
	cr_assert(zero(int, ask(&bob, &ref, &number)), "%s", bob.sentence);
	cr_expect(eq(u64, number, 7));
}

Test(fence_event, an_event_reported_complete_ends_the_fence)
{
	struct slot_ref ref = make();
	uint64_t number;

	cr_assert(zero(int, publish(&alice, &ref, "a", 7)));
	(void)client_get_place(&bob, "a");
	cr_assert(zero(int, say_done(&alice, &ref, 7)), "%s", alice.sentence);
	cr_expect(zero(u64, client_get_place(&bob, "a").fence.session));
	cr_expect(eq(int, ask(&bob, &ref, &number), -ESRCH));
	cr_expect(zero(u32, n_fences()));
	cr_expect(zero(int, say_done(&alice, &ref, 7)), "once more");
}

Test(fence_event, memory_that_is_still_written_is_not_reused)
{
	struct slot_ref ref = make();

	cr_assert(zero(int, publish(&alice, &ref, "", 7)));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_assert(zero(int, say_done(&alice, &ref, 7)));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	cr_expect(zero(int, say_done(&alice, &ref, 7)), "it is gone");
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_DEVICE_BYTES)));
}

Test(fence_event, only_a_report_of_the_producer_for_that_event_completes_it)
{
	struct slot_ref ref = make(), stale = ref;

	stale.generation++;
	cr_assert(zero(int, publish(&alice, &ref, "a", 7)));
	cr_expect(zero(int, say_done(&alice, &ref, 6)));
	cr_expect(zero(int, say_done(&alice, &stale, 7)));
	cr_expect(zero(int, say_done(&carol, &ref, 7)));
	cr_expect(ready_fence_is_pending(&broker->store, ref.slot));
	cr_expect(eq(u32, n_fences(), 1));
}

Test(fence_event, a_later_event_replaces_an_earlier_one)
{
	struct slot_ref ref = make();
	uint64_t number = 0;

	cr_assert(zero(int, publish(&alice, &ref, "", 7)));
	cr_assert(zero(int, publish(&alice, &ref, "a", 8)));
	cr_expect(eq(u32, n_fences(), 1));
	cr_expect(eq(u32, session_record(alice.session)->fences.n, 1));
	(void)client_get_place(&bob, "a");
	cr_assert(zero(int, ask(&bob, &ref, &number)));
	cr_expect(eq(u64, number, 8));
	cr_assert(zero(int, say_done(&alice, &ref, 7)));
	cr_expect(ready_fence_is_pending(&broker->store, ref.slot));
	cr_assert(zero(int, say_done(&alice, &ref, 8)));
	cr_expect(not(ready_fence_is_pending(&broker->store, ref.slot)));
}

Test(fence_event, a_timeline_replaces_an_event)
{
	struct slot_ref ref = make(), early;

	cr_assert(zero(int, publish(&alice, &ref, "", 7)));
	early = view(&alice, &ref);
	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	cr_assert(zero(int, client_publish_at(&alice, &ref, "a", 1, 2)));
	cr_expect(ready_fence_is_pending(&broker->store, early.slot));
	cr_expect(eq(ptr, (void *)ready_fence_event(&broker->store, early.slot),
		     NULL));
	client_reach(&alice, 1, 2);
	cr_expect(not(ready_fence_is_pending(&broker->store, ref.slot)));
	cr_expect(not(ready_fence_is_pending(&broker->store, early.slot)));
}

/* --- views --------------------------------------------------------------- */

Test(fence_event, the_event_of_a_tensor_is_also_that_of_its_views)
{
	struct slot_ref ref = make(), first, second;
	uint64_t number = 0;

	cr_assert(zero(int, publish(&alice, &ref, "a", 7)));
	(void)client_get_place(&bob, "a");
	first = view(&bob, &ref);
	second = view(&bob, &first);
	cr_expect(eq(u32, n_fences(), 3));
	cr_assert(zero(int, ask(&bob, &second, &number)), "%s", bob.sentence);
	cr_expect(eq(u64, number, 7));
	/* The producer does not know the views, so it reports only the event of
	 * the tensor. */
	cr_assert(zero(int, say_done(&alice, &ref, 7)));
	cr_expect(not(ready_fence_is_pending(&broker->store, first.slot)));
	cr_expect(not(ready_fence_is_pending(&broker->store, second.slot)));
	cr_expect(zero(u32, n_fences()));
}

Test(fence_event, views_follow_a_later_event)
{
	struct slot_ref ref = make(), early;
	uint64_t number = 0;

	cr_assert(zero(int, publish(&alice, &ref, "", 7)));
	early = view(&alice, &ref);
	cr_assert(zero(int, publish(&alice, &ref, "a", 8)));
	(void)client_get_place(&bob, "a");
	cr_expect(zero(int, say_done(&alice, &ref, 7)));
	cr_expect(ready_fence_is_pending(&broker->store, early.slot));
	cr_assert(zero(int, ask(&bob, &ref, &number)));
	cr_expect(eq(u64, number, 8));
	cr_assert(zero(int, say_done(&alice, &ref, 8)));
	cr_expect(not(ready_fence_is_pending(&broker->store, early.slot)));
}

Test(fence_event, a_view_that_is_published_has_its_own_event)
{
	struct slot_ref ref = make(), mine;

	cr_assert(zero(int, publish(&alice, &ref, "a", 7)));
	mine = view(&alice, &ref);
	cr_assert(zero(int, publish(&alice, &mine, "b", 8)), "%s",
		  alice.sentence);
	cr_assert(zero(int, say_done(&alice, &ref, 7)));
	cr_expect(not(ready_fence_is_pending(&broker->store, ref.slot)));
	cr_expect(ready_fence_is_pending(&broker->store, mine.slot));
	cr_assert(zero(int, say_done(&alice, &mine, 8)));
	cr_expect(zero(u32, n_fences()));
}

/* --- death --------------------------------------------------------------- */

Test(fence_event, a_writer_that_dies_taints_tensors_it_did_not_report_complete)
{
	struct slot_ref late = make(), done = make(), of_late;

	cr_assert(zero(int, publish(&alice, &done, "done", 1)));
	cr_assert(zero(int, publish(&alice, &late, "late", 2)));
	(void)client_get_place(&bob, "late");
	of_late = view(&bob, &late);
	cr_assert(zero(int, say_done(&alice, &done, 1)));
	client_close(&alice);
	cr_expect(client_get_place(&bob, "late").is_tainted);
	cr_expect(not(client_get_place(&bob, "done").is_tainted));
	cr_expect(table_word_is_tainted(
		table_load(&broker->store.table, of_late.slot)));
	cr_expect(zero(u64, client_get_place(&bob, "late").fence.session));
	cr_expect(zero(u32, n_fences()));
}

/* --- refusals ------------------------------------------------------------ */

Test(fence_event, an_invalid_event_handle_is_refused)
{
	struct slot_ref ref = make();
	struct handle handle = event(7);

	handle.kind = HANDLE_MEMORY;
	cr_expect(eq(int, publish_handle(&alice, &ref, "a", &handle), -EINVAL));
	cr_expect(ne(ptr, strstr(alice.sentence, "event"), NULL), "%s",
		  alice.sentence);
	handle = event(7);
	handle.version++;
	cr_expect(eq(int, publish_handle(&alice, &ref, "a", &handle), -EINVAL));
	handle = event(0);
	cr_expect(eq(int, publish_handle(&alice, &ref, "a", &handle), -EINVAL));
	handle = event(1);
	handle.generation = INT64_MAX;
	cr_expect(eq(int, publish_handle(&alice, &ref, "a", &handle), -EINVAL));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_WRITING));
	cr_expect(zero(u32, n_fences()));
}

Test(fence_event, an_event_for_host_memory_is_refused)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_expect(eq(int, publish(&alice, &ref, "a", 1), -EINVAL));
	cr_expect(ne(ptr, strstr(alice.sentence, "synchronise"), NULL), "%s",
		  alice.sentence);
}

/* If one tensor of a batch is refused, nothing of the batch remains. */
Test(fence_event, a_batch_that_is_refused_leaves_no_handle)
{
	const struct handle handle = event(3);
	struct slot_ref first = make(), second = make();
	struct publish_item items[2] = {
		{.ref = first, .name = "a", .event = (const uint8_t *)&handle},
		{.ref = second,
		 .name = "a/b",
		 .flags = PUBLISH_MUST_EXIST | PUBLISH_REPLACE},
	};
	uint64_t before = catalog_blob_bytes(&broker->store.catalog);

	for (int i = 0; i < 1000; i++)
		cr_assert(
			eq(int,
			   client_ask(&alice,
				      &(struct request){.kind = MESSAGE_PUBLISH,
							.publish = {2, items}}),
			   -ENOENT));
	cr_expect(zero(u32, n_fences()));
	cr_expect(le(u64, catalog_blob_bytes(&broker->store.catalog),
		     before + 65536));
}

/* --- many views ----------------------------------------------------------- */

/* Make as many views as may wait for an event. */
static struct slot_ref make_viewed(void)
{
	struct slot_ref ref = make();
	struct alloc_item items[MESSAGE_MAX_ITEMS];
	struct request request = {.kind = MESSAGE_ALLOC,
				  .alloc = {.access = {.gid = GID_DEFAULT},
					    .n_items = MESSAGE_MAX_ITEMS,
					    .items = items}};

	cr_assert(zero(int, publish(&alice, &ref, "", 7)));
	for (int i = 0; i < MESSAGE_MAX_ITEMS; i++) {
		items[i] = item_of(10);
		items[i].is_view = true;
		items[i].base = ref;
	}
	for (int i = 0; i < FENCE_MAX_COPIES / MESSAGE_MAX_ITEMS; i++)
		cr_assert(zero(int, client_ask(&alice, &request)), "%s",
			  alice.sentence);
	return ref;
}

Test(fence_event, the_views_that_wait_for_it_are_limited)
{
	struct alloc_item item = item_of(10);
	struct slot_ref other;

	item.is_view = true;
	item.base = make_viewed();
	cr_expect(eq(int, client_alloc_item(&alice, &item, 0, 0, 0, &other),
		     -EBUSY));
	cr_assert(zero(int, say_done(&alice, &item.base, 7)));
	cr_expect(zero(int, client_alloc_item(&alice, &item, 0, 0, 0, &other)),
		  "%s", alice.sentence);
}

/* Otherwise the change of all views would overflow the journal. */
Test(fence_event, a_batch_cannot_replace_the_events_of_too_many_views)
{
	struct publish_item items[3] = {
		{.name = ""}, {.name = ""}, {.name = ""}};
	struct request request = {.kind = MESSAGE_PUBLISH,
				  .publish = {3, items}};

	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	for (int i = 0; i < 3; i++) {
		items[i].ref = make_viewed();
		items[i].timeline = 1;
		items[i].value = 5;
	}
	cr_expect(eq(int, client_ask(&alice, &request), -EBUSY));
	cr_expect(eq(u32, n_fences(), 3 * (1 + FENCE_MAX_COPIES)));
	request.publish.n_items = 2;
	cr_expect(zero(int, client_ask(&alice, &request)), "%s",
		  alice.sentence);
}
