/*
 * Tests clients that do not read, or that hold much. Others are not affected.
 */
#include "broker/base/closer.h"
#include "broker/session/peer.h"
#include "tests/lib/linger.h"
#include "tests/lib/users.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

TestSuite(flood, .fini = users_stop, .timeout = 30);

/* Send the request until the socket is full. Returns how often. */
static int send_until_full(struct wire *wire, const struct request *request)
{
	struct frame frame = {.kind = request->kind};
	uint8_t *body;
	size_t size;
	int n = 0, r;

	cr_assert(zero(int, request_encode(request, &body, &size, NULL)));
	frame.body = body;
	frame.body_size = (uint32_t)size;
	do {
		frame.number = ++wire->number;
		r = frame_send(wire->fd, &frame, NULL);
		n += r == FRAME_OK;
	} while (r == FRAME_OK && n < 100000);
	wire->number--;
	cr_assert(eq(int, r, FRAME_AGAIN));
	free(body);
	return n;
}

static void check_flood(struct wire *alice, const struct request *request)
{
	struct wire *bob = open_as(getuid() == 0 ? BOB : ALICE);
	uint64_t first = alice->number + 1;
	int n = send_until_full(alice, request);

	/* Others are served, whatever is under way. */
	for (int i = 0; i < 20; i++)
		check_bob(bob);
	for (int i = 0; i < n; i++) {
		cr_assert(eq(int, wire_receive(alice), FRAME_OK));
		cr_assert(zero(int, alice->frame.code), "%s",
			  wire_sentence(alice));
		cr_assert(eq(u64, alice->frame.number, first + (uint64_t)i));
	}
	wire_goodbye(bob);
	wire_wait_status(alice, "own_queue_bytes", 16384);
}

Test(flood, of_requests_whose_answers_nobody_reads)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct wire *alice;

	users_start(NULL);
	alice = open_as(ALICE);
	check_flood(alice, &ping);
	wire_close(alice);
}

Test(flood, of_requests_whose_answers_bring_descriptors)
{
	struct tensor_place place;
	struct request chunk = {
		.kind = MESSAGE_CHUNK,
		.chunk = {.n_chunks = 1, .chunks = &place.chunk},
	};
	struct wire *alice;

	users_start(NULL);
	alice = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 64, NULL, 0, &place));
	check_flood(alice, &chunk);
	wire_close(alice);
}

/* Replies to parked requests come all at once, each with a descriptor. They are
 * charged until they are read, or can no longer be read. */
Test(flood, of_queued_descriptors_is_charged_and_given_back)
{
	static const char *const name = "test/a/";
	struct request get = {
		.kind = MESSAGE_BUNDLE_GET,
		.bundle_get = {.name = name, .timeout_ms = -1},
	};
	struct request begin = wire_begin_request(name, 0);
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8},
		.name = "test/a/x",
	};
	struct request alloc = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.timeout_ms = -1, .n_items = 1, .items = &item},
	};
	struct request commit = {.kind = MESSAGE_BUNDLE_COMMIT};
	struct wire *alice, *reader;

	users_start(NULL);
	alice = open_as(ALICE);
	reader = open_as(ALICE);
	for (int i = 0; i < 50; i++)
		wire_send(reader, &get);
	wire_wait_status(alice, "waiters", 50);
	wire_must(alice, wire_call(alice, &begin));
	commit.bundle_end.bundle = alice->reply.bundle.bundle;
	alloc.alloc.bundle = commit.bundle_end.bundle;
	wire_must(alice, wire_call(alice, &alloc));
	wire_must(alice, wire_call(alice, &commit));
	wire_wait_status(alice, "waiters", 0);
	cr_assert(gt(u64, wire_status(alice, "own_queue_bytes"),
		     2 * 16384 + 49 * 4096));
	for (int i = 0; i < 25; i++) {
		cr_assert(eq(int, wire_receive(reader), FRAME_OK));
		cr_assert(zero(int, reader->frame.code));
	}
	wire_close(reader);
	wire_wait_status(alice, "peers", 1);
	cr_assert(lt(u64, wire_status(alice, "own_queue_bytes"), 2 * 16384));
	wire_close(alice);
}

/* --- closing ------------------------------------------------------------- */

/* Send them with a request that no broker knows, so that the connection stays.
 * Consumes `fd`. */
static void send_fds(struct wire *wire, int fd, uint16_t n)
{
	int fds[FRAME_MAX_FDS];

	for (uint16_t i = 0; i < n; i++)
		fds[i] = fd;
	wire_send_body(wire, 60000, ++wire->number, "", 0, fds, n);
	close(fd);
}

static void receive_refusal(struct wire *wire)
{
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	cr_assert(lt(int, wire->frame.code, 0));
}

