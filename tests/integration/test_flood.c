/*
 * Tests clients that do not read their replies, or that hold many tensors.
 * Other clients must not be affected.
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
#include <sys/mman.h>
#include <unistd.h>

TestSuite(flood, .fini = users_stop, .timeout = 300);

/* Send the request until the socket is full. Returns how many requests were
 * sent. */
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

	/* The broker must serve Bob while it has Alice's requests. */
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

Test(flood, of_requests_whose_replies_are_not_read)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct wire *alice;

	users_start(NULL);
	alice = open_as(ALICE);
	check_flood(alice, &ping);
	wire_close(alice);
}

Test(flood, of_requests_whose_replies_have_descriptors)
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

/* The replies to parked requests are sent all at once, each with a descriptor.
 * Alice is charged for each until it is read or its connection is closed. */
Test(flood, of_queued_descriptors_is_charged_and_refunded)
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
	commit.bundle_commit.bundle = alice->reply.bundle.bundle;
	alloc.alloc.bundle = commit.bundle_commit.bundle;
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

/* The kernel limits how many of the broker's descriptors are unread, so Alice
 * is charged for those that stay in connections that the broker has ended. */
Test(flood, of_ended_connections_with_descriptors_is_charged)
{
	struct tensor_place place;
	struct request chunk = {
		.kind = MESSAGE_CHUNK,
		.chunk = {.n_chunks = 1, .chunks = &place.chunk},
	};
	struct wire *alice, *readers[3];

	users_start(NULL);
	alice = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 64, NULL, 0, &place));
	for (int i = 0; i < 3; i++) {
		readers[i] = open_as(ALICE);
		wire_send(readers[i], &chunk);
		wire_send_body(readers[i], MESSAGE_HELLO, 0, "", 0, NULL, 0);
	}
	wire_wait_status(alice, "peers", 1);
	/* She can still read from a socket that she shuts down. */
	shutdown(readers[1]->fd, SHUT_RDWR);
	shutdown(readers[2]->fd, SHUT_WR);
	cr_expect(eq(u64, wire_status(alice, "own_queue_bytes"), 4 * 16384));
	for (int i = 0; i < 2; i++) {
		cr_expect(eq(int, wire_receive(readers[i]), FRAME_OK));
		cr_expect(eq(u16, readers[i]->frame.n_fds, 1));
		cr_expect(eq(int, wire_receive(readers[i]), FRAME_OK));
		cr_expect(eq(int, wire_receive(readers[i]), FRAME_EOF));
		wire_close(readers[i]);
	}
	wire_wait_status(alice, "own_queue_bytes", 2 * 16384);
	users_stop(); /* while the third one is open */
	wire_close(readers[2]);
	wire_close(alice);
}

/* --- closing ------------------------------------------------------------- */

/* Send `n` descriptors with a request of unknown kind, which does not end the
 * connection. Consumes `fd`. */
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

/* A broker with clients of three users. The closer's thread for Alice is
 * blocked in the close of a lingering socket. */
struct siege {
	struct wire *root, *bob, *alice;
	int end; /* closing it unblocks the thread */
};

static void siege_begin(struct siege *siege)
{
	users_start(NULL);
	siege->root = open_as(getuid());
	siege->bob = open_bob();
	if (!siege->bob)
		cr_skip_test("only root can be two users");
	siege->alice = open_as(ALICE);
	/* The broker must make the last close. */
	kill(users_daemon.pid, SIGSTOP);
	send_fds(siege->alice, make_lingering(&siege->end), 1);
	kill(users_daemon.pid, SIGCONT);
	receive_refusal(siege->alice);
}

static void siege_end(struct siege *siege)
{
	wire_wait_status(siege->root, "closing", 0);
	wire_close(siege->alice);
	wire_close(siege->bob);
	wire_close(siege->root);
}

/* Alice gets so many descriptors to close that the broker accepts no more from
 * her. */
static void fill_closer(struct siege *siege)
{
	send_fds(siege->alice, open("/dev/null", O_RDONLY | O_CLOEXEC),
		 FRAME_MAX_FDS);
	receive_refusal(siege->alice);
	cr_expect(gt(u64, wire_status(siege->root, "closing"), CLOSER_FULL));
}

