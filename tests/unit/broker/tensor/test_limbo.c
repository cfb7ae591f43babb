/*
 * Tests limbo on devices. Memory that a device still reads or writes is not
 * reused, and the broker stops checking when there is no such memory.
 */
#include "tests/unit/broker/device_fixture.h"

TestSuite(limbo, .init = broker_set_up, .timeout = 300);

/* Run until the broker has freed the tensor at one of its deadlines. The
 * time-out of the test limits this. */
static void run_until_freed(const struct slot_ref *ref)
{
	while (word_state(broker, ref) != SLOT_FREE)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
}

/* Grants are not checked, because they outlive their tensors
 * (broker/tensor/grant.h). */
static void expect_nothing_left(void)
{
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_BYTES)));
	cr_expect(zero(u64, used(broker, 1000, ACCOUNT_SLOTS)));
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_SLOT)));
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_BLOCK)));
	cr_expect(zero(u32, broker->store.catalog.header->limbo.n));
}

/* Make a tensor that only alice holds, and that her device uses until its
 * counter reaches 5. */
static struct slot_ref fenced(void)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_assert(zero(i64, client_publish(&alice, &ref, "", 0, 0)));
	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	client_release_at(&alice, &ref, 1, 5);
	return ref;
}

Test(limbo, a_tensor_that_a_device_reads_is_freed_when_its_fence_is_reached)
{
	struct slot_ref ref = fenced();

	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_expect(eq(u32, broker->store.limbo.n_fenced, 1));
	client_reach(&alice, 1, 4);
	cr_expect(zero(u32, collect_released(&broker->store)));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	client_reach(&alice, 1, 5);
	run_until_freed(&ref);
	expect_nothing_left();
}

Test(limbo, fences_are_not_polled_while_no_tensor_waits)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	cr_expect(zero(u32, broker->store.limbo.fence_position));
	cr_expect(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(zero(u32, broker->store.limbo.fence_position));
	ref = fenced();
	cr_expect(ne(u32, broker->store.limbo.fence_position, 0));
	client_reach(&alice, 1, 5);
	run_until_freed(&ref);
	cr_expect(zero(u32, broker->store.limbo.fence_position));
	cr_expect(zero(u32, broker->store.limbo.n_fenced));
}

Test(limbo, the_polling_interval_grows_until_a_new_tensor_waits)
{
	struct slot_ref ref = fenced(), other;
	uint32_t last = 0;

	cr_expect(eq(u32, broker->store.limbo.fence_ms, 1));
	while (broker->store.limbo.fence_ms < 50) {
		cr_expect(ge(u32, broker->store.limbo.fence_ms, last));
		last = broker->store.limbo.fence_ms;
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	}
	/* The interval grows until a new tensor waits. */
	other = client_alloc(&alice, 100);
	client_release_at(&alice, &other, 1, 5);
	cr_expect(eq(u32, broker->store.limbo.fence_ms, 1));
	client_reach(&alice, 1, 5);
	run_until_freed(&other);
	run_until_freed(&ref);
}

static uint64_t visit_ms(void)
{
	uint32_t position = broker->store.limbo.fence_position;

	cr_assert(ne(u32, position, 0));
	return broker->base.deadlines.heap[position].at_ms;
}

Test(limbo, a_new_tensor_does_not_postpone_the_visit_that_is_planned)
{
	struct slot_ref ref = fenced(), other;
	uint64_t at_ms = visit_ms();

	while (now_ms() < at_ms)
		;
	other = client_alloc(&alice, 100);
	client_release_at(&alice, &other, 1, 5);
	cr_expect(eq(u64, visit_ms(), at_ms));
	client_reach(&alice, 1, 5);
	run_until_freed(&other);
	run_until_freed(&ref);
	expect_nothing_left();
}

Test(limbo, memory_with_a_reached_fence_is_reclaimed_before_the_next_poll)
{
	struct slot_ref ref = fenced();

	client_reach(&alice, 1, 5);
	cr_expect(eq(u32, collect_released(&broker->store), 1));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	expect_nothing_left();
}

Test(limbo, a_fence_of_one_session_keeps_memory_that_others_released)
{
	struct slot_ref ref = client_put(&alice, "a", 0);

	cr_assert(zero(int, client_timelines(&bob, 0, NULL, false)));
	cr_assert(zero(int, client_get(&alice, "a", &ref)));
	cr_assert(zero(int, client_get(&bob, "a", &ref)));
	cr_assert(zero(int, client_remove(&alice, "a")));
	client_release_at(&bob, &ref, 63, 1);
	/* alice still holds the tensor */
	cr_expect(zero(u32, broker->store.limbo.n_fenced));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(eq(u32, broker->store.limbo.n_fenced, 1));
	client_reach(&bob, 63, 1);
	run_until_freed(&ref);
	expect_nothing_left();
}

