/*
 * Tests that each limit is exact, is named in its refusal, does not affect
 * other users, and is restored.
 */
#include "client/fsdp.h"
#include "tests/lib/memory.h"
#include "tests/lib/users.h"
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(quota, .fini = users_stop, .timeout = 300);

static struct request named_get(const char *const *name, int32_t timeout_ms)
{
	return (struct request){
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = timeout_ms,
			.n_names = 1,
			.names = (const char **)(uintptr_t)name},
	};
}

Test(quota, of_bytes)
{
	/* The size of every tensor is rounded up to a multiple of this. */
	const int64_t line = are_on_devices() ? 512 : 64;
	struct tensor_place big, small;
	struct wire *alice, *bob;

	users_start("[quota]\nquota_bytes = 1M\nquota_device_bytes = 1M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	if (!bob)
		cr_skip_test("root has memory_max, and we are one user");
	wire_must(alice, wire_alloc(alice, MIB - line, NULL, 0, &big));
	wire_must(alice, wire_alloc(alice, 1, NULL, 0, &small));
	cr_assert(eq(int, wire_alloc(alice, 0, NULL, 0, NULL), -EDQUOT));
	wire_says(alice, "1048576");
	wire_says(alice,
		  are_on_devices() ? "quota_device_bytes" : "quota_bytes");
	cr_assert(eq(int, wire_alloc(alice, MIB + 1, NULL, -1, NULL), -EDQUOT));
	wire_says(alice, are_on_devices() ? "1049088" : "1048640");
	check_bob(bob);
	wire_must(alice, wire_release(alice, &big.ref));
	wire_must(alice, wire_release(alice, &small.ref));
	cr_assert(zero(u64, wire_status(alice, "own_bytes")));
	wire_must(alice, wire_alloc(alice, MIB, NULL, 0, NULL));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_tensors)
{
	struct tensor_place places[3];
	struct wire *alice, *bob;

	users_start("[quota]\nquota_slots = 3\n");
	alice = open_as(ALICE);
	bob = open_bob();
	for (int i = 0; i < 3; i++)
		wire_must(alice, wire_alloc(alice, 64, NULL, 0, &places[i]));
	cr_assert(eq(int, wire_alloc(alice, 64, NULL, 0, NULL), -EDQUOT));
	wire_says(alice, "has 3 tensors");
	wire_says(alice, "quota_slots");
	check_bob(bob);
	for (int i = 0; i < 3; i++)
		wire_must(alice, wire_release(alice, &places[i].ref));
	cr_assert(zero(u64, wire_status(alice, "own_slots")));
	wire_must(alice, wire_alloc(alice, 64, NULL, 0, NULL));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_tensors_does_not_change_a_channel)
{
	struct request request = {
		.kind = MESSAGE_CHANNEL_OPEN,
		.channel_open = {.name = "a/channel",
				 .access = {.gid = GID_DEFAULT},
				 .capacity = 64,
				 .n_slots = 3,
				 .role = CHANNEL_PRODUCER,
				 .writes = true,
				 .timeout_ms = -1,
				 .knows_limit = true}};
	struct wire *alice;
	uint64_t id;

	users_start("[quota]\nquota_slots = 4\n");
	alice = open_as(ALICE);
	wire_must(alice, wire_call(alice, &request));
	id = alice->reply.channel.channel;
	request = (struct request){.kind = MESSAGE_CHANNEL_RESIZE,
				   .channel_resize = {id, 0, 5, 0}};
	cr_assert(eq(int, wire_call(alice, &request), -EDQUOT));
	wire_says(alice, "quota_slots");
	cr_assert(eq(u64, wire_status(alice, "own_slots"), 3));
	request.channel_resize.n_slots = 4;
	wire_must(alice, wire_call(alice, &request));
	cr_assert(eq(u64, wire_status(alice, "own_slots"), 4));
	request.channel_resize.n_slots = 1;
	wire_must(alice, wire_call(alice, &request));
	cr_assert(eq(u64, wire_status(alice, "own_slots"), 1));
	wire_close(alice);
}

static struct request join_alone(const char *name)
{
	return (struct request){
		.kind = MESSAGE_COMM_JOIN,
		.comm_join = {.name = name,
			      .access = {.gid = GID_DEFAULT},
			      .n_ranks = 1,
			      .n_shards = 1,
			      .timeout_ms = 60000,
			      .ttl_ms = 60000,
			      .n_inputs = 1},
	};
}

/* Returns the code of a request for the board of this communicator. */
static int ask_for_board(struct wire *wire, const char *name, uint64_t *ret_id)
{
	struct request request = join_alone(name);

	wire_must(wire, wire_call(wire, &request));
	*ret_id = wire->reply.comm.comm;
	request = (struct request){.kind = MESSAGE_COMM_BOARD,
				   .comm_board = {.comm = *ret_id}};
	return wire_call(wire, &request);
}

static void leave(struct wire *wire, uint64_t id)
{
	const struct request request = {.kind = MESSAGE_COMM_LEAVE,
					.comm_leave = {.comm = id}};

	wire_must(wire, wire_call(wire, &request));
}

/* Write to the file until it is full, and return how many bytes it has
 * allocated. */
static uint64_t fill_file(int fd)
{
	static const uint8_t bytes[65536] = {1};
	struct stat status;
	off_t at = 0;

	while (pwrite(fd, bytes, sizeof(bytes), at) == (ssize_t)sizeof(bytes))
		at += (off_t)sizeof(bytes);
	cr_assert(zero(int, fstat(fd, &status)));
	cr_assert(eq(u64, at, status.st_size), "it was filled");
	return (uint64_t)status.st_blocks * 512;
}

static void skip_on_devices(void)
{
	if (are_on_devices())
		cr_skip_test("boards are in host memory");
}

Test(quota, of_bytes_counts_boards_completely)
{
	struct wire *alice, *bob;
	uint64_t first, second, size;

	skip_on_devices();
	users_start("[quota]\nquota_bytes = 6M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	if (!bob)
		cr_skip_test("root has memory_max, and we are one user");
	wire_must(alice, ask_for_board(alice, "a/one", &first));
	size = fill_file(alice->frame.fds[0]);
	cr_assert(ge(u64, wire_status(alice, "own_bytes"), size));
	cr_assert(eq(u64, wire_status(alice, "own_bytes"), 4 * MIB));
	cr_assert(eq(u64, wire_status(alice, "board_bytes"), 4 * MIB));
	cr_assert(zero(u64, wire_status(bob, "board_bytes")));
	cr_assert(eq(int, wire_alloc(alice, 3 * MIB, NULL, 0, NULL), -EDQUOT));
	wire_says(alice, "quota_bytes");
	cr_assert(eq(int, ask_for_board(alice, "a/two", &second), -EDQUOT));
	wire_says(alice, "'a/two' work together: uid 61001 has 4194304 bytes");
	wire_says(alice, "quota_bytes");
	check_bob(bob);
	leave(alice, first);
	cr_assert(zero(u64, wire_status(alice, "own_bytes")));
	leave(alice, second);
	wire_must(alice, ask_for_board(alice, "a/two", &second));
	wire_close(bob);
	wire_close(alice);
}

/* A process with FSDP2 uses four communicators for each module that it
 * shards. */
Test(quota, of_communicators_reserves_some_for_other_connections)
{
	struct request request = join_alone("");
	char name[16];
	struct wire *alice, *bob;

	skip_on_devices();
	users_start("");
	alice = open_as(ALICE);
	request.comm_join.name = name;
	for (int i = 0; i < 2043; i++) {
		snprintf(name, sizeof(name), "a/%d", i);
		wire_must(alice, wire_call(alice, &request));
	}
	snprintf(name, sizeof(name), "a/more");
	cr_assert(eq(int, wire_call(alice, &request), -EMFILE));
	wire_says(alice, "this connection is in 2043 communicators");
	bob = open_as(ALICE);
	wire_must(bob, wire_call(bob, &request));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_bytes_evicts_tensors_for_a_board)
{
	struct wire *alice, *bob;
	struct tensor_place place;
	uint64_t id;

	skip_on_devices();
	users_start("[quota]\nquota_bytes = 6M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	if (!bob)
		cr_skip_test("root has memory_max, and we are one user");
	wire_must(alice, wire_alloc(alice, 5 * MIB, NULL, 0, &place));
	wire_must(alice, wire_publish(alice, &place.ref, "a/cached",
				      PUBLISH_EVICTABLE));
	wire_must(alice, wire_release(alice, &place.ref));
	wire_must(alice, ask_for_board(alice, "a/one", &id));
	cr_assert(eq(u64, wire_status(alice, "own_bytes"), 4 * MIB));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_sessions)
{
	struct wire *first, *second, *third, *bob;

	users_start("[quota]\nquota_sessions = 2\n");
	first = open_as(ALICE);
	second = open_as(ALICE);
	third = connect_as(ALICE);
	cr_assert(eq(int, wire_hello(third, 0), -EDQUOT));
	wire_says(third, "has 2 sessions");
	wire_close(third);
	bob = open_bob();
	check_bob(bob);
	wire_goodbye(second);
	second = open_as(ALICE);
	wire_close(second);
	wire_close(first);
	wire_close(bob);
}

/* The limit counts the sessions of all users together. Root can still connect
 * when other users cannot. */
Test(quota, of_sessions_reserves_some_for_administrators)
{
	struct wire *first, *second, *third;

	users_start("[quota]\nsessions_reserved = 4094\n");
	if (getuid() != 0)
		cr_skip_test("only root can be two users");
	first = open_as(ALICE);
	second = open_as(BOB);
	third = connect_as(ALICE);
	cr_assert(eq(int, wire_hello(third, 0), -EUSERS));
	wire_says(third, "for root and the admin group (sessions_reserved)");
	wire_close(third);
	third = open_as(0);
	wire_goodbye(third);
	wire_goodbye(second);
	second = open_as(ALICE);
	wire_close(second);
	wire_close(first);
}

/* Connects as Bob, whose process belongs to the administrators' group, too. */
static struct wire *open_as_admin(gid_t admin)
{
	gid_t own[64];
	int n = getgroups(64, own);
	struct wire *wire;

	cr_assert(ge(int, n, 0));
	cr_assert(zero(int, setgroups(1, &admin)));
	wire = open_as(BOB);
	cr_assert(zero(int, setgroups((size_t)n, own)));
	return wire;
}

Test(quota, of_sessions_reserves_some_for_the_admin_group)
{
	struct wire *first, *second, *third;

	users_start("[quota]\nsessions_reserved = 4094\n"
		    "[access]\nadmin_group = 61200\n");
	if (getuid() != 0)
		cr_skip_test("only root can be two users");
	first = open_as(ALICE);
	second = open_as(ALICE);
	third = connect_as(BOB);
	cr_assert(eq(int, wire_hello(third, 0), -EUSERS));
	wire_close(third);
	third = open_as_admin(61200);
	wire_close(third);
	wire_close(second);
	wire_close(first);
}

Test(quota, of_waiting_requests)
{
	static const char *const name = "test/never";
	struct request forever = named_get(&name, -1);
	struct wire *alice, *bob;

	users_start("[quota]\nquota_waiting = 2\n");
	alice = open_as(ALICE);
	bob = open_bob();
	wire_send(alice, &forever);
	wire_send(alice, &forever);
	cr_assert(eq(int, wire_call(alice, &forever), -EDQUOT));
	wire_says(alice, "has 2 waiting requests");
	cr_assert(eq(u64, wire_status(alice, "waiters"), 2));
	if (bob) {
		wire_send(bob, &forever);
		cr_assert(eq(u64, wire_status(bob, "waiters"), 3));
	}
	/* Waiting requests end with their connection. */
	wire_close(alice);
	alice = open_as(ALICE);
	wire_wait_status(alice, "waiters", bob ? 1 : 0);
	wire_send(alice, &forever);
	wire_send(alice, &forever);
	cr_assert(eq(int, wire_call(alice, &forever), -EDQUOT));
	wire_close(bob);
	wire_close(alice);
}

/* A connection uses 16 KiB of the limit. */
Test(quota, of_replies_limits_connections_without_a_hello)
{
	struct wire *alice, *silent[8], *bob;

	users_start("[quota]\nquota_queue = 64K\n");
	alice = open_as(ALICE);
	wire_wait_status(alice, "own_queue_bytes", 16384);
	for (int i = 0; i < 3; i++)
		silent[i] = connect_as(ALICE);
	wire_wait_status(alice, "peers", 4);
	silent[3] = connect_as(ALICE);
	cr_assert(eq(int, wire_receive(silent[3]), FRAME_EOF));
	bob = open_bob();
	check_bob(bob);
	for (int i = 0; i < 4; i++)
		wire_close(silent[i]);
	wire_wait_status(alice, "peers", bob ? 2 : 1);
	cr_assert(eq(u64, wire_status(alice, "own_queue_bytes"), 16384));
	wire_close(open_as(ALICE));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_replies_limits_recorded_replies)
{
	struct wire *alice, *bob;
	struct tensor_place place;
	static const char *const names[] = {"test/a", "test/a"};
	struct request get = named_get(names, 0);
	uint8_t *body;
	size_t size;
	int r = 0;

	users_start("[quota]\nquota_queue = 40K\n");
	alice = open_as(ALICE);
	bob = open_bob();
	get.get.n_names = 2;
	wire_must(alice, wire_put(alice, names[0], 64, NULL, &place));
	cr_assert(zero(int, request_encode(&get, &body, &size, NULL)));
	/* The client never acknowledges a reply. */
	for (int i = 0; i < 60 && r == 0; i++) {
		wire_send_body(alice, MESSAGE_GET, ++alice->number, body, size,
			       NULL, 0);
		cr_assert(eq(int, wire_receive(alice), FRAME_OK));
		r = alice->frame.code;
	}
	free(body);
	cr_assert(eq(int, r, -EDQUOT));
	wire_says(alice, "quota_queue");
	check_bob(bob);
	wire_must(alice, wire_get(alice, names[0], NULL));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_first_components)
{
	struct wire *alice, *bob;

	users_start("[quota]\nquota_prefixes = 2\n");
	alice = open_as(ALICE);
	wire_must(alice, wire_put(alice, "one/a", 64, NULL, NULL));
	wire_must(alice, wire_put(alice, "two/a", 64, NULL, NULL));
	cr_assert(eq(int, wire_put(alice, "three/a", 64, NULL, NULL), -EDQUOT));
	wire_says(alice, "owns 2 of at most 2");
	wire_says(alice, "three");
	wire_must(alice, wire_put(alice, "two/b", 64, NULL, NULL));
	bob = open_bob();
	if (bob)
		wire_must(bob, wire_put(bob, "three/a", 64, NULL, NULL));
	wire_close(bob);
	wire_close(alice);
}

/* The batch has three new first components, but the quota permits only two. */
Test(quota, of_first_components_is_not_used_up_by_a_refused_batch)
{
	static const char *const names[] = {"one/a", "two/a", "three/a"};
	struct publish_item items[3];
	struct request publish = {
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = 3, .items = items},
	};
	struct tensor_place places[3];
	struct wire *alice, *bob;

	users_start("[quota]\nquota_prefixes = 2\n");
	alice = open_as(ALICE);
	for (int i = 0; i < 3; i++) {
		wire_must(alice, wire_alloc(alice, 64, NULL, 0, &places[i]));
		items[i] = (struct publish_item){.ref = places[i].ref,
						 .name = names[i]};
	}
	cr_assert(eq(int, wire_call(alice, &publish), -EDQUOT));
	bob = open_bob();
	if (bob)
		wire_must(bob, wire_put(bob, "one/b", 64, NULL, NULL));
	wire_must(alice, wire_publish(alice, &places[1].ref, "two/a", 0));
	wire_must(alice, wire_publish(alice, &places[2].ref, "three/a", 0));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_chunks)
{
	struct access_class access = {.gid = GID_DEFAULT};
	struct wire *alice, *bob;

	users_start("[quota]\nquota_chunks = 2\n[memory]\nchunk_min = 2M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	for (access.mode = 0600; access.mode < 0604; access.mode += 2)
		wire_must(alice, wire_alloc(alice, 64, &access, 0, NULL));
	cr_assert(eq(int, wire_alloc(alice, 64, &access, 0, NULL), -EDQUOT));
	wire_says(alice, "has 2 chunks of memory");
	check_bob(bob);
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_grants)
{
	const struct access_class access = {.gid = GID_DEFAULT, .mode = 0644};
	struct wire *owner, *alice, *other;
	char name[32];

	users_start("[quota]\nquota_grants = 4\n");
	owner = open_bob();
	if (!owner)
		cr_skip_test("only root can be two users");
	alice = open_as(ALICE);
	other = open_as(ALICE);
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "test/%d", i);
		wire_must(owner, wire_put(owner, name, 64, &access, NULL));
	}
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "test/%d", i);
		wire_must(alice, wire_get(alice, name, NULL));
	}
	cr_assert(eq(int, wire_get(other, "test/0", NULL), -EDQUOT));
	wire_says(other, "has 4 grants");
	cr_assert(eq(int, wire_alloc(other, 64, NULL, 0, NULL), -EDQUOT));
	cr_assert(eq(u64, wire_status(other, "grants"), 8));
	/* When a session ends, its share of the quota is free again. */
	wire_goodbye(alice);
	wire_must(other, wire_get(other, "test/0", NULL));
	wire_close(other);
	wire_close(owner);
}

