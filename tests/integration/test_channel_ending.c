/*
 * Tests that users of a channel are told of a death before the kernel reports
 * it, and that nothing that the dying process had is used again before.
 */
#include "shm/slots.h"
#include "tests/lib/actor.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/ending.h"
#include "tests/lib/item.h"
#include "tests/lib/ranks.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define NAME    "data/batches"
#define N_SLOTS 2
/* Longer than the time between two looks. What must not happen is tried for
 * this long. */
#define SOME_MS 100

static struct actor actor;
static pid_t thread; /* of the actor */

static void set_up(void)
{
	client_setup_supervised();
	actor = (struct actor){.fd = -1};
	actor_start(&actor, NULL);
}

static void tear_down(void)
{
	actor_stop(&actor);
	client_teardown();
}

CHECKED_SUITE(channel_ending, set_up, tear_down, .timeout = 300);

static struct fsdp_channel *open_as(struct fsdp_client *of,
				    enum fsdp_channel_role role,
				    enum fsdp_channel_mode mode)
{
	const struct fsdp_channel_options options = {.capacity = 4096,
						     .n_slots = N_SLOTS,
						     .mode = mode,
						     .timeout_ms = 10000};
	struct fsdp_channel *channel;

	must(fsdp_channel_open(of, NAME, &options, role, &channel) == 0);
	return channel;
}

static struct fsdp_channel *producer(void)
{
	return open_as(client, FSDP_PRODUCER, FSDP_CHANNEL_SHARE);
}

static struct fsdp_channel *consumer(void)
{
	return open_as(client, FSDP_CONSUMER, FSDP_CHANNEL_SHARE);
}

static int receive(struct fsdp_channel *channel, int32_t timeout_ms)
{
	struct fsdp_item *item;
	int r = fsdp_item_receive(channel, timeout_ms, &item);

	return r < 0 ? r : fsdp_item_release(item);
}

/* The kernel has not reported the death to the broker. */
static void assert_not_reported(void)
{
	cr_assert(zero(u64, status_value(client, "dead_sessions")));
}

static void let_die(void)
{
	ending_end(thread);
	actor_kill(&actor);
	while (status_value(client, "sessions") > 1)
		;
}

/* --- a producer ---------------------------------------------------------- */

/* Send an item, and begin another one. */
static int send_and_begin(void)
{
	struct fsdp_channel *channel = open_as(
		connect_to(&daemon_, 0), FSDP_PRODUCER, FSDP_CHANNEL_SHARE);
	struct fsdp_item *item;

	item_send_number(channel, 1);
	must(fsdp_item_begin(channel, -1, &item) == 0);
	return ending_thread();
}

static void assert_names_actor(void)
{
	char text[64];

	(void)snprintf(text, sizeof(text), "process %d (", (int)actor.pid);
	cr_assert(strstr(fsdp_error(), text) != NULL, "%s", fsdp_error());
}

/* Returns a consumer that was told of the actor's death. */
static struct fsdp_channel *meet_ending_producer(void)
{
	struct fsdp_channel *to;

	thread = actor_run(&actor, send_and_begin);
	to = consumer();
	ending_begin(actor.pid, thread);
	must(fsdp_item_release(item_receive(to, 1)) == 0);
	cr_assert(eq(int, receive(to, -1), -EOWNERDEAD));
	assert_names_actor();
	return to;
}

/* One of the buffers can be used, and the actor keeps the other one. */
static struct fsdp_channel *begin_one(void)
{
	struct fsdp_channel *from = producer();
	struct fsdp_item *items[N_SLOTS];

	must(fsdp_item_begin(from, -1, &items[0]) == 0);
	cr_assert(
		eq(int, fsdp_item_begin(from, SOME_MS, &items[1]), -ETIMEDOUT));
	return from;
}

Test(channel_ending, a_consumer_is_told_once_and_the_buffer_is_kept)
{
	struct fsdp_channel *from, *to;
	struct fsdp_item *item;

	to = meet_ending_producer();
	cr_assert(eq(int, receive(to, -1), -ENODATA));
	from = begin_one();
	assert_not_reported();
	let_die();
	must(fsdp_item_begin(from, -1, &item) == 0);
	cr_assert(eq(int, receive(to, 0), -ETIMEDOUT));
}

Test(channel_ending, a_place_can_be_used_again)
{
	struct fsdp_channel *from, *to;

	to = meet_ending_producer();
	let_die();
	from = producer();
	cr_assert(eq(int, receive(to, SOME_MS), -ETIMEDOUT));
	item_send_number(from, 2);
	must(fsdp_item_release(item_receive(to, 2)) == 0);
}

Test(channel_ending, a_broker_that_is_restarted_does_not_tell_again)
{
	struct fsdp_channel *from, *to;
	struct fsdp_item *item;

	to = meet_ending_producer();
	daemon_kill_broker(&daemon_);
	from = begin_one();
	let_die();
	must(fsdp_item_begin(from, -1, &item) == 0);
	cr_assert(eq(int, receive(to, SOME_MS), -ETIMEDOUT));
}

