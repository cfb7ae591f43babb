/*
 * Tests the end of a session that has many objects. It takes several rounds of
 * the loop, in between which other sessions are served, and no client can
 * resume the session.
 */
#include "tests/unit/broker/broker_fixture.h"

/* Each tensor has two records that the end removes, because its maker can write
 * it and holds it. */
#define N 3000

static void set_up(void)
{
	broker_set_up();
	for (int i = 0; i < N; i++)
		(void)client_alloc(&alice, 1);
}

TestSuite(session_end, .init = set_up, .timeout = 300);

static uint32_t n_live(void)
{
	return catalog_n_live(&broker->store.catalog, SECTION_SLOT);
}

/* Returns how many rounds it took. */
static int run_to_the_end(void)
{
	int n = 0;

	for (; broker->sessions.n > 1; n++) {
		uint32_t before = n_live();

		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
		cr_expect(le(u32, before - n_live(), 1024));
	}
	return n;
}

Test(session_end, other_clients_are_served_between_the_rounds)
{
	const struct session_record *record = session_record(alice.session);
	struct error err = ERROR_NULL;
	uint8_t token[TOKEN_SIZE];
	uint64_t id = record->id;

	memcpy(token, record->token, sizeof(token));
	cr_assert(ne(ptr, session_find(&broker->sessions, id, token, &err),
		     NULL));
	session_end(alice.session, 0);
	cr_expect(zero(int, client_ask(&bob, &(struct request){
						     .kind = MESSAGE_PING})));
	cr_expect(eq(u32, broker->sessions.n, 2), "it still ends");
	cr_expect(gt(u32, n_live(), 0));
	cr_expect(eq(ptr, session_find(&broker->sessions, id, token, &err),
		     NULL));
	cr_expect(eq(int, err.code, -ESTALE));
	cr_expect(ge(int, run_to_the_end(), 4));
	assert_empty(broker, 1000);
}

Test(session_end, the_reply_to_a_goodbye_is_sent_at_the_end)
{
	struct reply reply;
	int code;

	session_end(alice.session, 7);
	cr_expect(not(client_recv(&alice, &reply, &code)));
	(void)run_to_the_end();
	cr_assert(client_recv(&alice, &reply, &code));
	cr_expect(zero(int, code));
	cr_expect(eq(int, (int)reply.kind, MESSAGE_GOODBYE));
	reply_deinit(&reply);
	cr_expect(eq(ptr, alice.peer.session, NULL));
	assert_empty(broker, 1000);
}

/* Another process may have its pid by then. */
Test(session_end, nobody_can_resume_a_session_in_quarantine)
{
	const struct session_record *record = session_record(alice.session);
	struct error err = ERROR_NULL;

	broker->base.config.device_quarantine_ms = 1000;
	alice.session->has_device_memory = true;
	session_end_dead(alice.session);
	cr_assert(not(alice.session->is_ending));
	cr_expect(eq(ptr,
		     session_find(&broker->sessions, record->id, record->token,
				  &err),
		     NULL));
	cr_expect(eq(int, err.code, -ESTALE));
}

/* The descriptor of a dead process stays readable, so the loop would not wait
 * while the rounds pause. */
Test(session_end, a_dead_process_is_not_watched_between_the_rounds)
{
	struct client carol;
	pid_t child = client_open_child(&carol, broker, 1000);

	for (int i = 0; i < N; i++)
		(void)client_alloc(&carol, 1);
	kill_child(&carol, child);
	while (!carol.session->is_ending)
		loop_step(&broker->base.loop.uv);
	cr_assert(eq(u32, broker->sessions.n, 3));
	cr_expect(not(uv_is_active((uv_handle_t *)&carol.session->pidfd_poll)));
}

Test(session_end, tensors_that_outlive_the_session_are_charged_to_no_session)
{
	static char names[N / 2][16];

	for (int i = 0; i < N / 2; i++) {
		struct slot_ref ref = client_alloc(&alice, 1);

		snprintf(names[i], sizeof(names[i]), "n/%d", i);
		cr_assert(gt(i64, client_publish(&alice, &ref, names[i], 0, 0),
			     0));
	}
	session_end(alice.session, 0);
	(void)run_to_the_end();
	cr_expect(eq(u32, n_live(), N / 2));
	for (uint32_t i = 1;
	     i <= catalog_n_touched(&broker->store.catalog, SECTION_BLOCK);
	     i++) {
		const struct block_record *block =
			catalog_block(&broker->store.catalog, i);

		cr_expect(not(block->chunk && block->maker));
	}
}
