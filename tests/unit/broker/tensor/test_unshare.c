/*
 * Tests unsharing. The sharer is told when its memory is no longer used and,
 * before that, which processes use it.
 */
#include "tests/unit/broker/tensor/share_fixture.h"

static struct device_uuid gpu;
static struct slot_ref ref; /* the memory that alice shares */

static void share(void)
{
	struct sharing sharing = sharing_of(&gpu, 1, MIB);

	cr_assert(zero(int, client_share(&alice, &sharing, &ref)), "%s",
		  alice.sentence);
}

static void publish(void)
{
	cr_assert(client_publish(&alice, &ref, "x", PUBLISH_REPLACE, 0) > 0,
		  "%s", alice.sentence);
}

static void set_up(void)
{
	gpu_open();
	broker = broker_make();
	gpu = broker_gpu(broker, 0);
	client_open(&alice, broker, 1000, 0);
	client_open(&bob, broker, 1000, 0);
	share();
}

TestSuite(unshare, .init = set_up, .fini = gpu_close, .timeout = 300);

static void get(struct client *client)
{
	struct slot_ref got;

	cr_assert(zero(int, client_get(client, "x", &got)), "%s",
		  client->sentence);
	cr_assert(eq(u32, got.slot, ref.slot));
}

static struct request request_of(int32_t timeout_ms)
{
	return (struct request){
		.kind = MESSAGE_UNSHARE,
		.unshare = {.ref = ref, .timeout_ms = timeout_ms}};
}

/* Returns the code. */
static int take_back(int32_t timeout_ms)
{
	struct request request = request_of(timeout_ms);

	return client_ask(&alice, &request);
}

/* Returns whether the reply to the waiting request has come. */
static bool is_answered(int *ret_code)
{
	struct reply reply;

	if (!client_recv(&alice, &reply, ret_code))
		return false;
	reply_deinit(&reply);
	return true;
}

/* Send a request that waits until the memory is no longer used. */
static void begin_wait(void)
{
	struct request request = request_of(-1);
	int code;

	client_send(&alice, &request, ++alice.number);
	uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(not(is_answered(&code)));
	cr_assert(eq(u32, broker->sessions.waiters.n, 1));
}

static void expect_done(void)
{
	int code = 1;

	while (!is_answered(&code))
		loop_step(&broker->base.loop.uv);
	cr_expect(zero(int, code), "%s", alice.sentence);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	cr_expect(zero(u32, broker->sessions.waiters.n));
}

#define expect_in_the_way(text)                                                \
	do {                                                                   \
		cr_expect(eq(int, take_back(0), -ETIMEDOUT));                  \
		cr_expect(ne(ptr, strstr(alice.sentence, text), NULL), "%s",   \
			  alice.sentence);                                     \
	} while (0)

Test(unshare, a_tensor_without_other_holders_is_freed_at_once)
{
	publish();
	cr_expect(zero(int, take_back(0)), "%s", alice.sentence);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
	cr_expect(zero(u32, index_find(&broker->store, "x")));
	/* Repeating the request changes nothing. */
	cr_expect(zero(int, take_back(0)));
}

Test(unshare, a_tensor_that_was_never_published_is_freed_at_once)
{
	cr_expect(zero(int, take_back(0)), "%s", alice.sentence);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(unshare, only_the_sharer_may_unshare_a_tensor)
{
	struct request request = request_of(0);
	struct slot_ref view;

	publish();
	get(&bob);
	cr_expect(eq(int, client_ask(&bob, &request), -EPERM));
	/* a view was not shared but made */
	cr_assert(zero(int, client_view(&alice, &ref, &view)));
	request.unshare.ref = view;
	cr_expect(eq(int, client_ask(&alice, &request), -EPERM));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_PUBLISHED));
}