Test(limbo, fences_of_a_session_end_with_it)
{
	struct slot_ref ref = fenced();

	client_close(&alice);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	cr_expect(zero(u32, broker->store.pools.n_timelines));
	/* The tensor that the deadline would check no longer exists. */
	while (broker->store.limbo.fence_position)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	expect_nothing_left();
}

/* A client may write any fence into its own file. */
Test(limbo, a_fence_of_no_timeline_keeps_memory_until_the_session_ends)
{
	struct slot_ref ref = client_alloc(&alice, 100);

	client_release_at(&alice, &ref, 7, 1); /* alice has no timelines */
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_expect(zero(u32, collect_released(&broker->store)));
	client_close(&alice);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	expect_nothing_left();
}

Test(limbo, a_timeline_number_beyond_the_file_is_taken_modulo_its_size)
{
	struct slot_ref ref = fenced();

	client_reach(&alice, 1, 5);
	cr_expect(eq(u32, collect_released(&broker->store), 1));
	ref = client_alloc(&alice, 100);
	client_release_at(&alice, &ref, UINT16_MAX, UINT64_MAX);
	client_reach(&alice, UINT16_MAX % TIMELINES, TIMELINE_POISON);
	(void)collect_released(&broker->store);
	client_close(&alice);
	expect_nothing_left();
}

Test(limbo, a_tensor_that_a_device_uses_is_not_evicted)
{
	const struct device_uuid host = {{0}};
	struct slot_ref ref = client_put(&alice, "a", PUBLISH_EVICTABLE);

	cr_assert(zero(int, client_timelines(&bob, 0, NULL, false)));
	cr_assert(zero(int, client_get(&bob, "a", &ref)));
	client_release_at(&bob, &ref, 1, 9);
	cr_expect(eq(int, evict(&broker->store, 1, &host, NULL), EVICT_NONE));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
	client_reach(&bob, 1, 9);
	cr_expect(eq(int, evict(&broker->store, 1, &host, NULL), EVICT_SOME));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
}

/* --- eviction ------------------------------------------------------------ */

/* Request memory over the quota, which needs an eviction. */
static struct alloc_item fill_quota(uint64_t size)
{
	broker->base.config.quota_bytes = used(broker, 1000, ACCOUNT_BYTES);
	return item_of(size);
}

Test(limbo, an_eviction_examines_only_evictable_tensors_of_the_user)
{
	struct alloc_item item;
	struct slot_ref held = client_put(&alice, "held", PUBLISH_EVICTABLE);
	struct slot_ref ref;
	char name[16];

	cr_assert(zero(int, client_get(&bob, "held", &held)));
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "a/%d", i);
		client_put(&alice, name, 0);
		snprintf(name, sizeof(name), "b/%d", i);
		client_put(&bob, name, PUBLISH_EVICTABLE);
	}
	item = fill_quota(1);
	cr_expect(eq(int, client_alloc_item(&alice, &item, 0644, 0, 0, &ref),
		     -EDQUOT));
	cr_expect(eq(u64, broker->store.evictables.n_looked, 2),
		  "two turns round the only one of hers");
	cr_assert(zero(int, client_release_n(&bob, &held, 1)));
	cr_expect(zero(int, client_alloc_item(&alice, &item, 0644, 0, 0, &ref)),
		  "%s", alice.sentence);
	cr_expect(eq(int, word_state(broker, &held), SLOT_FREE));
}

/* The search passes 1,999 tensors that bob holds before it finds the one that
 * can be evicted. */
Test(limbo, other_clients_are_served_during_a_long_search_for_an_eviction)
{
	struct request ping = {.kind = MESSAGE_PING};
	struct alloc_item item;
	struct request alloc = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT, .mode = 0644},
			  .n_items = 1,
			  .items = &item}};
	struct reply reply;
	char name[16];
	int code;

	for (int i = 0; i < 2000; i++) {
		struct slot_ref ref;

		snprintf(name, sizeof(name), "a/%d", i);
		client_put(&alice, name, PUBLISH_EVICTABLE);
		if (i < 1999)
			cr_assert(zero(int, client_get(&bob, name, &ref)));
	}
	item = fill_quota(1);
	client_send(&alice, &alloc, ++alice.number);
	cr_expect(not(client_recv(&alice, &reply, &code)));
	cr_expect(zero(int, client_ask(&bob, &ping)));
	while (!client_recv(&alice, &reply, &code))
		loop_step(&broker->base.loop.uv);
	cr_expect(zero(int, code), "%s", alice.sentence);
	reply_deinit(&reply);
	cr_expect(eq(u64, broker->store.n_evicted, 1));
}

static void run_rounds(int n)
{
	for (int i = 0; i < n; i++)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
}

