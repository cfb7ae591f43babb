/*
 * Tests requests for bundles that take long. Only the client that sent one
 * waits.
 */
#include "tests/lib/users.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

TestSuite(bundle_wait, .fini = users_stop, .timeout = 300);

static const struct request PING = {.kind = MESSAGE_PING};

static struct request end_request(uint16_t kind, uint64_t bundle)
{
	return (struct request){.kind = kind, .bundle_commit = {bundle}};
}

static uint64_t begin(struct wire *wire, const char *name)
{
	struct request request = wire_begin_request(name, 0);

	request.bundle_begin.flags = PUBLISH_REPLACE;
	wire_must(wire, wire_call(wire, &request));
	return wire->reply.bundle.bundle;
}

static struct tensor_place add(struct wire *wire, uint64_t bundle,
			       const char *name)
{
	struct alloc_item item;
	struct request request = wire_alloc_request(&item, 4096);

	item.name = name;
	request.alloc.bundle = bundle;
	wire_must(wire, wire_call(wire, &request));
	return wire->reply.places.places[0];
}

static bool has_answer(const struct wire *wire)
{
	struct pollfd pollfd = {.fd = wire->fd, .events = POLLIN};

	return poll(&pollfd, 1, 0) == 1;
}

/* Returns whether `quick` gets more than two replies before `slow` gets one.
 * One reply may be on its way when the request of `slow` arrives, and a second
 * one may be sent together with the reply to it. */
static bool is_passed(const struct wire *slow, struct wire *quick)
{
	for (int i = 0; i < 3; i++) {
		wire_must(quick, wire_call(quick, &PING));
		if (has_answer(slow))
			return false;
	}
	return true;
}

/* --- commit -------------------------------------------------------------- */

/* Put a page of the memory into a pipe, which keeps the page pinned. Returns
 * the pipe's read end. */
static int pin(int fd)
{
	void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	loff_t offset = 0;
	int ends[2];

	cr_assert(ne(ptr, map, MAP_FAILED));
	*(char *)map = 1;
	munmap(map, 4096);
	cr_assert(zero(int, pipe(ends)));
	cr_assert(eq(long, splice(fd, &offset, ends[1], NULL, 4096, 0), 4096));
	close(ends[1]);
	return ends[0];
}

/* The kernel retries for a while before it refuses to seal the memory. If the
 * test is too slow to observe that time, it commits again. */
Test(bundle_wait, other_clients_are_served_while_a_pinned_page_delays_a_commit)
{
	struct request commit;
	struct tensor_place place;
	struct wire *alice, *bob;
	bool is_seen = false;
	int fd, pipe_fd;

	users_start(NULL);
	alice = open_as(ALICE);
	bob = open_as(getuid() == 0 ? BOB : ALICE);
	commit = end_request(MESSAGE_BUNDLE_COMMIT, begin(alice, "m/"));
	place = add(alice, commit.bundle_commit.bundle, "m/a");
	fd = wire_chunk(alice, place.chunk);
	pipe_fd = pin(fd);
	for (int i = 0; i < 20 && !is_seen; i++) {
		wire_send(alice, &commit);
		is_seen = is_passed(alice, bob);
		cr_assert(eq(int, wire_receive(alice), FRAME_OK));
		cr_assert(eq(int, alice->frame.code, -EBUSY));
		wire_says(alice, "in a pipe");
	}
	cr_expect(is_seen, "the loop waited for the kernel");
	close(pipe_fd);
	wire_must(alice, wire_call(alice, &commit));
	close(fd);
	wire_close(alice);
	wire_close(bob);
}

/* --- large bundles ------------------------------------------------------- */

#define N_LARGE 65536

static void send_commit(struct wire *wire, const char *name)
{
	static struct alloc_item items[MESSAGE_MAX_ITEMS];
	static char names[MESSAGE_MAX_ITEMS][32];
	struct request alloc = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .bundle = begin(wire, name),
			  .timeout_ms = -1,
			  .n_items = MESSAGE_MAX_ITEMS,
			  .items = items},
	};
	struct request commit =
		end_request(MESSAGE_BUNDLE_COMMIT, alloc.alloc.bundle);

	for (int first = 0; first < N_LARGE; first += MESSAGE_MAX_ITEMS) {
		for (int i = 0; i < MESSAGE_MAX_ITEMS; i++) {
			snprintf(names[i], sizeof(names[i]), "%s%d", name,
				 first + i);
			items[i].type = (struct tensor_type){.dtype = DTYPE_U8};
			items[i].name = names[i];
		}
		wire_must(wire, wire_call(wire, &alloc));
	}
	wire_send(wire, &commit);
}

static void receive(struct wire *wire)
{
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	wire_must(wire, wire->frame.code);
}

Test(bundle_wait, other_clients_are_served_while_a_large_bundle_is_committed)
{
	struct wire *alice, *bob;
	bool is_seen = false;

	users_start(NULL);
	alice = open_as(ALICE);
	bob = open_as(getuid() == 0 ? BOB : ALICE);
	for (int i = 0; i < 8 && !is_seen; i++) {
		send_commit(alice, "m/");
		is_seen = is_passed(alice, bob);
		receive(alice);
	}
	cr_expect(is_seen, "the loop made the manifest");
	wire_close(alice);
	wire_close(bob);
}

/* The client that gets the bundle waits with its next request until all members
 * are granted. */
Test(bundle_wait, other_clients_are_served_while_a_large_bundle_is_granted)
{
	const struct request get = {.kind = MESSAGE_BUNDLE_GET,
				    .bundle_get = {.name = "m/"}};
	struct wire *alice, *bob;
	bool is_seen = false;

	users_start(NULL);
	alice = open_as(ALICE);
	bob = open_as(getuid() == 0 ? BOB : ALICE);
	send_commit(alice, "m/");
	receive(alice);
	for (int i = 0; i < 100 && !is_seen; i++) {
		wire_must(alice, wire_call(alice, &get));
		wire_send(alice, &PING);
		is_seen = is_passed(alice, bob);
		receive(alice);
	}
	cr_expect(is_seen, "the loop granted all of it");
	wire_close(alice);
	wire_close(bob);
}
