/*
 * The broker's side of the protocol, seen by a client that knows no manners:
 * raw frames over a real socket to a real fsdpd.
 */
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "shm/refs.h"
#include "tests/lib/daemon.h"
#include "tests/lib/memory.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 10000

/* One connection, and what it was last answered. */
struct wire {
	int fd;
	uint64_t number; /* of the last request */
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	int refs_fd, doorbell_fd;
	uint8_t buffer[FRAME_MAX_SIZE];
	struct frame frame;
	struct reply reply;
};

static struct daemon daemon_;

/* --- the raw client ------------------------------------------------------ */

static struct wire *wire_new(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct wire *wire = calloc(1, sizeof(*wire));

	strcpy(address.sun_path, daemon_socket(&daemon_));
	wire->refs_fd = wire->doorbell_fd = -1;
	wire->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	cr_assert(zero(int, connect(wire->fd, (struct sockaddr *)&address,
				    sizeof(address))));
	return wire;
}

static void wire_free(struct wire *wire)
{
	frame_close_fds(&wire->frame);
	reply_deinit(&wire->reply);
	close(wire->fd);
	if (wire->refs_fd >= 0) {
		close(wire->refs_fd);
		close(wire->doorbell_fd);
	}
	free(wire);
}

/* FRAME_OK with `wire->frame` (and, if it has one, the decoded reply), or
 * FRAME_EOF. */
static int receive(struct wire *wire)
{
	struct pollfd pollfd = {.fd = wire->fd, .events = POLLIN};
	struct error err = ERROR_NULL;
	int r;

	frame_close_fds(&wire->frame);
	reply_deinit(&wire->reply);
	cr_assert(eq(int, poll(&pollfd, 1, PATIENCE_MS), 1), "no answer");
	wire->frame = (struct frame){0};
	wire->reply = (struct reply){0};
	r = frame_recv(wire->fd, wire->buffer, &wire->frame, NULL, &err);
	if (r != FRAME_OK || wire->frame.kind == 0 ||
	    wire->frame.kind > MESSAGE_MAX)
		return r;
	r = reply_decode(wire->frame.kind, wire->frame.code, wire->frame.body,
			 wire->frame.body_size, &wire->reply, &err);
	cr_assert(zero(int, r), "%s", err.msg);
	return FRAME_OK;
}

static void send_body(struct wire *wire, uint16_t kind, const void *body,
		      size_t size, const int *fds, uint16_t n_fds)
{
	struct frame frame = {.kind = kind,
			      .number = wire->number,
			      .answered = 0,
			      .body = body,
			      .body_size = (uint32_t)size,
			      .n_fds = n_fds};

	for (uint16_t i = 0; i < n_fds; i++)
		frame.fds[i] = fds[i];
	cr_assert(eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
}

/* Send under the number that `wire` has now. */
static void send_again(struct wire *wire, const struct request *request,
		       const int *fds, uint16_t n_fds)
{
	uint8_t *body;
	size_t size;

	cr_assert(zero(int, request_encode(request, &body, &size, NULL)));
	send_body(wire, request->kind, body, size, fds, n_fds);
	free(body);
}

static void send_request(struct wire *wire, const struct request *request)
{
	wire->number++;
	send_again(wire, request, NULL, 0);
}

/* One round trip; gives the code. */
static int call(struct wire *wire, const struct request *request)
{
	send_request(wire, request);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	return wire->frame.code;
}

static const struct request HELLO = {
	.kind = MESSAGE_HELLO,
	.hello = {.major = PROTOCOL_MAJOR},
};
static const struct request PING = {.kind = MESSAGE_PING};

static void take_session(struct wire *wire)
{
	cr_assert(zero(int, wire->frame.code), "%s", wire->reply.sentence);
	cr_assert(eq(int, wire->frame.n_fds, 3));
	wire->session = wire->reply.hello.session;
	memcpy(wire->token, wire->reply.hello.token, TOKEN_SIZE);
	wire->refs_fd = wire->frame.fds[1];
	wire->doorbell_fd = wire->frame.fds[2];
	wire->frame.fds[1] = wire->frame.fds[2] = -1;
}

static struct wire *wire_open(void)
{
	struct wire *wire = wire_new();

	(void)call(wire, &HELLO);
	take_session(wire);
	return wire;
}

static struct request reconnect_hello(const struct wire *wire)
{
	struct request hello = HELLO;

	hello.hello.is_reconnect = true;
	hello.hello.session = wire->session;
	memcpy(hello.hello.token, wire->token, TOKEN_SIZE);
	return hello;
}

/* Come back to the session of `from` with these fds; gives the code. */
static int reconnect(struct wire *wire, const struct wire *from,
		     const struct request *hello, int refs_fd, int doorbell_fd)
{
	const int fds[] = {refs_fd, doorbell_fd};

	wire->number = from->number + 1;
	send_again(wire, hello, fds, 2);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	return wire->frame.code;
}

/* Makes a tensor of `n` bytes and publishes it. */
static struct tensor_place put(struct wire *wire, const char *name, int64_t n)
{
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {n}},
		.name = "",
	};
	struct request alloc = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .timeout_ms = -1,
			  .n_items = 1,
			  .items = &item},
	};
	struct publish_item publication = {.name = name};
	struct request publish = {
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = 1, .items = &publication},
	};
	const struct fsdp_device device = memory_device();
	struct tensor_place place;

	tensor_type_contiguous(&item.type);
	memcpy(alloc.alloc.device.bytes, device.uuid, sizeof(device.uuid));
	cr_assert(zero(int, call(wire, &alloc)), "%s", wire->reply.sentence);
	place = wire->reply.places.places[0];
	publication.ref = place.ref;
	cr_assert(zero(int, call(wire, &publish)), "%s", wire->reply.sentence);
	return place;
}