/* Wait until the broker has handled what it was sent before. Each reply comes
 * from another iteration of its loop, and the broker needs one iteration each
 * to accept, to read, and then to refuse. */
static void let_it_handle(struct wire *root)
{
	for (int i = 0; i < 4; i++)
		(void)wire_status(root, "closing");
}

/* Send a descriptor with an unknown request. Returns 0 or -errno. */
static int try_fd(int sock_fd, int fd)
{
	struct frame frame = {.kind = 60000, .n_fds = 1, .fds = {fd}};

	return frame_send(sock_fd, &frame, NULL);
}

Test(flood, of_descriptors_that_cannot_be_closed_stops_only_their_sender)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct siege siege;

	siege_begin(&siege);
	fill_closer(&siege);
	wire_send(siege.alice, &ping);
	check_bob(siege.bob);
	cr_expect(zero(int, wire_call(siege.root, &ping)));
	cr_expect(not(has_answer(siege.alice)), "it is not read");
	close(siege.end);
	cr_expect(eq(int, wire_receive(siege.alice), FRAME_OK));
	cr_expect(zero(int, siege.alice->frame.code));
	siege_end(&siege);
}

#define N_FILES   200
#define FILE_SIZE (1 << 20)

/* Send a socket that contains the last reference to a memory file, on a
 * connection of its own. The file's pages are freed when the broker has closed
 * it, and the returned pipe end shows that. */
static int send_memory(void)
{
	struct wire *wire = connect_as(ALICE);
	int fd = memfd_create("flood", MFD_CLOEXEC), pair[2], ends[2];

	cr_assert(zero(int, pipe2(ends, O_CLOEXEC)));
	cr_assert(zero(int, fallocate(fd, 0, 0, FILE_SIZE)));
	cr_assert(zero(int, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC,
				       0, pair)));
	cr_assert(zero(int, try_fd(pair[0], fd)));
	cr_assert(zero(int, try_fd(pair[0], ends[1])));
	(void)try_fd(wire->fd, pair[1]);
	close(fd);
	close(ends[1]);
	close(pair[0]);
	close(pair[1]);
	wire_close(wire);
	return ends[0];
}

static bool is_hung_up(int fd)
{
	struct pollfd pollfd = {.fd = fd};

	return poll(&pollfd, 1, 0) == 1;
}

/* Memory in sockets that the broker still has to close is not charged to a
 * user, because the broker cannot count the contents of a socket. So it must
 * refuse these descriptors. */
Test(flood, of_memory_in_sockets_is_limited_in_the_broker)
{
	struct siege siege;
	int ends[N_FILES], n_kept = 0;

	siege_begin(&siege);
	if (!has_passrights(siege.root->fd))
		cr_skip_test("the kernel cannot refuse descriptors");
	for (int i = 0; i < N_FILES; i++) {
		ends[i] = send_memory();
		let_it_handle(siege.root);
	}
	for (int i = 0; i < N_FILES; i++)
		n_kept += !is_hung_up(ends[i]);
	cr_expect(le(int, n_kept, CLOSER_FULL));
	check_bob(siege.bob);
	close(siege.end);
	siege_end(&siege);
	for (int i = 0; i < N_FILES; i++) {
		cr_expect(is_hung_up(ends[i]));
		close(ends[i]);
	}
}

/* Other users must still be able to send descriptors, which a reconnect
 * needs. */