Test(quota, of_tickets)
{
	struct request ticket = {
		.kind = MESSAGE_TICKET,
		.ticket = {.n_uses = 1, .ttl_ms = 3600 * 1000},
	};
	struct request redeem = {.kind = MESSAGE_REDEEM};
	uint8_t id[1][TICKET_SIZE];
	struct tensor_place place;
	struct wire *alice;

	users_start("[quota]\nquota_tickets = 2\n");
	alice = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 64, NULL, 0, &place));
	ticket.ticket.ref = place.ref;
	for (int i = 0; i < 2; i++)
		wire_must(alice, wire_call(alice, &ticket));
	memcpy(id[0], alice->reply.ticket.ticket, TICKET_SIZE);
	cr_assert(eq(int, wire_call(alice, &ticket), -EDQUOT));
	wire_says(alice, "has 2 tickets");
	redeem.redeem.n_tickets = 1;
	redeem.redeem.tickets = id;
	wire_must(alice, wire_call(alice, &redeem));
	wire_must(alice, wire_call(alice, &ticket));
	wire_close(alice);
}

Test(quota, of_bundles)
{
	struct request begin = wire_begin_request("test/a/", 0);
	struct request abandon = {.kind = MESSAGE_BUNDLE_ABORT};
	struct wire *alice;

	users_start("[quota]\nquota_bundles = 2\n");
	alice = open_as(ALICE);
	for (int i = 0; i < 2; i++)
		wire_must(alice, wire_call(alice, &begin));
	abandon.bundle_abort.bundle = alice->reply.bundle.bundle;
	cr_assert(eq(int, wire_call(alice, &begin), -EDQUOT));
	wire_says(alice, "has 2 versions of bundles");
	wire_must(alice, wire_call(alice, &abandon));
	wire_must(alice, wire_call(alice, &begin));
	wire_close(alice);
}