Test(channel_ending, a_waiter_by_descriptor_is_told)
{
	struct pollfd polled = {.events = POLLIN};
	struct fsdp_channel *to;

	thread = actor_run(&actor, send_and_begin);
	to = consumer();
	must(fsdp_item_release(item_receive(to, 1)) == 0);
	polled.fd = fsdp_channel_fd(to);
	cr_assert(eq(int, receive(to, 0), -ETIMEDOUT));
	ending_begin(actor.pid, thread);
	cr_assert(eq(int, poll(&polled, 1, -1), 1));
	cr_assert(eq(int, receive(to, 0), -EOWNERDEAD));
	assert_not_reported();
	let_die();
}

/* --- consumers ----------------------------------------------------------- */

static int receive_and_hold(void)
{
	(void)item_receive(open_as(connect_to(&daemon_, 0), FSDP_CONSUMER,
				   FSDP_CHANNEL_SHARE),
			   1);
	return ending_thread();
}

Test(channel_ending, a_producer_is_told_that_nobody_receives)
{
	struct fsdp_channel *from = producer(), *to;
	struct fsdp_item *item;

	item_send_number(from, 1);
	thread = actor_run(&actor, receive_and_hold);
	item_send_number(from, 2);
	ending_begin(actor.pid, thread);
	cr_assert(eq(int, fsdp_item_begin(from, -1, &item), -EPIPE));
	to = consumer();
	must(fsdp_item_release(item_receive(to, 2)) == 0);
	item_send_number(from, 3);
	cr_assert(eq(int, fsdp_item_begin(from, SOME_MS, &item), -ETIMEDOUT));
	assert_not_reported();
	let_die();
	item_send_number(from, 4);
}

static int watch_broadcast(void)
{
	(void)open_as(connect_to(&daemon_, 0), FSDP_CONSUMER,
		      FSDP_CHANNEL_BROADCAST);
	return ending_thread();
}

Test(channel_ending, a_broadcast_waits_until_nobody_can_read_the_item)
{
	struct fsdp_channel *from, *to;
	struct fsdp_item *item;

	from = open_as(client, FSDP_PRODUCER, FSDP_CHANNEL_BROADCAST);
	to = open_as(client, FSDP_CONSUMER, FSDP_CHANNEL_BROADCAST);
	thread = actor_run(&actor, watch_broadcast);
	for (uint64_t i = 1; i <= N_SLOTS; i++) {
		item_send_number(from, i);
		must(fsdp_item_release(item_receive(to, i)) == 0);
	}
	ending_begin(actor.pid, thread);
	cr_assert(eq(int, fsdp_item_begin(from, SOME_MS, &item), -ETIMEDOUT));
	cr_assert(zero(int, fsdp_channel_close(to)));
	cr_assert(eq(int, fsdp_item_begin(from, -1, &item), -EPIPE));
	assert_not_reported();
	let_die();
	to = open_as(client, FSDP_CONSUMER, FSDP_CHANNEL_BROADCAST);
	item_send_number(from, 9);
	must(fsdp_item_release(item_receive(to, 9)) == 0);
}

/* --- a hostile user ------------------------------------------------------ */

/* Write to the channel's file that all users are this process. */
static void claim_to_be_all(pid_t pid)
{
	struct slots_page *page = item_page();

	for (int i = 0; i < SLOTS_USERS; i++)
		page->users[i].pid = (uint32_t)pid;
}

static int count_looks(const struct fsdp_histogram *histogram, void *data)
{
	if (histogram->kind == FSDP_HISTOGRAM_REQUEST &&
	    strcmp(histogram->name, "channel_look") == 0)
		*(uint64_t *)data = histogram->n;
	return 0;
}

Test(channel_ending, a_live_user_is_not_reported_dead)
{
	struct fsdp_channel *from = producer(), *to = consumer();
	uint64_t n = 0;

	thread = actor_run(&actor, ending_thread);
	ending_begin(actor.pid, thread);
	claim_to_be_all(actor.pid);
	cr_assert(eq(int, receive(to, SOME_MS), -ETIMEDOUT));
	while (n == 0) {
		cr_assert(eq(int, receive(to, SOME_MS), -ETIMEDOUT));
		cr_assert(zero(int, fsdp_histograms(client, count_looks, &n)));
	}
	item_send_number(from, 1);
	must(fsdp_item_release(item_receive(to, 1)) == 0);
	let_die();
}

Test(channel_ending, a_look_at_a_free_place_finds_nobody)
{
	struct request request = {
		.kind = MESSAGE_CHANNEL_OPEN,
		.channel_open = {.name = NAME, .role = CHANNEL_CONSUMER}};
	struct fsdp_channel *from = producer();
	struct wire *wire = wire_open(daemon_socket(&daemon_));
	struct channel_reply *channel = &wire->reply.channel;

	wire_must(wire, wire_call(wire, &request));
	request = (struct request){.kind = MESSAGE_CHANNEL_LOOK,
				   .channel_look = {channel->channel,
						    channel->place,
						    SLOTS_USERS - 1}};
	wire_must(wire, wire_call(wire, &request));
	wire_close(wire);
	must(fsdp_channel_close(from) == 0);
}
