/*
 * Tests sessions that reconnect, also to the next broker, and requests that are
 * sent again after their broker was killed.
 */
#include "proto/frame.h"
#include "proto/message.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/wire_repeat.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct daemon daemon_;

static const struct request PING = {.kind = MESSAGE_PING};

static void setup(void)
{
	daemon_start(&daemon_);
}

static void teardown(void)
{
	daemon_stop(&daemon_);
}

static void setup_supervised(void)
{
	daemon_start_supervised(&daemon_);
}

CHECKED_SUITE(wire_reconnect, setup, teardown, .timeout = 300);
CHECKED_SUITE(wire_restart, setup_supervised, teardown, .timeout = 300);

Test(wire_reconnect,
     a_reconnect_repeats_replies_with_the_chunks_that_are_missing)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)),
		    *again = wire_connect(daemon_socket(&daemon_));
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);
	struct request hello;

	repeat_put(wire, name, 100);
	cr_assert(zero(int, wire_call(wire, &get)));
	hello = wire_reconnect_hello(wire);
	cr_assert(zero(int, wire_reconnect(again, wire, &hello, wire->refs_fd,
					   wire->doorbell_fd)));
	cr_assert(eq(int, again->frame.n_fds, 0));
	/* The broker has closed the old connection. */
	cr_assert(eq(int, wire_receive(wire), FRAME_EOF));
	again->number = wire->number;
	again->session = wire->session;
	wire_resend(again, &get, NULL, 0);
	cr_assert(eq(int, wire_receive(again), FRAME_OK));
	cr_assert(zero(int, again->frame.code));
	cr_assert(eq(int, again->frame.n_fds, 1));
	cr_assert(eq(u32, again->reply.places.n_chunks, 1));
	cr_assert(eq(i64, wire_count_holds(again, name), 2));
	wire_close(again);
	wire_close(wire);
}

/* Send the get and another one, read the reply to the first, and reconnect. The
 * broker executes the second one when the client has read the first reply, but
 * before it knows that. Returns the new connection. */
static struct wire *lose_reply(struct wire *wire, const struct request *get)
{
	struct wire *again = wire_connect(daemon_socket(&daemon_));
	struct request hello = wire_reconnect_hello(wire);
	struct pollfd reply = {.fd = wire->fd, .events = POLLIN};
	int status;

	wire_send(wire, get);
	cr_assert(eq(int, poll(&reply, 1, -1), 1));
	cr_assert(zero(int, kill(daemon_.pid, SIGSTOP)));
	cr_assert(
		eq(int, waitpid(daemon_.pid, &status, WUNTRACED), daemon_.pid));
	wire_send(wire, get);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(zero(int, kill(daemon_.pid, SIGCONT)));
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(zero(int, wire->frame.code));
	cr_assert(zero(int, wire_reconnect(again, wire, &hello, wire->refs_fd,
					   wire->doorbell_fd)));
	again->number = wire->number;
	again->session = wire->session;
	memcpy(again->token, wire->token, TOKEN_SIZE);
	again->refs_fd = dup(wire->refs_fd);
	again->doorbell_fd = dup(wire->doorbell_fd);
	wire_close(wire);
	return again;
}

/* Libfsdp loses a reply if it can open no more descriptors. */
Test(wire_reconnect, a_lost_reply_is_repeated_also_in_a_full_window)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);
	int64_t n_holds = 0;

	cr_assert(zero(int, wire_put(wire, name, 100, NULL, NULL)));
	/* The window becomes full in each position of the two gets. */
	for (int i = 0; i < 2 * 64; i++) {
		wire = lose_reply(wire, &get);
		for (int k = 1; k >= 0; k--) {
			wire->number -= (uint64_t)k;
			wire_resend(wire, &get, NULL, 0);
			wire->number += (uint64_t)k;
			cr_assert(eq(int, wire_receive(wire), FRAME_OK));
			cr_assert(zero(int, wire->frame.code));
		}
		n_holds += 2;
		if (i == 64)
			n_holds += wire_call(wire, &get) == 0;
	}
	cr_expect(eq(i64, wire_count_holds(wire, name), n_holds));
	wire_close(wire);
}

