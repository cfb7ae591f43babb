/*
 * Tests reply queues: their order, the wait for a client that has not read
 * descriptors, and the charges meanwhile.
 */
#include "broker/session/reply_queue.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/session/connection_fixture.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define QUOTA 20000 /* space for four descriptors */

static const struct config config = {.quota_queue = QUOTA};
static struct connection connection;
static struct reply_queue queue;
static uint8_t buffer[FRAME_MAX_SIZE];
static struct error err;

static void on_retry(void *data, uint32_t index)
{
	(void)data;
	(void)index;
	cr_assert(eq(int, reply_queue_flush(&queue, &err), FRAME_OK));
}

static void setup(void)
{
	connection_setup(&connection, &config);
	queue = (struct reply_queue){
		.sock_fd = connection.broker_fd,
		.accounts = &connection.accounts,
		.account = connection.account,
		.retry.deadlines = &connection.deadlines,
		.retry.fn = on_retry,
	};
}

static void teardown(void)
{
	reply_queue_deinit(&queue);
	close(connection.broker_fd);
	connection_teardown(&connection);
}

TestSuite(reply_queue, .init = setup, .fini = teardown);

/* Send a reply. With `has_fd` it has an eventfd, which is closed here
 * afterwards. */
static int send_reply(uint64_t number, bool has_fd)
{
	struct frame frame = {.kind = 1, .number = number};
	int r;

	if (has_fd)
		frame.fds[frame.n_fds++] = eventfd(0, EFD_CLOEXEC);
	r = reply_queue_send(&queue, &frame, &err);
	frame_close_fds(&frame);
	return r;
}

/* The client reads the reply of this number, with `n_fds` descriptors. */
static void read_reply(uint64_t number, uint16_t n_fds)
{
	struct frame frame;

	cr_assert(
		eq(int,
		   frame_recv(connection.client_fd, buffer, &frame, NULL, &err),
		   FRAME_OK));
	cr_assert(eq(u64, frame.number, number));
	cr_assert(eq(u16, frame.n_fds, n_fds));
	frame_close_fds(&frame);
}

Test(reply_queue, a_reply_without_descriptors_is_sent_at_once)
{
	cr_assert(eq(int, send_reply(1, false), FRAME_OK));
	cr_assert(eq(int, send_reply(2, false), FRAME_OK));
	cr_assert(reply_queue_is_empty(&queue));
	cr_assert(not(reply_queue_is_read(&queue)));
	read_reply(1, 0);
	read_reply(2, 0);
	cr_assert(reply_queue_is_read(&queue));
}

Test(reply_queue,
     a_reply_with_descriptors_waits_until_the_previous_one_was_read)
{
	cr_assert(eq(int, send_reply(1, true), FRAME_OK));
	cr_assert(reply_queue_is_empty(&queue));
	cr_assert(eq(int, send_reply(2, true), FRAME_OK));
	cr_assert(not(reply_queue_is_empty(&queue)));
	cr_assert(reply_queue_waits_for_reader(&queue));
	cr_assert(gt(u64, connection.account->used[ACCOUNT_QUEUE], 0));
	read_reply(1, 1);
	cr_assert(not(reply_queue_waits_for_reader(&queue)));
	cr_assert(eq(int, reply_queue_flush(&queue, &err), FRAME_OK));
	cr_assert(reply_queue_is_empty(&queue));
	cr_assert(zero(u64, connection.account->used[ACCOUNT_QUEUE]));
	read_reply(2, 1);
}

Test(reply_queue, a_deadline_sends_replies_that_waited_for_the_reader)
{
	cr_assert(eq(int, send_reply(1, true), FRAME_OK));
	cr_assert(eq(int, send_reply(2, true), FRAME_OK));
	read_reply(1, 1);
	while (!reply_queue_is_empty(&queue))
		loop_step(&connection.loop);
	read_reply(2, 1);
}

Test(reply_queue, no_reply_overtakes_another)
{
	cr_assert(eq(int, send_reply(1, true), FRAME_OK));
	cr_assert(eq(int, send_reply(2, true), FRAME_OK));
	cr_assert(eq(int, send_reply(3, false), FRAME_OK));
	read_reply(1, 1);
	cr_assert(eq(int, reply_queue_flush(&queue, &err), FRAME_OK));
	cr_assert(reply_queue_is_empty(&queue));
	read_reply(2, 1);
	read_reply(3, 0);
}

#ifdef FSDP_TEST_POINTS
Test(reply_queue, a_reply_waits_while_all_clients_have_too_many_descriptors)
{
	setenv("FSDP_FAIL_AT", "frame.send:1:109", 1); /* ETOOMANYREFS */
	cr_assert(eq(int, send_reply(1, true), FRAME_OK));
	cr_assert(reply_queue_waits_for_reader(&queue));
	cr_assert(eq(int, send_reply(2, false), FRAME_OK));
	while (!reply_queue_is_empty(&queue))
		loop_step(&connection.loop);
	read_reply(1, 1);
	read_reply(2, 0);
}
#endif

Test(reply_queue, an_account_bounds_the_queue)
{
	int r = send_reply(1, true);

	for (uint64_t i = 2; r == FRAME_OK; i++)
		r = send_reply(i, true);
	cr_assert(eq(int, r, -EDQUOT));
	cr_assert(le(u64, connection.account->used[ACCOUNT_QUEUE], QUOTA));
}

Test(reply_queue, a_disconnected_client_is_reported)
{
	cr_assert(eq(int, send_reply(1, true), FRAME_OK));
	cr_assert(eq(int, send_reply(2, true), FRAME_OK));
	connection_close_client(&connection);
	cr_assert(eq(int, reply_queue_flush(&queue, &err), FRAME_EOF));
}