static struct request get_request(const char **name, int32_t timeout_ms)
{
	return (struct request){
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = timeout_ms, .n_names = 1, .names = name},
	};
}

/* What the broker counts the session's holds of `name` to be. */
static int64_t count_holds(struct wire *wire, const char *name)
{
	struct request who = {.kind = MESSAGE_WHO, .who = {.name = name}};

	cr_assert(zero(int, call(wire, &who)), "%s", wire->reply.sentence);
	for (uint32_t i = 0; i < wire->reply.who.n_holders; i++) {
		if (wire->reply.who.holders[i].session == wire->session)
			return wire->reply.who.holders[i].holds;
	}
	return 0;
}

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

TestSuite(wire, .init = setup, .fini = teardown, .timeout = 30);
TestSuite(wire_restart, .init = setup_supervised, .fini = teardown,
	  .timeout = 30);

/* --- hello --------------------------------------------------------------- */

Test(wire, another_major_version_is_refused_with_both_versions)
{
	struct wire *wire = wire_new();
	struct request hello = HELLO;

	hello.hello.major = PROTOCOL_MAJOR + 7;
	cr_assert(eq(int, call(wire, &hello), -EPROTO));
	cr_assert(not(zero(ptr, strstr(wire->reply.sentence, "8.0"))));
	cr_assert(not(zero(ptr, strstr(wire->reply.sentence, "1.0"))));
	cr_assert(eq(int, receive(wire), FRAME_EOF));
	wire_free(wire);
}

Test(wire, a_connection_begins_with_a_hello)
{
	struct wire *wire = wire_new();

	cr_assert(eq(int, call(wire, &PING), -EPROTO));
	cr_assert(eq(int, receive(wire), FRAME_EOF));
	wire_free(wire);
}

Test(wire, a_second_hello_is_refused)
{
	struct wire *wire = wire_open();

	cr_assert(eq(int, call(wire, &HELLO), -EPROTO));
	cr_assert(eq(int, receive(wire), FRAME_EOF));
	wire_free(wire);
}

Test(wire, a_hello_from_another_process_than_the_connecting_one_is_refused)
{
	struct wire *wire = wire_new();
	pid_t child = fork();

	if (child == 0) {
		send_request(wire, &HELLO);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPERM));
	wire_free(wire);
}

/* --- frames -------------------------------------------------------------- */

/* The connection breaks, the broker goes on. */
static void expect_dropped(struct wire *wire)
{
	struct wire *other = wire_open();

	while (receive(wire) == FRAME_OK)
		cr_assert(lt(int, wire->frame.code, 0));
	cr_assert(zero(int, call(other, &PING)));
	wire_free(other);
	wire_free(wire);
}

Test(wire, a_frame_shorter_than_its_header_costs_the_connection)
{
	struct wire *wire = wire_open();

	cr_assert(eq(int, (int)send(wire->fd, "FSD1", 4, 0), 4));
	expect_dropped(wire);
}