/* A chunk may be larger than its tensors. But neither a hint nor many access
 * classes may make the broker take more memory than the user's quota. */
Test(quota, of_bytes_limits_memory_allocated_in_advance)
{
	struct request begin = wire_begin_request("test/a/", UINT64_C(1) << 40);
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8},
		.name = "test/a/x",
	};
	struct request alloc = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.timeout_ms = -1, .n_items = 1, .items = &item},
	};
	struct access_class access = {.gid = GID_DEFAULT};
	struct wire *alice;

	users_start("[memory]\nmemory_max = 512M\ndevice_memory_max = 512M\n"
		    "chunk_min = 8M\n"
		    "[quota]\nquota_bytes = 16M\nquota_device_bytes = 16M\n");
	alice = open_as(ALICE);
	wire_must(alice, wire_call(alice, &begin));
	alloc.alloc.bundle = alice->reply.bundle.bundle;
	wire_must(alice, wire_call(alice, &alloc));
	cr_assert(le(u64, wire_status(alice, "chunk_bytes"), 16 * MIB));
	for (access.mode = 0600; access.mode < 0610; access.mode += 2)
		wire_must(alice, wire_alloc(alice, 64, &access, -1, NULL));
	cr_assert(le(u64, wire_status(alice, "chunk_bytes"), 24 * MIB));
	wire_close(alice);
}

