/*
 * Tests of connections in the loop: of several users each gets its share, and
 * has to wait for the next iteration then; and a shortage of descriptors is
 * logged.
 */
#include "broker/session/peer.h"
#include "tests/unit/broker/broker_fixture.h"
#include <sys/socket.h>

#define FIRST  61001
#define SECOND 61002
/* This is longer than a user's share. */
#define LONG_NS 1000000

TestSuite(peer, .init = broker_set_up, .timeout = 300);

static uint32_t n_read[2]; /* requests of FIRST and SECOND */

/* Stands for a request that takes long. */
static void read_slowly(struct peer *peer)
{
	uint64_t end_ns = uv_hrtime() + LONG_NS;
	char byte;

	cr_assert(eq(long, recv(peer->sock_fd, &byte, 1, 0), 1));
	n_read[peer->cred.uid == SECOND]++;
	while (uv_hrtime() < end_ns)
		;
	(void)meter_end(&peer->sessions->base->loop.meter, METER_REQUESTS);
}

/* Make a connection of this user, with a request. Returns the client's end. */
static int ask_as(uid_t uid)
{
	struct error err = ERROR_NULL;
	int fds[2];

	if (uid != getuid() && seteuid(uid) < 0)
		cr_skip_test("only root can be two users");
	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC,
				       0, fds)));
	cr_assert(zero(int, seteuid(getuid())));
	must(peer_new(&broker->sessions, fds[1], read_slowly, &err), &err);
	cr_assert(eq(long, send(fds[0], "x", 1, 0), 1));
	return fds[0];
}

static void iterate(void)
{
	(void)uv_run(&broker->base.loop.uv, UV_RUN_NOWAIT);
}

Test(peer, of_several_users_each_waits_after_its_share)
{
	ask_as(FIRST);
	ask_as(FIRST);
	ask_as(SECOND);
	iterate();
	cr_expect(eq(u32, n_read[0], 1));
	cr_expect(eq(u32, n_read[1], 1));
	iterate();
	cr_expect(eq(u32, n_read[0], 2));
}

Test(peer, of_one_user_all_are_read_at_once)
{
	ask_as(getuid());
	ask_as(getuid());
	iterate();
	cr_expect(eq(u32, n_read[0], 2));
}

#ifdef FSDP_TEST_POINTS
/* Send two replies with a descriptor each, of which the kernel refuses one at
 * first, and receive both. */
static void reply_twice(const char *refused)
{
	const int client_fd = ask_as(getuid()), fd = STDIN_FILENO;
	char buffer[FRAME_HEADER_SIZE];

	setenv("FSDP_FAIL_AT", refused, 1);
	for (int i = 0; i < 2; i++)
		peer_reply(broker->sessions.peers, MESSAGE_PING, 0, 0, NULL, 0,
			   &fd, 1);
	for (int i = 0; i < 2; i++)
		while (recv(client_fd, buffer, sizeof(buffer), MSG_DONTWAIT) <
		       0)
			loop_step(&broker->base.loop.uv);
}

Test(peer, a_reply_that_the_kernel_refuses_is_logged)
{
	reply_twice("frame.send:1:109"); /* ETOOMANYREFS */
	cr_expect(broker->sessions.is_short_noted);
}

Test(peer, a_reply_that_the_kernel_refuses_after_it_waited_is_logged)
{
	reply_twice("frame.send:2:109");
	cr_expect(broker->sessions.is_short_noted);
}

Test(peer, replies_that_the_kernel_takes_are_not_logged)
{
	reply_twice("");
	cr_expect(not(broker->sessions.is_short_noted));
}
#endif
