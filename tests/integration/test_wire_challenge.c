/*
 * Tests kernels without SO_PEERPIDFD. A client must show that it is the process
 * that it claims to be.
 */
#include "proto/frame.h"
#include "proto/message.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/wire_repeat.h"
#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef FSDP_TEST_POINTS

static struct daemon daemon_;

static const struct request HELLO = {
	.kind = MESSAGE_HELLO,
	.hello = {.major = PROTOCOL_MAJOR},
};
static const struct request PING = {.kind = MESSAGE_PING};

static void teardown(void)
{
	daemon_stop(&daemon_);
}

static void setup_old_kernel(void)
{
	static const char *const env[] = {
		"FSDP_FAIL_AT=peer.pidfd:*:ENOPROTOOPT", NULL};
	const struct daemon_options options = {.env = env};

	daemon_start_with(&daemon_, &options);
}

CHECKED_SUITE(wire_challenge, setup_old_kernel, teardown, .timeout = 300);

static struct request challenged(struct wire *wire)
{
	cr_assert(zero(int, wire_call(wire, &HELLO)));
	cr_assert(wire->reply.hello.is_challenge);
	return (struct request){
		.kind = MESSAGE_CHALLENGE,
		.challenge = {.nonce = wire->reply.hello.nonce},
	};
}

Test(wire_challenge, the_correct_response_creates_a_session)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));
	struct request proof = challenged(wire);

	(void)wire_call(wire, &proof);
	cr_assert(eq(int, wire->frame.kind, MESSAGE_HELLO));
	wire_take_session(wire);
	cr_assert(zero(int, wire_call(wire, &PING)));
	wire_close(wire);
}

Test(wire_challenge, a_wrong_nonce_is_refused)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));
	struct request proof = challenged(wire);

	proof.challenge.nonce ^= 1;
	wire_send(wire, &proof);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPERM));
	wire_close(wire);
}

Test(wire_challenge, a_response_of_another_process_is_refused)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));
	struct request proof = challenged(wire);
	pid_t child = fork();

	if (child == 0) {
		wire_send(wire, &proof);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPERM));
	wire_close(wire);
}

Test(wire_challenge, a_request_other_than_the_response_is_refused)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));

	(void)challenged(wire);
	cr_assert(eq(int, wire_call(wire, &PING), -EPROTO));
	wire_close(wire);
}

#endif