Test(wire, a_frame_of_another_protocol_costs_the_connection)
{
	struct wire *wire = wire_open();
	char junk[100];

	memset(junk, 'x', sizeof(junk));
	cr_assert(eq(int, (int)send(wire->fd, junk, sizeof(junk), 0), 100));
	expect_dropped(wire);
}

Test(wire, descriptors_where_none_are_expected_cost_the_connection)
{
	struct wire *wire = wire_open();
	int fds[FRAME_MAX_FDS];

	for (int i = 0; i < FRAME_MAX_FDS; i++)
		fds[i] = 0;
	wire->number++;
	send_again(wire, &PING, fds, FRAME_MAX_FDS);
	expect_dropped(wire);
}

Test(wire, an_unknown_kind_is_answered_and_the_connection_stays)
{
	struct wire *wire = wire_open();

	wire->number++;
	send_body(wire, MESSAGE_MAX + 1, "", 0, NULL, 0);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -ENOSYS));
	cr_assert(zero(int, call(wire, &PING)));
	wire_free(wire);
}

Test(wire, a_garbage_body_is_refused_and_the_connection_stays)
{
	struct wire *wire = wire_open();

	wire->number++;
	send_body(wire, MESSAGE_GET, "\xff\xff\xff", 3, NULL, 0);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EBADMSG));
	cr_assert(zero(int, call(wire, &PING)));
	wire_free(wire);
}

/* --- numbers
 * ------------------------------------------------------------------- */

Test(wire, a_repeated_number_is_answered_but_not_done_again)
{
	struct wire *wire = wire_open();
	const char *name = "test/a";
	struct request get = get_request(&name, 0);
	struct slot_ref first;

	put(wire, name, 100);
	cr_assert(zero(int, call(wire, &get)));
	first = wire->reply.places.places[0].ref;
	for (int i = 0; i < 3; i++) {
		send_again(wire, &get, NULL, 0);
		cr_assert(eq(int, receive(wire), FRAME_OK));
		cr_assert(zero(int, wire->frame.code));
		cr_assert(eq(u32, wire->reply.places.places[0].ref.slot,
			     first.slot));
	}
	/* The writer's and one. */
	cr_assert(eq(i64, count_holds(wire, name), 2));
	wire_free(wire);
}

Test(wire, a_repeated_number_of_another_kind_is_refused)
{
	struct wire *wire = wire_open();
	const char *name = "test/a";
	struct request get = get_request(&name, 0);

	put(wire, name, 100);
	send_again(wire, &get, NULL, 0);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPROTO));
	wire_free(wire);
}

Test(wire, more_unanswered_requests_than_the_window_are_fine_if_they_were_read)
{
	struct wire *wire = wire_open();
	const char *name = "test/a";
	struct request get = get_request(&name, 0);

	put(wire, name, 100);
	for (int i = 0; i < 200; i++)
		cr_assert(zero(int, call(wire, &get)), "%s",
			  wire->reply.sentence);
	cr_assert(eq(i64, count_holds(wire, name), 201));
	wire_free(wire);
}

