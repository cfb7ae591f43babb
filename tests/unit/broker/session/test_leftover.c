/*
 * Tests leftovers: how long a connection that has ended is charged.
 */
#include "broker/session/leftover.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/session/connection_fixture.h"
#include <sys/socket.h>

#define CHARGE 100

static const struct config config = {.quota_queue = CHARGE};
static struct connection connection;
static struct leftover *list;
static uint8_t buffer[FRAME_MAX_SIZE];

/* The broker has sent two frames, and ends the connection. */
static void setup(void)
{
	const struct frame frame = {.kind = 1};
	struct leftover leftover = {
		.list = &list,
		.charge = CHARGE,
		.look.deadlines = &connection.deadlines,
	};

	connection_setup(&connection, &config);
	leftover.sock_fd = connection.broker_fd;
	leftover.account = connection.account;
	cr_assert(zero(int,
		       account_charge(&connection.accounts, connection.account,
				      ACCOUNT_QUEUE, CHARGE, NULL)));
	for (int i = 0; i < 2; i++)
		cr_assert(eq(int, frame_send(leftover.sock_fd, &frame, NULL),
			     FRAME_OK));
	leftover_keep(&leftover);
}

static void teardown(void)
{
	leftovers_close(list);
	connection_teardown(&connection);
}

TestSuite(leftover, .init = setup, .fini = teardown, .timeout = 60);

static int read_one(void)
{
	struct frame frame;

	return frame_recv(connection.client_fd, buffer, &frame, NULL, NULL);
}

static void run_until_closed(void)
{
	while (list)
		loop_step(&connection.loop);
	cr_assert(zero(u64, connection.account->used[ACCOUNT_QUEUE]));
}

/* The broker has looked a few times then. */
static void expect_charged(void)
{
	while (list && list->look.wait_ms < 16)
		loop_step(&connection.loop);
	cr_expect(eq(u64, connection.account->used[ACCOUNT_QUEUE], CHARGE));
}

Test(leftover, is_charged_until_the_client_has_read_everything)
{
	cr_assert(eq(int, read_one(), FRAME_OK));
	expect_charged();
	cr_assert(eq(int, read_one(), FRAME_OK));
	cr_assert(eq(int, read_one(), FRAME_EOF));
	run_until_closed();
}

/* The client can still read what is there. */
Test(leftover, is_charged_while_the_client_has_only_shut_its_socket_down)
{
	cr_assert(zero(int, shutdown(connection.client_fd, SHUT_RDWR)));
	expect_charged();
	cr_assert(eq(int, read_one(), FRAME_OK));
	cr_assert(eq(int, read_one(), FRAME_OK));
	run_until_closed();
}

Test(leftover, is_charged_until_the_client_closes_its_socket)
{
	expect_charged();
	connection_close_client(&connection);
	run_until_closed();
}

Test(leftover, ends_with_the_broker)
{
	expect_charged();
}
