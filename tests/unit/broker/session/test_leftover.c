/*
 * Tests leftovers: how long a connection that has ended is charged.
 */
#include "broker/base/account.h"
#include "broker/base/config.h"
#include "broker/session/leftover.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/loop_fixture.h"
#include <sys/socket.h>
#include <unistd.h>

#define CHARGE 100

static const struct config config = {.quota_queue = CHARGE};
static uv_loop_t loop;
static struct deadlines deadlines;
static struct accounts accounts;
static struct account *account;
static struct leftover *list;
static int client_fd;
static uint8_t buffer[FRAME_MAX_SIZE];

/* The broker has sent two frames, and ends the connection. */
static void setup(void)
{
	const struct frame frame = {.kind = 1};
	int fds[2];

	cr_assert(zero(int, uv_loop_init(&loop)));
	cr_assert(zero(int, deadlines_init(&deadlines, &loop, NULL, NULL)));
	accounts_init(&accounts, &config);
	account = accounts_get(&accounts, 1000);
	cr_assert(zero(int, account_charge(&accounts, account, ACCOUNT_QUEUE,
					   CHARGE, NULL)));
	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC,
				       0, fds)));
	client_fd = fds[1];
	for (int i = 0; i < 2; i++)
		cr_assert(eq(int, frame_send(fds[0], &frame, NULL), FRAME_OK));
	leftover_keep(&(struct leftover){
		.list = &list,
		.deadlines = &deadlines,
		.sock_fd = fds[0],
		.account = account,
		.charge = CHARGE,
	});
}

static void teardown(void)
{
	leftovers_close(list);
	cr_expect(zero(u64, account->used[ACCOUNT_QUEUE]));
	if (client_fd >= 0)
		close(client_fd);
	accounts_deinit(&accounts);
	deadlines_stop(&deadlines);
	uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&loop)));
}

TestSuite(leftover, .init = setup, .fini = teardown, .timeout = 60);

static int read_one(void)
{
	struct frame frame;

	return frame_recv(client_fd, buffer, &frame, NULL, NULL);
}

static void run_until_closed(void)
{
	while (list)
		loop_step(&loop);
	cr_assert(zero(u64, account->used[ACCOUNT_QUEUE]));
}

/* The broker has looked a few times then. */
static void expect_charged(void)
{
	while (list && list->look_ms < 16)
		loop_step(&loop);
	cr_expect(eq(u64, account->used[ACCOUNT_QUEUE], CHARGE));
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
	cr_assert(zero(int, shutdown(client_fd, SHUT_RDWR)));
	expect_charged();
	cr_assert(eq(int, read_one(), FRAME_OK));
	cr_assert(eq(int, read_one(), FRAME_OK));
	run_until_closed();
}

Test(leftover, is_charged_until_the_client_closes_its_socket)
{
	expect_charged();
	close(client_fd);
	client_fd = -1;
	run_until_closed();
}

Test(leftover, ends_with_the_broker)
{
	expect_charged();
}