Test(flood, of_descriptors_of_one_user_does_not_stop_those_of_others)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct siege siege;
	struct wire *wire;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	siege_begin(&siege);
	if (!has_passrights(siege.root->fd))
		cr_skip_test("the kernel cannot refuse descriptors");
	fill_closer(&siege);
	/* The broker does not read from Alice now, and makes the kernel refuse
	 * her descriptors. */
	wire_send(siege.alice, &ping);
	let_it_handle(siege.root);
	cr_expect(eq(int, try_fd(siege.alice->fd, fd), -EPERM));
	wire = connect_as(ALICE);
	let_it_handle(siege.root);
	cr_expect(eq(int, try_fd(wire->fd, fd), -EPERM));
	wire_close(wire);
	wire = connect_as(BOB);
	let_it_handle(siege.root);
	cr_expect(zero(int, try_fd(wire->fd, fd)));
	wire_close(wire);
	close(siege.end);
	cr_expect(eq(int, wire_receive(siege.alice), FRAME_OK));
	cr_expect(zero(int, try_fd(siege.alice->fd, fd)));
	receive_refusal(siege.alice);
	close(fd);
	siege_end(&siege);
}

#define N_PAUSED 20

/* The paused connections are resumed one after another. */
Test(flood, of_descriptors_is_followed_by_replies_to_all_paused_connections)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct wire *waiting[N_PAUSED];
	struct siege siege;

	siege_begin(&siege);
	for (int i = 0; i < N_PAUSED; i++)
		waiting[i] = open_as(ALICE);
	fill_closer(&siege);
	for (int i = 0; i < N_PAUSED; i++)
		wire_send(waiting[i], &ping);
	let_it_handle(siege.root);
	for (int i = 0; i < N_PAUSED; i++)
		cr_expect(not(has_answer(waiting[i])));
	/* Two paused connections are closed: the one that would be resumed
	 * first, and another one. */
	wire_close(waiting[0]);
	wire_close(waiting[N_PAUSED / 2]);
	close(siege.end);
	for (int i = 1; i < N_PAUSED; i++) {
		if (i == N_PAUSED / 2)
			continue;
		cr_expect(eq(int, wire_receive(waiting[i]), FRAME_OK));
		wire_close(waiting[i]);
	}
	siege_end(&siege);
}

/* Paused connections that send nothing must not keep the waiting one from its
 * reply. */
Test(flood, of_descriptors_is_followed_by_replies_despite_silent_connections)
{
	const struct request ping = {.kind = MESSAGE_PING};
	struct wire *silent[N_PAUSED], *waiting;
	struct siege siege;

	siege_begin(&siege);
	waiting = open_as(ALICE);
	fill_closer(&siege);
	for (int i = 0; i < N_PAUSED; i++)
		silent[i] = connect_as(ALICE);
	wire_wait_status(siege.root, "peers", 4 + N_PAUSED);
	wire_send(waiting, &ping);
	let_it_handle(siege.root);
	cr_expect(not(has_answer(waiting)));
	close(siege.end);
	cr_expect(eq(int, wire_receive(waiting), FRAME_OK));
	for (int i = 0; i < N_PAUSED; i++)
		wire_close(silent[i]);
	wire_close(waiting);
	siege_end(&siege);
}

/* Connections that are closed count, too. However many come, the number stays
 * limited. */
Test(flood, of_connections_that_cannot_be_closed_is_refused)
{
	struct siege siege;

	siege_begin(&siege);
	for (int i = 0; i < 2 * CLOSER_CROWDED; i++)
		wire_close(connect_as(ALICE));
	wire_wait_status(siege.root, "peers", 3);
	if (has_passrights(siege.root->fd))
		cr_expect(lt(u64, wire_status(siege.root, "closing"),
			     2 * CLOSER_CROWDED));
	else
		cr_expect(ge(u64, wire_status(siege.root, "closing"),
			     CLOSER_CROWDED));
	check_bob(siege.bob);
	wire_goodbye(siege.bob);
	siege.bob = open_as(BOB);
	check_bob(siege.bob);
	close(siege.end);
	wire_wait_status(siege.root, "closing", 0);
	wire_close(open_as(ALICE));
	siege_end(&siege);
}

/* Connections that are late are not watched. When the closer gets full
 * meanwhile, the ends of these must be noticed. */