Test(unshare, the_error_names_the_process_that_still_holds_the_tensor)
{
	char pid[32];

	snprintf(pid, sizeof(pid), "process %d (", (int)getpid());
	publish();
	get(&bob);
	expect_in_the_way(pid);
	/* From then on no client can get the memory, and alice still has her
	 * hold. */
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_expect(zero(u32, index_find(&broker->store, "x")));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	cr_expect(zero(int, take_back(0)), "%s", alice.sentence);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(unshare, the_last_release_ends_the_wait)
{
	publish();
	get(&bob);
	get(&bob);
	begin_wait();
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	cr_assert(eq(u32, broker->sessions.waiters.n, 1));
	if (client_release(&bob, &ref))
		(void)collect_pending(&broker->store, &bob.session->holdings);
	expect_done();
}

Test(unshare, the_death_of_the_last_holder_ends_the_wait)
{
	publish();
	get(&bob);
	begin_wait();
	client_close(&bob);
	expect_done();
}

Test(unshare, the_wait_ends_at_its_deadline)
{
	publish();
	get(&bob);
	cr_expect(eq(int, take_back(1), -ETIMEDOUT));
	cr_expect(zero(u32, broker->sessions.waiters.n));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	cr_expect(zero(int, take_back(-1)));
}

Test(unshare, other_holds_of_the_sharer_prevent_unsharing)
{
	publish();
	get(&alice);
	expect_in_the_way("still holds it");
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(zero(int, take_back(0)));
}

/* The holds must still be right when the sharer itself releases the tensor
 * after it stopped waiting. */
Test(unshare, a_sharer_may_release_its_hold_after_a_failed_unshare)
{
	publish();
	get(&bob);
	cr_expect(eq(int, take_back(0), -ETIMEDOUT));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	begin_wait();
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	expect_done();
	/* The next tensor in the slot begins without holds. */
	share();
	publish();
	cr_assert(zero(int, client_remove(&alice, "x")));
	cr_assert(zero(int, client_release_n(&alice, &ref, 1)));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
}

Test(unshare, a_view_of_the_tensor_prevents_unsharing)
{
	struct slot_ref view;

	publish();
	get(&bob);
	cr_assert(zero(int, client_view(&bob, &ref, &view)));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	expect_in_the_way("holds a view of it");
	begin_wait();
	cr_assert(zero(int, client_release_n(&bob, &view, 1)));
	expect_done();
}

Test(unshare, a_view_that_is_only_published_is_reported_by_its_name)
{
	struct slot_ref view;

	publish();
	get(&bob);
	cr_assert(zero(int, client_view(&bob, &ref, &view)));
	cr_assert(client_publish(&bob, &view, "y", 0, 0) > 0);
	cr_assert(zero(int, client_release_n(&bob, &view, 1)));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	expect_in_the_way("published as \"y\"");
	begin_wait();
	cr_assert(zero(int, client_remove(&bob, "y")));
	expect_done();
}

Test(unshare, a_valid_ticket_prevents_unsharing)
{
	struct request request = {
		.kind = MESSAGE_TICKET,
		.ticket = {.ref = ref, .n_uses = 1, .ttl_ms = 60000}};
	uint8_t ids[1][TICKET_SIZE];
	struct reply reply;

	cr_assert(zero(int, client_call(&alice, &request, &reply)));
	memcpy(ids[0], reply.ticket.ticket, TICKET_SIZE);
	reply_deinit(&reply);
	expect_in_the_way("it is kept by 1 valid ticket");
	begin_wait();
	request = (struct request){.kind = MESSAGE_REDEEM,
				   .redeem = {1, (const void *)ids}};
	cr_assert(zero(int, client_ask(&bob, &request)));
	cr_assert(eq(u32, broker->sessions.waiters.n, 1));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	expect_done();
}

Test(unshare, a_device_that_reads_the_tensor_prevents_unsharing)
{
	publish();
	get(&bob);
	cr_assert(zero(int, client_timelines(&bob, 0, NULL, false)));
	client_release_at(&bob, &ref, 1, 5);
	expect_in_the_way("its device is still using it");
	begin_wait();
	client_reach(&bob, 1, 5);
	expect_done();
}

/* The end of the view is not the end of the wait, but begins the watch of the
 * device. */
Test(unshare, a_device_and_a_view_both_prevent_unsharing)
{
	struct slot_ref view;

	publish();
	get(&bob);
	cr_assert(zero(int, client_timelines(&bob, 0, NULL, false)));
	cr_assert(zero(int, client_view(&bob, &ref, &view)));
	client_release_at(&bob, &ref, 1, 5);
	begin_wait();
	cr_assert(zero(int, client_release_n(&bob, &view, 1)));
	cr_expect(eq(u32, broker->store.limbo.n_fenced, 1));
	client_reach(&bob, 1, 5);
	expect_done();
}

Test(unshare, a_device_that_writes_the_tensor_prevents_unsharing)
{
	cr_assert(zero(int, client_timelines(&alice, 0, NULL, false)));
	cr_assert(zero(int, client_publish_at(&alice, &ref, "x", 2, 7)));
	expect_in_the_way("finished writing it");
	begin_wait();
	client_reach(&alice, 2, 7);
	expect_done();
}

/* The broker checks a device for this request no more often than for a tensor
 * in limbo. */
Test(unshare, fences_are_polled_at_growing_intervals)
{
	publish();
	get(&bob);
	cr_assert(zero(int, client_timelines(&bob, 0, NULL, false)));
	client_release_at(&bob, &ref, 1, 5);
	begin_wait();
	while (broker->store.limbo.fence_ms < 16)
		loop_step(&broker->base.loop.uv);
	cr_expect(eq(u32, broker->store.limbo.n_fenced, 1));
	client_reach(&bob, 1, 5);
	expect_done();
}

/* The name shows a later version, so it is not removed. */
Test(unshare, a_later_version_keeps_the_name)
{
	struct slot_ref later;

	publish();
	later = client_alloc(&alice, 100);
	cr_assert(client_publish(&alice, &later, "x", PUBLISH_REPLACE, 0) > 0);
	cr_expect(zero(int, take_back(0)), "%s", alice.sentence);
	cr_expect(eq(u32, index_find(&broker->store, "x"), later.slot));
}

/* After a restart of the broker the client sends the request again. */
Test(unshare, a_lost_connection_ends_only_the_wait)
{
	publish();
	get(&bob);
	begin_wait();
	waiters_drop_session(alice.session);
	cr_expect(eq(int, word_state(broker, &ref), SLOT_LIMBO));
	begin_wait();
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	expect_done();
}

Test(unshare, the_end_of_the_sharer_ends_the_wait_and_taints_the_tensor)
{
	publish();
	get(&bob);
	begin_wait();
	client_close(&alice);
	cr_expect(zero(u32, broker->sessions.waiters.n));
	cr_expect(table_word_is_tainted(
		table_load(&broker->store.table, ref.slot)));
	cr_assert(zero(int, client_release_n(&bob, &ref, 1)));
	cr_expect(eq(int, word_state(broker, &ref), SLOT_FREE));
}