static bool has_answer(const struct wire *wire)
{
	struct pollfd pollfd = {.fd = wire->fd, .events = POLLIN};

	return poll(&pollfd, 1, 0) != 0;
}

static bool has_passrights(int sock_fd)
{
	socklen_t size = sizeof(int);
	int value;

	return getsockopt(sock_fd, SOL_SOCKET, SO_PASSRIGHTS, &value, &size) ==
	       0;
}

/* Send until the closer has so many to close that it refuses more. */
Test(flood, of_descriptors_that_cannot_be_closed_stops_their_sender_only)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct wire *alice, *root, *bob;
	int end;

	users_start(NULL);
	root = open_as(getuid());
	bob = open_bob();
	if (!bob)
		cr_skip_test("only root can be two users");
	alice = open_as(ALICE);
	/* The broker must make the last close. */
	kill(users_daemon.pid, SIGSTOP);
	send_fds(alice, make_lingering(&end), 1);
	kill(users_daemon.pid, SIGCONT);
	receive_refusal(alice);
	for (int n = 0; n < CLOSER_FULL; n += FRAME_MAX_FDS) {
		send_fds(alice, open("/dev/null", O_RDONLY | O_CLOEXEC),
			 FRAME_MAX_FDS);
		receive_refusal(alice);
	}
	cr_expect(gt(u64, wire_status(root, "closing"), CLOSER_FULL));
	wire_send(alice, &ping);
	check_bob(bob);
	cr_expect(zero(int, wire_call(root, &ping)));
	cr_expect(not(has_answer(alice)), "it is not read");
	close(end);
	cr_expect(eq(int, wire_receive(alice), FRAME_OK));
	cr_expect(zero(int, alice->frame.code));
	wire_wait_status(root, "closing", 0);
	wire_close(alice);
	wire_close(bob);
	wire_close(root);
}

/* Connections that are closed count, too, but they do not add up. */
Test(flood, of_connections_that_cannot_be_closed_is_refused)
{
	struct wire *root, *bob, *alice;
	int end;

	users_start(NULL);
	root = open_as(getuid());
	bob = open_bob();
	if (!bob)
		cr_skip_test("only root can be two users");
	alice = open_as(ALICE);
	kill(users_daemon.pid, SIGSTOP);
	send_fds(alice, make_lingering(&end), 1);
	kill(users_daemon.pid, SIGCONT);
	receive_refusal(alice);
	for (int i = 0; i < 2 * CLOSER_CROWDED; i++)
		wire_close(connect_as(ALICE));
	wire_wait_status(root, "peers", 3);
	cr_expect(ge(u64, wire_status(root, "closing"), CLOSER_CROWDED));
	if (has_passrights(root->fd))
		cr_expect(lt(u64, wire_status(root, "closing"),
			     2 * CLOSER_CROWDED));
	check_bob(bob);
	wire_goodbye(bob);
	bob = open_as(BOB);
	check_bob(bob);
	close(end);
	wire_wait_status(root, "closing", 0);
	wire_close(open_as(ALICE));
	wire_close(alice);
	wire_close(bob);
	wire_close(root);
}

/* --- bounded work -------------------------------------------------------- */

#define N_HELD 5000

/* A client that holds much does not make every list of clients long. */
Test(flood, of_holds_does_not_make_a_list_of_clients_long)
{
	struct request clients = {.kind = MESSAGE_CLIENTS};
	struct alloc_item items[200];
	struct request alloc = wire_alloc_request(items, 1);
	struct wire *alice, *hoarders[3];
	uint32_t n = 0, n_pages = 0;
	uint64_t n_held = 0;

	users_start(NULL);
	alice = open_as(ALICE);
	for (int i = 1; i < 200; i++)
		items[i] = items[0];
	alloc.alloc.n_items = 200;
	for (int i = 0; i < 3; i++) {
		hoarders[i] = open_as(ALICE);
		for (int j = 0; j < N_HELD / 200; j++)
			wire_must(hoarders[i], wire_call(hoarders[i], &alloc));
	}
	do {
		wire_must(alice, wire_call(alice, &clients));
		for (uint32_t i = 0; i < alice->reply.clients.n_items; i++)
			n_held += alice->reply.clients.items[i].n_slots;
		n += alice->reply.clients.n_items;
		clients.clients.cursor = alice->reply.clients.next_cursor;
		n_pages++;
	} while (clients.clients.cursor);
	cr_assert(eq(u32, n, 4));
	cr_assert(gt(u32, n_pages, 2));
	cr_assert(eq(u64, n_held, 3 * N_HELD), "over several pages each");
	for (int i = 0; i < 3; i++)
		wire_close(hoarders[i]);
	wire_close(alice);
}