Test(wire, a_number_that_the_client_called_answered_costs_the_connection)
{
	struct wire *wire = wire_open();
	struct frame frame = {.kind = MESSAGE_PING,
			      .number = 100,
			      .answered = 100,
			      .body = (const uint8_t *)""};

	cr_assert(eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(zero(int, wire->frame.code));
	frame.number = 99;
	frame.answered = 0;
	cr_assert(eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
	expect_dropped(wire);
}

/* --- quiet requests
 * -------------------------------------------------------------- */

static void send_quietly(struct wire *wire, const struct request *request)
{
	struct frame frame = {.kind = request->kind,
			      .number = wire->number,
			      .is_quiet = true};
	uint8_t *body;
	size_t size;

	cr_assert(zero(int, request_encode(request, &body, &size, NULL)));
	frame.body = body;
	frame.body_size = (uint32_t)size;
	cr_assert(eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
	free(body);
}

Test(wire, a_quiet_request_is_answered_only_with_a_refusal)
{
	struct wire *wire = wire_open();
	const char *name = "test/none";
	struct request get = get_request(&name, 0);

	wire->number++;
	send_quietly(wire, &PING);
	wire->number++;
	send_quietly(wire, &get);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(u64, wire->frame.number, wire->number));
	cr_assert(eq(int, wire->frame.code, -ENOENT));
	put(wire, name, 100);
	wire->number++;
	send_quietly(wire, &get);
	cr_assert(zero(int, call(wire, &PING)));
	cr_assert(eq(u64, wire->frame.number, wire->number));
	cr_assert(eq(i64, count_holds(wire, name), 2));
	wire_free(wire);
}

Test(wire, an_answer_that_was_read_stands_for_quiet_requests_before_it)
{
	struct wire *wire = wire_open();
	const char *name = "test/a";
	struct request get = get_request(&name, 0);

	put(wire, name, 100);
	for (int i = 0; i < 200; i++) {
		wire->number++;
		send_quietly(wire, &get);
		if (i % 40 == 39)
			cr_assert(zero(int, call(wire, &PING)));
	}
	cr_assert(eq(i64, count_holds(wire, name), 201));
	wire_free(wire);
}

Test(wire, a_quiet_request_that_comes_again_is_done_once)
{
	struct wire *wire = wire_open();
	const char *name = "test/a";
	struct request get = get_request(&name, 0);

	put(wire, name, 100);
	wire->number++;
	send_quietly(wire, &get);
	send_quietly(wire, &get);
	/* What is told from the record is told. */
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(u64, wire->frame.number, wire->number));
	cr_assert(zero(int, wire->frame.code));
	cr_assert(eq(i64, count_holds(wire, name), 2));
	wire_free(wire);
}

/* --- waiting
 * --------------------------------------------------------------------- */

Test(wire, a_parked_get_is_answered_when_the_name_comes)
{
	struct wire *reader = wire_open(), *writer = wire_open();
	const char *name = "test/late";
	struct request get = get_request(&name, -1);
	struct tensor_place place;

	send_request(reader, &get);
	place = put(writer, name, 100);
	cr_assert(eq(int, receive(reader), FRAME_OK));
	cr_assert(zero(int, reader->frame.code));
	cr_assert(eq(u32, reader->reply.places.places[0].ref.slot,
		     place.ref.slot));
	cr_assert(eq(int, reader->frame.n_fds, 1));
	wire_free(reader);
	wire_free(writer);
}

Test(wire, a_parked_get_times_out)
{
	struct wire *wire = wire_open();
	const char *name = "test/never";
	struct request get = get_request(&name, 20);

	cr_assert(eq(int, call(wire, &get), -ETIMEDOUT));
	cr_assert(zero(int, call(wire, &PING)));
	wire_free(wire);
}

/* --- unread descriptors
 * -------------------------------------------------------------- */

Test(wire, a_second_reply_with_descriptors_waits_until_the_first_was_read)
{
	struct wire *wire = wire_open();
	struct tensor_place place = put(wire, "test/a", 100);
	struct request chunk = {
		.kind = MESSAGE_CHUNK,
		.chunk = {.n_chunks = 1, .chunks = &place.chunk},
	};
	struct wire *other = wire_open();

	for (int i = 0; i < 8; i++)
		send_request(wire, &chunk);
	/* However long we do not read, the broker serves others. */
	cr_assert(zero(int, call(other, &PING)));
	for (int i = 0; i < 8; i++) {
		cr_assert(eq(int, receive(wire), FRAME_OK));
		cr_assert(zero(int, wire->frame.code));
		cr_assert(eq(u64, wire->frame.number,
			     wire->number - 7 + (uint64_t)i));
		cr_assert(eq(int, wire->frame.n_fds, 1));
	}
	wire_free(other);
	wire_free(wire);
}

/* --- coming back
 * ----------------------------------------------------------------------- */

Test(wire, a_reconnect_replays_what_was_done_with_the_chunk_it_lacks)
{
	struct wire *wire = wire_open(), *again = wire_new();
	const char *name = "test/a";
	struct request get = get_request(&name, 0);
	struct request hello;

	put(wire, name, 100);
	cr_assert(zero(int, call(wire, &get)));
	hello = reconnect_hello(wire);
	cr_assert(zero(int, reconnect(again, wire, &hello, wire->refs_fd,
				      wire->doorbell_fd)));
	cr_assert(eq(int, again->frame.n_fds, 0));
	/* The old connection is closed. */
	cr_assert(eq(int, receive(wire), FRAME_EOF));
	again->number = wire->number;
	again->session = wire->session;
	send_again(again, &get, NULL, 0);
	cr_assert(eq(int, receive(again), FRAME_OK));
	cr_assert(zero(int, again->frame.code));
	cr_assert(eq(int, again->frame.n_fds, 1));
	cr_assert(eq(u32, again->reply.places.n_chunks, 1));
	cr_assert(eq(i64, count_holds(again, name), 2));
	wire_free(again);
	wire_free(wire);
}

Test(wire, a_reconnect_without_descriptors_is_refused)
{
	struct wire *wire = wire_open(), *again = wire_new();
	struct request hello = reconnect_hello(wire);

	cr_assert(eq(int, call(again, &hello), -EPROTO));
	wire_free(again);
	wire_free(wire);
}

Test(wire, a_reconnect_with_a_wrong_token_is_refused)
{
	struct wire *wire = wire_open(), *again = wire_new();
	struct request hello = reconnect_hello(wire);

	hello.hello.token[TOKEN_SIZE - 1] ^= 1;
	cr_assert(eq(int,
		     reconnect(again, wire, &hello, wire->refs_fd,
			       wire->doorbell_fd),
		     -ESTALE));
	cr_assert(zero(int, call(wire, &PING)));
	wire_free(again);
	wire_free(wire);
}

Test(wire, a_reconnect_with_the_file_of_another_session_is_refused)
{
	struct wire *wire = wire_open(), *other = wire_open(),
		    *again = wire_new();
	struct request hello = reconnect_hello(wire);

	cr_assert(eq(int,
		     reconnect(again, wire, &hello, other->refs_fd,
			       wire->doorbell_fd),
		     -EPERM));
	cr_assert(zero(int, call(wire, &PING)));
	wire_free(again);
	wire_free(other);
	wire_free(wire);
}

Test(wire, goodbye_ends_the_session)
{
	struct wire *wire = wire_open(), *again = wire_new();
	struct request goodbye = {.kind = MESSAGE_GOODBYE};
	struct request hello = reconnect_hello(wire);

	cr_assert(zero(int, call(wire, &goodbye)));
	cr_assert(eq(int,
		     reconnect(again, wire, &hello, wire->refs_fd,
			       wire->doorbell_fd),
		     -ESTALE));
	wire_free(again);
	wire_free(wire);
}

Test(wire_restart, a_session_and_its_outcomes_outlive_the_broker)
{
	struct wire *wire = wire_open(), *again;
	const char *name = "test/a";
	struct request get = get_request(&name, 0);
	struct request hello = reconnect_hello(wire);

	put(wire, name, 100);
	cr_assert(zero(int, call(wire, &get)));
	daemon_kill_broker(&daemon_);
	cr_assert(eq(int, receive(wire), FRAME_EOF));
	again = wire_new();
	cr_assert(zero(int, reconnect(again, wire, &hello, wire->refs_fd,
				      wire->doorbell_fd)),
		  "%s", again->reply.sentence);
	cr_assert(eq(u64, again->frame.epoch, 2));
	again->number = wire->number;
	again->session = wire->session;
	send_again(again, &get, NULL, 0);
	cr_assert(eq(int, receive(again), FRAME_OK));
	cr_assert(zero(int, again->frame.code));
	cr_assert(eq(int, again->frame.n_fds, 1));
	cr_assert(eq(i64, count_holds(again, name), 2));
	wire_free(again);
	wire_free(wire);
}

Test(wire_restart, a_doorbell_that_is_none_is_refused)
{
	struct wire *wire = wire_open(), *again;
	struct request hello = reconnect_hello(wire);
	int semaphore = eventfd(1, EFD_SEMAPHORE | EFD_CLOEXEC);

	daemon_kill_broker(&daemon_);
	again = wire_new();
	cr_assert(
		eq(int,
		   reconnect(again, wire, &hello, wire->refs_fd, wire->refs_fd),
		   -EPROTO));
	wire_free(again);
	again = wire_new();
	cr_assert(eq(int,
		     reconnect(again, wire, &hello, wire->refs_fd, semaphore),
		     -EPROTO));
	wire_free(again);
	again = wire_new();
	cr_assert(zero(int, reconnect(again, wire, &hello, wire->refs_fd,
				      wire->doorbell_fd)));
	wire_free(again);
	close(semaphore);
	wire_free(wire);
}

#ifdef FSDP_TEST_POINTS

/* --- kernels without SO_PEERPIDFD
 * ------------------------------------------------------- */

static void setup_old_kernel(void)
{
	static const char *const env[] = {
		"FSDP_FAIL_AT=peer.pidfd:*:ENOPROTOOPT", NULL};
	const struct daemon_options options = {.env = env};

	daemon_start_with(&daemon_, &options);
}

TestSuite(wire_challenge, .init = setup_old_kernel, .fini = teardown,
	  .timeout = 30);

static struct request challenged(struct wire *wire)
{
	cr_assert(zero(int, call(wire, &HELLO)));
	cr_assert(wire->reply.hello.is_challenge);
	return (struct request){
		.kind = MESSAGE_CHALLENGE,
		.challenge = {.nonce = wire->reply.hello.nonce},
	};
}

Test(wire_challenge, the_right_answer_gives_a_session)
{
	struct wire *wire = wire_new();
	struct request proof = challenged(wire);

	(void)call(wire, &proof);
	cr_assert(eq(int, wire->frame.kind, MESSAGE_HELLO));
	take_session(wire);
	cr_assert(zero(int, call(wire, &PING)));
	wire_free(wire);
}

Test(wire_challenge, a_wrong_nonce_is_refused)
{
	struct wire *wire = wire_new();
	struct request proof = challenged(wire);

	proof.challenge.nonce ^= 1;
	send_request(wire, &proof);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPERM));
	wire_free(wire);
}