Test(flood, of_descriptors_does_not_hide_the_ends_of_late_connections)
{
	struct alloc_item items[MESSAGE_MAX_ITEMS];
	struct request alloc = wire_alloc_request(items, 1);
	struct wire *late[N_PAUSED];
	int fds[FRAME_MAX_FDS], end;
	struct siege siege;

	siege_begin(&siege);
	for (int i = 1; i < MESSAGE_MAX_ITEMS; i++)
		items[i] = items[0];
	alloc.alloc.n_items = MESSAGE_MAX_ITEMS;
	for (int i = 0; i < N_PAUSED; i++)
		late[i] = open_as(ALICE);
	wire_must(siege.alice, wire_call(siege.alice, &alloc));
	kill(users_daemon.pid, SIGSTOP);
	/* These use up Alice's share of an iteration. */
	for (int i = 0; i < N_PAUSED / 2; i++)
		wire_send(late[i], &alloc);
	/* SIGSTOP ends a close that waits, so it needs another one. */
	fds[0] = make_lingering(&end);
	for (int i = 1; i < FRAME_MAX_FDS; i++)
		fds[i] = siege.root->fd;
	wire_send_body(siege.alice, 60000, ++siege.alice->number, "", 0, fds,
		       FRAME_MAX_FDS);
	close(fds[0]);
	for (int i = N_PAUSED / 2; i < N_PAUSED; i++)
		wire_close(late[i]);
	kill(users_daemon.pid, SIGCONT);
	wire_wait_status(siege.root, "peers", 3 + N_PAUSED / 2);
	cr_expect(gt(u64, wire_status(siege.root, "closing"), CLOSER_FULL));
	close(siege.end);
	close(end);
	receive_refusal(siege.alice);
	for (int i = 0; i < N_PAUSED / 2; i++) {
		cr_expect(eq(int, wire_receive(late[i]), FRAME_OK));
		wire_close(late[i]);
	}
	siege_end(&siege);
}

/* --- the loop ------------------------------------------------------------ */

#define N_GREEDY 24

static uint64_t received_value(const struct wire *wire, const char *name)
{
	const struct status_reply *status = &wire->reply.status;
	uint32_t i = 0;

	while (i < status->n_values &&
	       strcmp(status->values[i].name, name) != 0)
		i++;
	cr_assert(lt(u32, i, status->n_values));
	return status->values[i].value;
}

/* While the broker is stopped, Alice sends a large request on each of her
 * connections, and then Bob sends a small one. Bob must not be served last. */
Test(flood, of_long_requests_does_not_delay_short_ones_of_others)
{
	struct request status = {.kind = MESSAGE_STATUS};
	struct alloc_item items[MESSAGE_MAX_ITEMS];
	struct request alloc = wire_alloc_request(items, 1);
	struct wire *greedy[N_GREEDY], *bob;

	users_start(NULL);
	bob = open_bob();
	if (!bob)
		cr_skip_test("only root can be two users");
	for (int i = 1; i < MESSAGE_MAX_ITEMS; i++)
		items[i] = items[0];
	alloc.alloc.n_items = MESSAGE_MAX_ITEMS;
	for (int i = 0; i < N_GREEDY; i++)
		greedy[i] = open_as(ALICE);
	/* The first request makes the broker get the memory, so that later ones
	 * do not wait for it. */
	wire_must(greedy[0], wire_call(greedy[0], &alloc));
	kill(users_daemon.pid, SIGSTOP);
	for (int i = 0; i < N_GREEDY; i++)
		wire_send(greedy[i], &alloc);
	wire_send(bob, &status);
	kill(users_daemon.pid, SIGCONT);
	cr_assert(eq(int, wire_receive(bob), FRAME_OK));
	cr_expect(lt(u64, received_value(bob, "slots"),
		     N_GREEDY / 2 * MESSAGE_MAX_ITEMS));
	/* All requests of Alice are served, too. */
	for (int i = 0; i < N_GREEDY; i++) {
		cr_expect(eq(int, wire_receive(greedy[i]), FRAME_OK));
		cr_expect(zero(int, greedy[i]->frame.code));
		wire_close(greedy[i]);
	}
	wire_close(bob);
}

/* --- bounded work -------------------------------------------------------- */

#define N_HELD 5000

/* A client that holds much does not make every list of clients long. */
Test(flood, of_holds_does_not_lengthen_a_list_of_clients)
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
