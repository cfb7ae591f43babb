/*
 * Tests that the work of many sessions is done in rounds, between which other
 * clients are served. The clock of the rounds is the test's: each look at it
 * takes longer than a round, so that a round does the work of one session.
 */
#include "tests/unit/broker/broker_fixture.h"

#define N      4
#define N_HELD 3000

static uint64_t clock_ns;
static struct client crowd[N];
static struct slot_ref held[N_HELD];

/* Replaces the function of libuv. */
uint64_t uv_hrtime(void)
{
	return clock_ns += 300000;
}

static void set_up(void)
{
	broker_set_up();
	/* The time is limited from then on. */
	broker->sessions.listener.is_open = true;
}

TestSuite(session, .init = set_up, .timeout = 300);

Test(session, one_that_dies_with_many_others_ends_in_a_round_of_its_own)
{
	pid_t children[N];
	uint32_t n_before;

	for (int i = 0; i < N; i++) {
		children[i] = client_open_child(&crowd[i], broker, 1000);
		(void)client_alloc(&crowd[i], 1);
	}
	for (int i = 0; i < N; i++)
		kill_child(&crowd[i], children[i]);
	while (broker->sessions.n > 2) {
		n_before = broker->sessions.n;
		(void)uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
		cr_assert(le(u32, n_before - broker->sessions.n, 1));
	}
	cr_expect(zero(u32, broker->store.catalog.header->limbo.n));
	cr_expect(zero(u32,
		       catalog_n_live(&broker->store.catalog, SECTION_SLOT)));
}

/* Returns how often the broker has taken bits, of which the client sets those
 * of all slots. */
static uint64_t n_collected(void)
{
	return broker->store.limbo.n_rings;
}

static uint32_t n_pending(const struct client *client)
{
	uint32_t n = 0;

	for (uint32_t word = 0; word < TABLE_SLOTS / 64; word++)
		n += (uint32_t)__builtin_popcountll(
			atomic_load(&client->refs.bitmap[word]));
	return n;
}

static void ring(struct client *client)
{
	for (uint32_t word = 0; word < TABLE_SLOTS / 64; word++) {
		atomic_store(&client->refs.bitmap[word], UINT64_MAX);
		atomic_store(&client->refs.summary[word / 64], UINT64_MAX);
	}
	cr_assert(eq(long,
		     write(client->session->doorbell_fd, &(uint64_t){1}, 8),
		     8));
}

Test(session, doorbells_that_ring_together_are_served_in_turn)
{
	uint64_t n_before;

	for (int i = 0; i < N; i++) {
		client_open(&crowd[i], broker, 1000, 0);
		ring(&crowd[i]);
	}
	/* In the first iteration, one doorbell is served at once. */
	while (n_collected() < 10 * N) {
		n_before = n_collected();
		(void)uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
		cr_assert(le(u64, n_collected() - n_before, 1));
	}
	for (int i = 0; i < N; i++)
		cr_expect(le(u32, n_pending(&crowd[i]), TABLE_SLOTS - 9 * 256));
}

/* Makes tensors that only alice holds, and lets the broker forget her
 * ref-counter file, as after a restart. */
static void hold_and_detach(void)
{
	struct refs *refs = &alice.session->holdings.refs;

	for (int i = 0; i < N_HELD; i++) {
		held[i] = client_alloc(&alice, 1);
		cr_assert(gt(i64,
			     client_publish(&alice, &held[i], "n",
					    PUBLISH_REPLACE, 0),
			     0));
	}
	cr_assert(zero(int, client_remove(&alice, "n")));
	refs_close(refs);
	*refs = REFS_NULL;
}

static void reattach(void)
{
	int fd = fcntl(alice.refs.fd, F_DUPFD_CLOEXEC, 3);
	struct error err = ERROR_NULL;

	must(session_reattach(alice.session, fd, -1, &err), &err);
}

static uint32_t n_live(void)
{
	return catalog_n_live(&broker->store.catalog, SECTION_SLOT);
}

Test(session, a_reconnect_updates_many_tensors_in_rounds)
{
	uint32_t n_before = N_HELD;

	hold_and_detach();
	for (int i = 0; i < N_HELD; i++)
		(void)client_release(&alice, &held[i]);
	reattach();
	while (n_live() > 0) {
		cr_assert(le(u32, n_before - n_live(), 1024));
		n_before = n_live();
		(void)uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	}
	cr_expect(le(u32, n_before, 1024));
}

/* A request ends the grants at which the next round would begin. */
Test(session, grants_may_end_between_the_rounds_after_a_reconnect)
{
	hold_and_detach();
	reattach();
	cr_assert(gt(u32, alice.session->holdings.grant_hand, 0));
	for (int i = 0; i < N_HELD; i++)
		cr_assert(zero(int, client_release_n(&alice, &held[i], 1)));
	cr_expect(zero(u32, alice.session->holdings.grant_hand));
	assert_empty(broker, 1000);
}