Test(wire_challenge, an_answer_from_another_process_is_refused)
{
	struct wire *wire = wire_new();
	struct request proof = challenged(wire);
	pid_t child = fork();

	if (child == 0) {
		send_request(wire, &proof);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	cr_assert(eq(int, receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPERM));
	wire_free(wire);
}

Test(wire_challenge, anything_but_the_answer_is_refused)
{
	struct wire *wire = wire_new();

	(void)challenged(wire);
	cr_assert(eq(int, call(wire, &PING), -EPROTO));
	wire_free(wire);
}

/* --- kill -9
 * ------------------------------------------------------------------------------
 */

static char token[] = "/tmp/fsdpd-token-XXXXXX";
static char kill_at[64], kill_token[64];

/* A broker that dies at `place` once the token is there. */
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

/* Ask for one more hold of a broker that is killed at `place` meanwhile; ask
 * again under the same number. */
static void get_from_mortal(const char *place)
{
	const char *name = "test/a";
	struct request get = get_request(&name, 0);
	struct wire *wire, *again;
	struct request hello;

	start_mortal(place);
	wire = wire_open();
	hello = reconnect_hello(wire);
	put(wire, name, 100);
	arm();
	send_request(wire, &get);
	while (receive(wire) == FRAME_OK)
		;
	again = wire_new();
	cr_assert(zero(int, reconnect(again, wire, &hello, wire->refs_fd,
				      wire->doorbell_fd)));
	again->number = wire->number;
	again->session = wire->session;
	send_again(again, &get, NULL, 0);
	cr_assert(eq(int, receive(again), FRAME_OK));
	cr_assert(zero(int, again->frame.code), "%s: %s", place,
		  again->reply.sentence);
	cr_assert(eq(i64, count_holds(again, name), 2), "%s", place);
	cr_assert(lt(int, access(token, F_OK), 0), "%s was not passed", place);
	wire_free(again);
	wire_free(wire);
	daemon_stop(&daemon_);
}

Test(wire_kill, a_get_counts_once_wherever_the_broker_dies, .timeout = 60)
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

/* Two adoptions that kill the broker; the third starts without them. */
Test(wire_kill, a_memory_that_kills_who_adopts_it_is_given_up, .timeout = 60)
{
	static const char *const env[] = {"FSDP_KILL_AT=adopt.slots", NULL};
	const struct daemon_options options = {.is_supervised = true,
					       .env = env};
	struct wire *wire, *again;
	struct request hello;

	daemon_start_with(&daemon_, &options);
	wire = wire_open();
	hello = reconnect_hello(wire);
	put(wire, "test/a", 100);
	daemon_kill_broker(&daemon_);
	again = wire_new();
	cr_assert(eq(int,
		     reconnect(again, wire, &hello, wire->refs_fd,
			       wire->doorbell_fd),
		     -ESTALE));
	wire_free(again);
	again = wire_open();
	put(again, "test/a", 100);
	wire_free(again);
	wire_free(wire);
	daemon_stop(&daemon_);
}

#endif
