/*
 * Tests the broker's side of the protocol. A client that breaks the rules sends
 * raw frames over a real socket to a real fsdpd.
 */
#include "proto/frame.h"
#include "proto/message.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/wire_repeat.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct daemon daemon_;

static const struct request HELLO = {
	.kind = MESSAGE_HELLO,
	.hello = {.major = PROTOCOL_MAJOR},
};
static const struct request PING = {.kind = MESSAGE_PING};

static void setup(void)
{
	daemon_start(&daemon_);
}

static void teardown(void)
{
	daemon_stop(&daemon_);
}

CHECKED_SUITE(wire, setup, teardown, .timeout = 300);

/* --- hello --------------------------------------------------------------- */

Test(wire, another_major_version_is_refused_with_both_versions)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));
	struct request hello = HELLO;

	hello.hello.major = PROTOCOL_MAJOR + 7;
	cr_assert(eq(int, wire_call(wire, &hello), -EPROTO));
	cr_assert(not(zero(ptr, strstr(wire_sentence(wire), "8.0"))));
	cr_assert(not(zero(ptr, strstr(wire_sentence(wire), "1.0"))));
	cr_assert(eq(int, wire_receive(wire), FRAME_EOF));
	wire_close(wire);
}

Test(wire, a_connection_must_start_with_a_hello)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));

	cr_assert(eq(int, wire_call(wire, &PING), -EPROTO));
	cr_assert(eq(int, wire_receive(wire), FRAME_EOF));
	wire_close(wire);
}

Test(wire, a_second_hello_is_refused)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));

	cr_assert(eq(int, wire_call(wire, &HELLO), -EPROTO));
	cr_assert(eq(int, wire_receive(wire), FRAME_EOF));
	wire_close(wire);
}

Test(wire, a_hello_of_another_process_than_the_connecting_one_is_refused)
{
	struct wire *wire = wire_connect(daemon_socket(&daemon_));
	pid_t child = fork();

	if (child == 0) {
		wire_send(wire, &HELLO);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPERM));
	wire_close(wire);
}

/* --- frames -------------------------------------------------------------- */

/* Check that the connection is closed, and that the broker continues. */
static void expect_dropped(struct wire *wire)
{
	struct wire *other = repeat_open(daemon_socket(&daemon_));

	while (wire_receive(wire) == FRAME_OK)
		cr_assert(lt(int, wire->frame.code, 0));
	cr_assert(zero(int, wire_call(other, &PING)));
	wire_close(other);
	wire_close(wire);
}

Test(wire, a_frame_shorter_than_its_header_closes_the_connection)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));

	cr_assert(eq(int, (int)send(wire->fd, "FSD1", 4, 0), 4));
	expect_dropped(wire);
}

Test(wire, a_frame_of_another_protocol_closes_the_connection)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	char junk[100];

	memset(junk, 'x', sizeof(junk));
	cr_assert(eq(int, (int)send(wire->fd, junk, sizeof(junk), 0), 100));
	expect_dropped(wire);
}

Test(wire, unexpected_descriptors_close_the_connection)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	int fds[FRAME_MAX_FDS];

	for (int i = 0; i < FRAME_MAX_FDS; i++)
		fds[i] = 0;
	wire->number++;
	wire_resend(wire, &PING, fds, FRAME_MAX_FDS);
	expect_dropped(wire);
}

Test(wire, an_unknown_kind_is_refused_and_the_connection_stays)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));

	wire->number++;
	wire_send_body(wire, MESSAGE_MAX + 1, wire->number, "", 0, NULL, 0);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -ENOSYS));
	cr_assert(zero(int, wire_call(wire, &PING)));
	wire_close(wire);
}

Test(wire, a_garbage_body_is_refused_and_the_connection_stays)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));

	wire->number++;
	wire_send_body(wire, MESSAGE_GET, wire->number, "\xff\xff\xff", 3, NULL,
		       0);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EBADMSG));
	cr_assert(zero(int, wire_call(wire, &PING)));
	wire_close(wire);
}

/* --- numbers ------------------------------------------------------------- */

Test(wire, a_repeated_request_gets_its_reply_but_is_not_done_again)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);
	struct slot_ref first;

	repeat_put(wire, name, 100);
	cr_assert(zero(int, wire_call(wire, &get)));
	first = wire->reply.places.places[0].ref;
	for (int i = 0; i < 3; i++) {
		wire_resend(wire, &get, NULL, 0);
		cr_assert(eq(int, wire_receive(wire), FRAME_OK));
		cr_assert(zero(int, wire->frame.code));
		cr_assert(eq(u32, wire->reply.places.places[0].ref.slot,
			     first.slot));
	}
	/* One hold is the writer's, one is ours. */
	cr_assert(eq(i64, wire_count_holds(wire, name), 2));
	wire_close(wire);
}

Test(wire, a_repeated_number_of_another_kind_is_refused)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);

	repeat_put(wire, name, 100);
	wire_resend(wire, &get, NULL, 0);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(int, wire->frame.code, -EPROTO));
	wire_close(wire);
}