Test(limbo, two_requests_that_find_no_tensor_to_evict_stop_searching)
{
	struct alloc_item item;
	struct request alloc = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT, .mode = 0644},
			  .timeout_ms = -1,
			  .n_items = 1,
			  .items = &item}};
	struct client carol;
	uint64_t n_looked;
	char name[16];

	client_open(&carol, broker, 1000, 0);
	for (int i = 0; i < 600; i++) {
		struct slot_ref ref;

		snprintf(name, sizeof(name), "a/%d", i);
		client_put(&alice, name, PUBLISH_EVICTABLE);
		cr_assert(zero(int, client_get(&bob, name, &ref)));
	}
	item = fill_quota(1);
	client_send(&alice, &alloc, ++alice.number);
	client_send(&carol, &alloc, ++carol.number);
	while (broker->store.evictables.n_looked < 2 * 600 ||
	       uv_is_active((uv_handle_t *)&broker->base.loop.idle))
		run_rounds(1);
	n_looked = broker->store.evictables.n_looked;
	run_rounds(200);
	cr_expect(eq(u64, broker->store.evictables.n_looked, n_looked));
}

/* --- warnings ------------------------------------------------------------ */

Test(limbo, more_than_a_thousand_tensors_in_limbo_cause_one_warning)
{
	struct slot_ref refs[LIMBO_WARN + 1];

	for (int turn = 0; turn < 2; turn++) {
		for (int i = 0; i <= LIMBO_WARN; i++) {
			cr_expect(eq(u32, broker->store.limbo.n_warnings,
				     turn > 0));
			refs[i] = client_put(&alice, "a", 0);
			cr_assert(zero(int, client_get(&bob, "a", &refs[i])));
			cr_assert(zero(int, client_remove(&alice, "a")));
		}
		cr_expect(eq(u32, broker->store.limbo.n_warnings, 1));
		for (int i = 0; i <= LIMBO_WARN; i++)
			cr_assert(
				zero(int, client_release_n(&bob, &refs[i], 1)));
	}
	expect_nothing_left();
}

Test(limbo, a_slot_that_is_collected_twice_is_recorded_once)
{
	struct slot_ref ref = fenced();

	for (int i = 0; i < 1000; i++)
		(void)collect_all(&broker->store);
	cr_expect(eq(u32, broker->store.limbo.n_fenced, 1));
	client_reach(&alice, 1, 5);
	run_until_freed(&ref);
}

Test(limbo, who_lists_the_session_whose_device_still_uses_the_tensor)
{
	struct request request = {.kind = MESSAGE_WHO};
	struct slot_ref ref = fenced();
	struct reply reply;

	request.who = (struct who_request){.name = "", .ref = ref};
	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	cr_assert(eq(u32, reply.who.n_holders, 1));
	cr_expect(zero(i64, reply.who.holders[0].holds));
	cr_expect(eq(u64, reply.who.holders[0].session,
		     session_record(alice.session)->id));
	reply_deinit(&reply);
}

Test(limbo, device_work_that_does_not_end_is_reported_once)
{
	struct slot_ref ref = fenced();
	uint64_t start;

	cr_expect(not(broker->store.limbo.is_slow));
	broker->store.limbo.fenced_ms -= 31000;
	while (!broker->store.limbo.is_slow)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	start = broker->store.limbo.fenced_ms;
	client_reach(&alice, 1, 5);
	run_until_freed(&ref);
	cr_expect(not(broker->store.limbo.is_slow));
	cr_expect(gt(u64, broker->store.limbo.fenced_ms, start));
}

Test(limbo, many_tensors_that_wait_for_fences_are_all_freed)
{
	struct slot_ref refs[300];

	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	for (int i = 0; i < 300; i++) {
		refs[i] = client_alloc(&alice, 64);
		client_release_at(&alice, &refs[i], 1, (uint64_t)i + 1);
	}
	cr_expect(eq(u32, broker->store.limbo.n_fenced, 300));
	client_reach(&alice, 1, 150);
	run_until_freed(&refs[149]);
	cr_expect(eq(int, word_state(broker, &refs[150]), SLOT_LIMBO));
	client_reach(&alice, 1, 300);
	run_until_freed(&refs[299]);
	for (int i = 0; i < 300; i++)
		run_until_freed(&refs[i]);
	expect_nothing_left();
}

#ifdef FSDP_TEST_POINTS
Test(limbo, without_memory_for_an_entry_all_of_limbo_is_polled)
{
	struct slot_ref ref;

	setenv("FSDP_FAIL_AT", "limbo.malloc:1:12", 1);
	ref = fenced();
	cr_expect(zero(u32, broker->store.limbo.n_fenced));
	cr_expect(broker->store.limbo.has_unnoted);
	client_reach(&alice, 1, 5);
	run_until_freed(&ref);
	expect_nothing_left();
}
#endif