Test(wire_reconnect, a_reconnect_without_descriptors_is_refused)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)),
		    *again = wire_connect(daemon_socket(&daemon_));
	struct request hello = wire_reconnect_hello(wire);

	cr_assert(eq(int, wire_call(again, &hello), -EPROTO));
	wire_close(again);
	wire_close(wire);
}

Test(wire_reconnect, a_reconnect_with_a_wrong_token_is_refused)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)),
		    *again = wire_connect(daemon_socket(&daemon_));
	struct request hello = wire_reconnect_hello(wire);

	hello.hello.token[TOKEN_SIZE - 1] ^= 1;
	cr_assert(eq(int,
		     wire_reconnect(again, wire, &hello, wire->refs_fd,
				    wire->doorbell_fd),
		     -ESTALE));
	cr_assert(zero(int, wire_call(wire, &PING)));
	wire_close(again);
	wire_close(wire);
}

Test(wire_reconnect, a_reconnect_with_the_file_of_another_session_is_refused)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)),
		    *other = repeat_open(daemon_socket(&daemon_)),
		    *again = wire_connect(daemon_socket(&daemon_));
	struct request hello = wire_reconnect_hello(wire);

	cr_assert(eq(int,
		     wire_reconnect(again, wire, &hello, other->refs_fd,
				    wire->doorbell_fd),
		     -EPERM));
	cr_assert(zero(int, wire_call(wire, &PING)));
	wire_close(again);
	wire_close(other);
	wire_close(wire);
}

Test(wire_reconnect, goodbye_ends_the_session)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)),
		    *again = wire_connect(daemon_socket(&daemon_));
	struct request goodbye = {.kind = MESSAGE_GOODBYE};
	struct request hello = wire_reconnect_hello(wire);

	cr_assert(zero(int, wire_call(wire, &goodbye)));
	cr_assert(eq(int,
		     wire_reconnect(again, wire, &hello, wire->refs_fd,
				    wire->doorbell_fd),
		     -ESTALE));
	wire_close(again);
	wire_close(wire);
}

/* A client that gives up while the broker does not answer closes its
 * connection, and connects again later. */
Test(wire_reconnect, a_session_whose_client_did_not_wait_for_it_ends)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)),
		    *early = wire_connect(daemon_socket(&daemon_));
	const struct request hello = {
		.kind = MESSAGE_HELLO,
		.hello = {.major = PROTOCOL_MAJOR},
	};
	struct pollfd closed = {.fd = early->fd};

	cr_assert(zero(int, shutdown(early->fd, SHUT_RD)));
	wire_send(early, &hello);
	while (poll(&closed, 1, -1) < 0 || !(closed.revents & POLLHUP))
		;
	cr_assert(eq(u64, wire_status(wire, "sessions"), 1));
	wire_close(early);
	wire_close(wire);
}

Test(wire_restart, a_session_and_its_recorded_replies_outlive_the_broker)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)), *again;
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);
	struct request hello = wire_reconnect_hello(wire);

	repeat_put(wire, name, 100);
	cr_assert(zero(int, wire_call(wire, &get)));
	daemon_kill_broker(&daemon_);
	cr_assert(eq(int, wire_receive(wire), FRAME_EOF));
	again = wire_connect(daemon_socket(&daemon_));
	cr_assert(zero(int, wire_reconnect(again, wire, &hello, wire->refs_fd,
					   wire->doorbell_fd)),
		  "%s", wire_sentence(again));
	cr_assert(eq(u64, again->frame.epoch, 2));
	again->number = wire->number;
	again->session = wire->session;
	wire_resend(again, &get, NULL, 0);
	cr_assert(eq(int, wire_receive(again), FRAME_OK));
	cr_assert(zero(int, again->frame.code));
	cr_assert(eq(int, again->frame.n_fds, 1));
	cr_assert(eq(i64, wire_count_holds(again, name), 2));
	wire_close(again);
	wire_close(wire);
}