/* Register parameters with names of six letters. */
static int register_many(struct fsdp_comm *comm, const char *name)
{
	enum { N = 512 };
	struct fsdp_param_spec params[N];
	struct fsdp_group *group;
	char names[N][8];

	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "p%05d", i);
		params[i] = (struct fsdp_param_spec){
			.name = names[i], .spec = {FSDP_F32, 1, {1}}};
	}
	return fsdp_group_register(comm, name, params, N, NULL, &group);
}

Test(quota, of_groups_counts_their_parameters)
{
	struct fsdp_connect_options options;
	struct fsdp_client *client;
	struct fsdp_comm *comm;

	if (are_on_devices())
		cr_skip_test("the same on host memory");
	/* The communicator itself uses 6 of the 66. */
	users_start("[quota]\nquota_groups = 66\n");
	options = (struct fsdp_connect_options){
		.path = daemon_socket(&users_daemon)};
	cr_assert(zero(int, fsdp_connect(&options, &client)));
	cr_assert(zero(int, fsdp_comm_join(client, "test", 1, 0, NULL, &comm)),
		  "%s", fsdp_error());
	cr_assert(zero(int, register_many(comm, "l0")), "%s", fsdp_error());
	cr_expect(eq(int, register_many(comm, "l1"), -EDQUOT));
	cr_expect(ne(ptr, strstr(fsdp_error(), "quota_groups"), NULL), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_comm_leave(comm)));
	cr_assert(zero(int, fsdp_comm_remove(client, "test")));
	cr_assert(zero(int, fsdp_comm_join(client, "test", 1, 0, NULL, &comm)));
	cr_expect(zero(int, register_many(comm, "l1")), "%s", fsdp_error());
	fsdp_close(client);
}