Test(wire, more_requests_than_the_window_are_allowed_if_replies_were_read)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);

	repeat_put(wire, name, 100);
	for (int i = 0; i < 200; i++)
		cr_assert(zero(int, wire_call(wire, &get)), "%s",
			  wire_sentence(wire));
	cr_assert(eq(i64, wire_count_holds(wire, name), 201));
	wire_close(wire);
}

Test(wire, a_number_that_the_client_has_acknowledged_closes_the_connection)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	struct frame frame = {.kind = MESSAGE_PING,
			      .number = 100,
			      .answered = 100,
			      .body = (const uint8_t *)""};

	cr_assert(eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(zero(int, wire->frame.code));
	frame.number = 99;
	frame.answered = 0;
	cr_assert(eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
	expect_dropped(wire);
}

/* --- one-way requests ---------------------------------------------------- */

static void send_one_way(struct wire *wire, const struct request *request)
{
	struct frame frame = {.kind = request->kind,
			      .number = wire->number,
			      .is_one_way = true};
	uint8_t *body;
	size_t size;

	cr_assert(zero(int, request_encode(request, &body, &size, NULL)));
	frame.body = body;
	frame.body_size = (uint32_t)size;
	cr_assert(eq(int, frame_send(wire->fd, &frame, NULL), FRAME_OK));
	free(body);
}

Test(wire, a_one_way_request_gets_a_reply_only_if_it_is_refused)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/none";
	struct request get = wire_get_request(&name, 0);

	wire->number++;
	send_one_way(wire, &PING);
	wire->number++;
	send_one_way(wire, &get);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(u64, wire->frame.number, wire->number));
	cr_assert(eq(int, wire->frame.code, -ENOENT));
	repeat_put(wire, name, 100);
	wire->number++;
	send_one_way(wire, &get);
	cr_assert(zero(int, wire_call(wire, &PING)));
	cr_assert(eq(u64, wire->frame.number, wire->number));
	cr_assert(eq(i64, wire_count_holds(wire, name), 2));
	wire_close(wire);
}

Test(wire, a_reply_that_was_read_acknowledges_earlier_one_way_requests)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);

	repeat_put(wire, name, 100);
	/* Libfsdp sends at most 16 without waiting for a reply. */
	for (int i = 0; i < 200; i++) {
		wire->number++;
		send_one_way(wire, &get);
		if (i % 16 == 15)
			cr_assert(zero(int, wire_call(wire, &PING)));
	}
	cr_assert(eq(i64, wire_count_holds(wire, name), 201));
	wire_close(wire);
}

Test(wire, a_repeated_one_way_request_is_done_once)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/a";
	struct request get = wire_get_request(&name, 0);

	repeat_put(wire, name, 100);
	wire->number++;
	send_one_way(wire, &get);
	send_one_way(wire, &get);
	/* The request was sent twice, but its recorded reply is sent once. */
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(eq(u64, wire->frame.number, wire->number));
	cr_assert(zero(int, wire->frame.code));
	cr_assert(eq(i64, wire_count_holds(wire, name), 2));
	wire_close(wire);
}

/* --- waiting ------------------------------------------------------------- */

Test(wire, a_parked_get_gets_its_reply_when_the_name_is_published)
{
	struct wire *reader = repeat_open(daemon_socket(&daemon_)),
		    *writer = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/late";
	struct request get = wire_get_request(&name, -1);
	struct tensor_place place;

	wire_send(reader, &get);
	place = repeat_put(writer, name, 100);
	cr_assert(eq(int, wire_receive(reader), FRAME_OK));
	cr_assert(zero(int, reader->frame.code));
	cr_assert(eq(u32, reader->reply.places.places[0].ref.slot,
		     place.ref.slot));
	cr_assert(eq(int, reader->frame.n_fds, 1));
	wire_close(reader);
	wire_close(writer);
}

Test(wire, a_parked_get_times_out)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	const char *name = "test/never";
	struct request get = wire_get_request(&name, 20);

	cr_assert(eq(int, wire_call(wire, &get), -ETIMEDOUT));
	cr_assert(zero(int, wire_call(wire, &PING)));
	wire_close(wire);
}

/* --- unread descriptors -------------------------------------------------- */

Test(wire, a_second_reply_with_descriptors_waits_until_the_first_was_read)
{
	struct wire *wire = repeat_open(daemon_socket(&daemon_));
	struct tensor_place place = repeat_put(wire, "test/a", 100);
	struct request chunk = {
		.kind = MESSAGE_CHUNK,
		.chunk = {.n_chunks = 1, .chunks = &place.chunk},
	};
	struct wire *other = repeat_open(daemon_socket(&daemon_));

	for (int i = 0; i < 8; i++)
		wire_send(wire, &chunk);
	/* The broker serves others, however long this client does not read. */
	cr_assert(zero(int, wire_call(other, &PING)));
	for (int i = 0; i < 8; i++) {
		cr_assert(eq(int, wire_receive(wire), FRAME_OK));
		cr_assert(zero(int, wire->frame.code));
		cr_assert(eq(u64, wire->frame.number,
			     wire->number - 7 + (uint64_t)i));
		cr_assert(eq(int, wire->frame.n_fds, 1));
	}
	wire_close(other);
	wire_close(wire);
}