Test(wire_restart, an_invalid_doorbell_is_refused)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_)), *again;
	struct request hello = wire_reconnect_hello(wire);
	int semaphore = eventfd(1, EFD_SEMAPHORE | EFD_CLOEXEC);

	daemon_kill_broker(&daemon_);
	again = wire_connect(daemon_socket(&daemon_));
	cr_assert(eq(int,
		     wire_reconnect(again, wire, &hello, wire->refs_fd,
				    wire->refs_fd),
		     -EPROTO));
	wire_close(again);
	again = wire_connect(daemon_socket(&daemon_));
	cr_assert(eq(
		int,
		wire_reconnect(again, wire, &hello, wire->refs_fd, semaphore),
		-EPROTO));
	wire_close(again);
	again = wire_connect(daemon_socket(&daemon_));
	cr_assert(zero(int, wire_reconnect(again, wire, &hello, wire->refs_fd,
					   wire->doorbell_fd)));
	wire_close(again);
	close(semaphore);
	wire_close(wire);
}

#ifdef FSDP_TEST_POINTS

/* --- kill -9 ------------------------------------------------------------- */

static char token[] = "/tmp/fsdpd-token-XXXXXX";
static char kill_at[64], kill_token[64];

/* Start a broker that dies at `place` once the token exists. */
static void start_mortal(const char *place)
{
	const char *const env[] = {kill_at, kill_token, NULL};
	const struct daemon_options options = {.is_supervised = true,
					       .env = env};

	close(mkstemp(token));
	unlink(token);
	snprintf(kill_at, sizeof(kill_at), "FSDP_KILL_AT=%s", place);
	snprintf(kill_token, sizeof(kill_token), "FSDP_KILL_TOKEN=%s", token);
	daemon_start_with(&daemon_, &options);
}

static void arm(void)
{
	close(open(token, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
}

/* Request one more hold from a broker that is killed at `place` meanwhile. Then
 * request it again under the same number. */
static void get_from_mortal(const char *place)
{
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);
	struct wire *wire, *again;
	struct request hello;

	start_mortal(place);
	wire = repeat_open(daemon_socket(&daemon_));
	hello = wire_reconnect_hello(wire);
	repeat_put(wire, name, 100);
	arm();
	wire_send(wire, &get);
	while (wire_receive(wire) == FRAME_OK)
		;
	again = wire_connect(daemon_socket(&daemon_));
	cr_assert(zero(int, wire_reconnect(again, wire, &hello, wire->refs_fd,
					   wire->doorbell_fd)));
	again->number = wire->number;
	again->session = wire->session;
	wire_resend(again, &get, NULL, 0);
	cr_assert(eq(int, wire_receive(again), FRAME_OK));
	cr_assert(zero(int, again->frame.code), "%s: %s", place,
		  wire_sentence(again));
	cr_assert(eq(i64, wire_count_holds(again, name), 2), "%s", place);
	cr_assert(lt(int, access(token, F_OK), 0), "%s was not passed", place);
	wire_close(again);
	wire_close(wire);
	daemon_stop(&daemon_);
}

Test(wire_kill, a_get_counts_once_if_the_broker_dies_at_any_failpoint,
     .timeout = 300)
{
	static const char *const places[] = {
		"grant.added",       "verb.get.done", "catalog.commit",
		"catalog.committed", "peer.send",     "verb.get.committed",
	};

	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		strcpy(token, "/tmp/fsdpd-token-XXXXXX");
		get_from_mortal(places[i]);
	}
}

/* Two adoptions kill the broker. The third starts without them. */
Test(wire_kill, state_whose_adoption_kills_the_broker_is_discarded,
     .timeout = 300)
{
	static const char *const env[] = {"FSDP_KILL_AT=adopt.slots", NULL};
	const struct daemon_options options = {.is_supervised = true,
					       .env = env};
	struct wire *wire, *again;
	struct request hello;

	daemon_start_with(&daemon_, &options);
	wire = repeat_open(daemon_socket(&daemon_));
	hello = wire_reconnect_hello(wire);
	repeat_put(wire, "test/a", 100);
	daemon_kill_broker(&daemon_);
	again = wire_connect(daemon_socket(&daemon_));
	cr_assert(eq(int,
		     wire_reconnect(again, wire, &hello, wire->refs_fd,
				    wire->doorbell_fd),
		     -ESTALE));
	wire_close(again);
	again = repeat_open(daemon_socket(&daemon_));
	repeat_put(again, "test/a", 100);
	wire_close(again);
	wire_close(wire);
	daemon_stop(&daemon_);
}

#endif
