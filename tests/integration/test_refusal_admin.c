/*
 * Tests bad input for administration, monitoring and ready fences. Refused
 * requests change nothing, and lists may begin where nothing exists.
 */
#include "tests/integration/refusal.h"
#include "tests/lib/leaks.h"

CHECKED_SUITE(refusal, refusal_setup, refusal_teardown, .timeout = 300);

static struct request control_of(uint32_t action, uint64_t value)
{
	return (struct request){
		.kind = MESSAGE_CONTROL,
		.control = {.action = action, .value = value},
	};
}

/* The test runs as the broker's user, so it has all permissions. */
Test(refusal, of_invalid_requests_of_administrators)
{
	const struct refusal all[] = {
		{"to evict nothing", control_of(CONTROL_EVICT, 0), -EINVAL,
		 "evict 0 bytes"},
		{"half a drain", control_of(CONTROL_DRAIN, 2), -EINVAL,
		 "value 2 is neither 0 nor 1"},
		{"a log level of none", control_of(CONTROL_LOG_LEVEL, 0),
		 -EINVAL, "no log level 0"},
		{"a level between two", control_of(CONTROL_LOG_LEVEL, 5),
		 -EINVAL, "no log level 5"},
		{"a wild level", control_of(CONTROL_LOG_LEVEL, UINT64_MAX),
		 -EINVAL, "no log level 18446744073709551615"},
		{"to revoke what is no ticket",
		 {.kind = MESSAGE_REVOKE, .revoke = {.ticket = 0}},
		 -ENOENT,
		 "ticket 0000000000000000"},
		{"to revoke an unknown one",
		 {.kind = MESSAGE_REVOKE, .revoke = {.ticket = UINT64_MAX}},
		 -ENOENT,
		 "ticket ffffffffffffffff"},
	};

	CHECK(all);
}

/* The drain cannot end because another session exists. The refused request
 * stays in force, as its sentence says, until a later one withdraws it. */
Test(refusal, of_a_drain_that_may_not_wait)
{
	struct request drain = control_of(CONTROL_DRAIN, 1);

	cr_assert(eq(int, wire_call(me, &drain), -ETIMEDOUT));
	cr_assert(
		ne(ptr,
		   strstr(wire_sentence(me), "new sessions are still refused"),
		   NULL));
	cr_assert(eq(u64, wire_status(other, "draining"), 1));
	drain.control.value = 0;
	wire_must(me, wire_call(me, &drain));
	cr_assert(zero(u64, wire_status(other, "draining")));
}

/* Another run of the request that waits must not close the broker again. */
Test(refusal, of_a_drain_that_waits_when_it_is_cancelled)
{
	struct request drain = control_of(CONTROL_DRAIN, 1);

	drain.control.timeout_ms = -1;
	wire_send(me, &drain);
	wire_wait_status(other, "waiters", 1);
	cr_assert(eq(u64, wire_status(other, "draining"), 1));
	drain = control_of(CONTROL_DRAIN, 0);
	wire_must(other, wire_call(other, &drain));
	cr_assert(eq(int, wire_receive(me), FRAME_OK));
	cr_assert(eq(int, me->frame.code, -ECANCELED));
	wire_says(me, "the drain was cancelled");
	cr_assert(zero(u64, wire_status(other, "draining")));
}

Test(refusal, of_unknown_actions)
{
	static const uint8_t none[] = {1 << 3, 0}, wild[] = {1 << 3, 99};

	check_body(MESSAGE_CONTROL, none, 0, -EINVAL, "no action");
	check_body(MESSAGE_CONTROL, none, sizeof(none), -EINVAL, "no action");
	check_body(MESSAGE_CONTROL, wild, sizeof(wild), -EINVAL, "no action");
}

static struct request digests_of(struct digest_item *items, uint32_t n)
{
	return (struct request){
		.kind = MESSAGE_DIGESTS,
		.digests = {.n_items = n, .items = items},
	};
}

Test(refusal, of_digests)
{
	struct digest_item ours = {loose.ref, 1}, shown = {named.ref, 1},
			   foreign = {theirs.ref, 1}, stale = {gone, 1},
			   sealed = {member, 1},
			   half[] = {{loose.ref, 7}, {theirs.ref, 7}};
	const struct refusal all[] = {
		{"of what is published", digests_of(&shown, 1), -EPERM,
		 "tensor 0: this session is not writing it"},
		{"of another's", digests_of(&foreign, 1), -EPERM,
		 "not writing it"},
		{"of what is gone", digests_of(&stale, 1), -ESTALE,
		 "no tensor"},
		{"of a member that is committed", digests_of(&sealed, 1),
		 -EPERM, "not writing it"},
		{"of one of ours and one of another's", digests_of(half, 2),
		 -EPERM, "tensor 1"},
	};

	CHECK(all);
	wire_must(me, wire_call(me, &(struct request){
					    .kind = MESSAGE_DIGESTS,
					    .digests = {.n_items = 1,
							.items = &ours},
				    }));
}

