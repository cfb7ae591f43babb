/*
 * Tests parked requests that have two reasons to run at the same time.
 */
#include "broker/comm/comm_commit.h"
#include "broker/comm/comm_progress.h"
#include "broker/comm/comm_run.h"
#include "tests/unit/broker/broker_fixture.h"
#include <xxhash.h>

static struct client first, second; /* ranks 0 and 1 */
static uint64_t comm;

static struct request join_of(uint32_t rank)
{
	return (struct request){
		.kind = MESSAGE_COMM_JOIN,
		.comm_join = {.name = "test/job",
			      .access = {.gid = GID_DEFAULT},
			      .n_ranks = 2,
			      .rank = rank,
			      .timeout_ms = 60000,
			      .ttl_ms = 1,
			      .n_inputs = 1},
	};
}

static struct request commit_of(uint64_t step)
{
	return (struct request){.kind = MESSAGE_COMMIT,
				.commit = {.comm = comm, .step = step}};
}

static int receive(struct client *client)
{
	struct reply reply;
	int code;

	cr_assert(client_recv(client, &reply, &code));
	if (reply.kind == MESSAGE_COMM_JOIN && code == 0)
		comm = reply.comm.comm;
	reply_deinit(&reply);
	return code;
}

static void setup(void)
{
	const struct request mine = join_of(0), theirs = join_of(1);

	broker = broker_make();
	client_open(&first, broker, 1000, 0);
	client_open(&second, broker, 1000, 0);
	client_send(&first, &mine, ++first.number);
	cr_assert(zero(int, client_ask(&second, &theirs)));
	while (first.session->n_waiting)
		loop_step(&broker->base.loop.uv);
	cr_assert(zero(int, receive(&first)));
}

static void teardown(void)
{
	client_close(&first);
	client_close(&second);
	comms_deinit(&broker->comms);
}

TestSuite(waiter, .init = setup, .fini = teardown);

/* Act as if the time of the request with the nearest deadline had passed. */
static void end_time(void)
{
	uv_timer_t *timer = &broker->base.deadlines.timer;

	broker->base.deadlines.heap[1].at_ms = 0;
	cr_assert(zero(int, uv_timer_start(timer, timer->timer_cb, 0, 0)));
}

/* The request is woken, and its time runs out before it runs. */
Test(waiter, a_request_woken_at_its_deadline_gets_one_reply)
{
	const struct request commit = commit_of(1);
	const struct request wait = {
		.kind = MESSAGE_WAIT,
		.wait = {.comm = comm,
			 .kind = WORK_COMMIT,
			 .sequence = 1,
			 .timeout_ms = 10000},
	};
	struct error err = ERROR_NULL;
	struct reply reply;
	int code;

	cr_assert(zero(int, client_ask(&first, &commit)));
	client_send(&first, &wait, ++first.number);
	cr_assert(eq(u32, first.session->n_waiting, 1));
	/* A reply would let the waiting request run at once. So commit without
	 * a request. */
	must(comm_commit(broker->comms.first, 1,
			 &(struct commit_request){.step = 1}, &err),
	     &err);
	(void)comms_on_idle(&broker->comms);
	end_time();
	uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(zero(int, receive(&first)));
	cr_assert(not(client_recv(&first, &reply, &code)));
	cr_assert(zero(u32, first.session->n_waiting));
}

/* The time that a request waited for the end of an earlier run does not make it
 * late in the next one. */
Test(waiter, a_rank_that_joins_near_its_deadline_does_not_fail_the_next_run)
{
	const struct request leave = {.kind = MESSAGE_COMM_LEAVE,
				      .comm_leave = {.comm = comm}};
	struct request mine = join_of(0), theirs = join_of(1);

	mine.comm_join.timeout_ms = theirs.comm_join.timeout_ms = 10000;
	cr_assert(zero(int, client_ask(&first, &leave)));
	client_send(&first, &mine, ++first.number);
	cr_assert(zero(int, client_ask(&second, &leave)));
	while (!broker->comms.first || broker->comms.first->n_left)
		uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(eq(u32, first.session->n_waiting, 1));
	end_time();
	uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
	cr_assert(zero(int, client_ask(&second, &theirs)), "%s",
		  second.sentence);
	while (first.session->n_waiting)
		loop_step(&broker->base.loop.uv);
	cr_assert(zero(int, receive(&first)));
}

/* These names would all have one hash without the seed. */
static void choose_name(uint64_t *counter, char ret[32])
{
	do
		snprintf(ret, 32, "n%llu", (unsigned long long)++*counter);
	while (XXH3_64bits(ret, strlen(ret)) % WAITER_BUCKETS);
}

static uint32_t longest_bucket(void)
{
	uint32_t longest = 0;

	for (int i = 0; i < WAITER_BUCKETS; i++) {
		const struct waiter *waiter =
			broker->sessions.waiters.buckets[i].first;
		uint32_t n = 0;

		for (; waiter; waiter = waiter->next)
			n++;
		if (n > longest)
			longest = n;
	}
	return longest;
}

Test(waiter, a_client_cannot_choose_names_that_share_one_hash_bucket)
{
	char name[32];
	const char *names[] = {name};
	const struct request get = {
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = -1, .n_names = 1, .names = names}};
	uint64_t counter = 0;

	for (int i = 0; i < 64; i++) {
		choose_name(&counter, name);
		client_send(&first, &get, ++first.number);
	}
	cr_assert(eq(u32, first.session->n_waiting, 64));
	cr_assert(lt(u32, longest_bucket(), 16));
}