static struct request timelines_of(uint64_t session, const struct slot_ref *ref)
{
	return (struct request){
		.kind = MESSAGE_TIMELINES,
		.timelines = {.session = session, .ref = *ref},
	};
}

Test(refusal, of_timelines_without_a_reason)
{
	const struct refusal all[] = {
		{"by a tensor that is gone",
		 timelines_of(other->session, &gone), -ESTALE, "no tensor"},
		{"by another's tensor",
		 timelines_of(other->session, &theirs.ref), -EINVAL,
		 "does not hold the tensor"},
		{"of a session that orders nothing",
		 timelines_of(other->session, &named.ref), -ESRCH,
		 "the tensor has no ready fence of session"},
		{"of no session", timelines_of(UINT64_MAX, &named.ref), -ESRCH,
		 "the tensor has no ready fence of session"},
	};

	CHECK(all);
}

/* The broker ignores events that never existed, or that belong to other
 * sessions. */
Test(refusal, is_not_for_order_that_has_ended)
{
	struct ordered_item items[] = {
		{named.ref, 1}, {theirs.ref, INT64_MAX - 1}, {gone, 1}};
	uint64_t n = wire_status(other, "slots");

	wire_must(me, wire_call(me, &(struct request){
					    .kind = MESSAGE_ORDERED,
					    .ordered = {.n_items = 3,
							.items = items},
				    }));
	cr_assert(eq(u64, wire_status(other, "slots"), n));
}

/* A client that asks for events that do not exist any more, or yet, is told
 * so. */
Test(refusal, is_not_for_events_that_are_not_kept)
{
	const uint64_t places[] = {1, UINT64_MAX, UINT64_MAX >> 1};

	for (size_t i = 0; i < 3; i++) {
		const struct request request = {
			.kind = MESSAGE_EVENTS,
			.events = {.since = places[i], .prefix = ""},
		};

		wire_must(me, wire_call(me, &request));
		cr_assert(me->reply.events.is_lost ||
			  me->reply.events.next == places[i]);
	}
}

/* A client may send any cursor. A wrong one gives an empty page. */
Test(refusal, is_not_for_cursors_of_monitoring)
{
	for (uint64_t cursor = UINT64_MAX; cursor > 1 << 20; cursor >>= 3) {
		const struct request all[] = {
			{.kind = MESSAGE_TICKETS, .tickets = {cursor}},
			{.kind = MESSAGE_HISTOGRAMS, .histograms = {cursor}},
			{.kind = MESSAGE_MEMORY, .memory = {cursor}},
			{.kind = MESSAGE_ACCOUNTS, .accounts = {cursor}},
			{.kind = MESSAGE_CONFIG, .config = {cursor}},
		};

		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
			wire_must(me, wire_call(me, &all[i]));
	}
}

/* A wrong file changes nothing, and is named with its line. */
Test(refusal, of_a_configuration_that_is_wrong)
{
	const struct request reload = {.kind = MESSAGE_RELOAD};
	const struct refusal all[] = {
		{"a wrong file", reload, -EINVAL, "conf:2: "},
	};

	daemon_write_config(&daemon_, "[memory]\nchunk_min = 3 sheep\n");
	CHECK(all);
}

Test(refusal, of_boards_and_failures_of_no_communicator)
{
	const struct refusal all[] = {
		{"a board",
		 {.kind = MESSAGE_COMM_BOARD, .comm_board = {.comm = 999999}},
		 -ECONNABORTED,
		 "communicator 999999 is not running"},
		{"a look",
		 {.kind = MESSAGE_COMM_LOOK, .comm_look = {.comm = 999999}},
		 -ECONNABORTED,
		 "communicator 999999 is not running"},
		{"a failure",
		 {.kind = MESSAGE_COMM_FAIL,
		  .comm_fail = {.comm = 999999, .sentence = "x"}},
		 -ECONNABORTED,
		 "communicator 999999 is not running"},
	};

	CHECK(all);
}
