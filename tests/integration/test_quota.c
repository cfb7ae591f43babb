/*
 * Limits: each holds exactly, says what it is, is nobody else's business, and
 * is given back. Memory: what goes before an allocation is refused, and what
 * comes back to the kernel. Clients that do not read: others do not notice.
 *
 * One process plays several users by its effective uid, which is what the
 * kernel tells the broker.
 */
#include "proto/error.h"
#include "shm/refs.h"
#include "shm/table.h"
#include "tests/lib/daemon.h"
#include "tests/lib/wire.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALICE 61001
#define BOB   61002
#define MIB   (INT64_C(1) << 20)

static struct daemon daemon_;

/* --- the stage --------------------------------------------------------------
 */

static void start(const char *config)
{
	const struct daemon_options options = {.config = config};

	daemon_start_with(&daemon_, &options);
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
}

static void teardown(void)
{
	daemon_stop(&daemon_);
}

TestSuite(quota, .fini = teardown, .timeout = 30);
TestSuite(room, .fini = teardown, .timeout = 30);
TestSuite(flood, .fini = teardown, .timeout = 30);

/* A connection of this user; of ourselves if we cannot be others. */
static struct wire *connect_as(uid_t uid)
{
	bool is_root = getuid() == 0;
	struct wire *wire;

	if (is_root)
		cr_assert(zero(int, seteuid(uid)));
	wire = wire_connect(daemon_socket(&daemon_));
	if (is_root)
		cr_assert(zero(int, seteuid(0)));
	cr_assert(ne(ptr, wire, NULL));
	return wire;
}

static struct wire *open_as(uid_t uid)
{
	struct wire *wire = connect_as(uid);

	cr_assert(zero(int, wire_hello(wire, 0)), "%s", wire_sentence(wire));
	return wire;
}

/* Somebody else, who must not notice anything. NULL: we cannot be others. */
static struct wire *open_bob(void)
{
	return getuid() == 0 ? open_as(BOB) : NULL;
}

static void check_bob(struct wire *bob)
{
	struct tensor_place place;

	if (!bob)
		return;
	cr_assert(zero(int, wire_alloc(bob, 64, NULL, 0, &place)), "%s",
		  wire_sentence(bob));
	cr_assert(zero(int, wire_release(bob, &place.ref, 1)));
}

static void says(const struct wire *wire, const char *what)
{
	cr_assert(ne(ptr, strstr(wire_sentence(wire), what), NULL),
		  "\"%s\" does not say \"%s\"", wire_sentence(wire), what);
}

static void must(struct wire *wire, int r)
{
	cr_assert(zero(int, r), "%s", wire_sentence(wire));
}

static struct request named_get(const char *const *name, int32_t timeout_ms)
{
	return (struct request){
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = timeout_ms,
			.n_names = 1,
			.names = (const char **)(uintptr_t)name},
	};
}

/* --- quotas -----------------------------------------------------------------
 */

Test(quota, of_bytes)
{
	struct tensor_place big, small;
	struct wire *alice, *bob;

	start("[quota]\nquota_bytes = 1M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	if (!bob)
		cr_skip_test("root has memory_max, and we are one user");
	must(alice, wire_alloc(alice, MIB - 64, NULL, 0, &big));
	must(alice, wire_alloc(alice, 1, NULL, 0, &small));
	cr_assert(eq(int, wire_alloc(alice, 0, NULL, 0, NULL), -EDQUOT));
	says(alice, "1048576");
	says(alice, "quota_bytes");
	cr_assert(eq(int, wire_alloc(alice, MIB + 1, NULL, -1, NULL), -EDQUOT));
	says(alice, "1048640");
	check_bob(bob);
	must(alice, wire_release(alice, &big.ref, 1));
	must(alice, wire_release(alice, &small.ref, 1));
	cr_assert(zero(u64, wire_status(alice, "own_bytes")));
	must(alice, wire_alloc(alice, MIB, NULL, 0, NULL));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_tensors)
{
	struct tensor_place places[3];
	struct wire *alice, *bob;

	start("[quota]\nquota_slots = 3\n");
	alice = open_as(ALICE);
	bob = open_bob();
	for (int i = 0; i < 3; i++)
		must(alice, wire_alloc(alice, 64, NULL, 0, &places[i]));
	cr_assert(eq(int, wire_alloc(alice, 64, NULL, 0, NULL), -EDQUOT));
	says(alice, "has 3 tensors");
	says(alice, "quota_slots");
	check_bob(bob);
	for (int i = 0; i < 3; i++)
		must(alice, wire_release(alice, &places[i].ref, 1));
	cr_assert(zero(u64, wire_status(alice, "own_slots")));
	must(alice, wire_alloc(alice, 64, NULL, 0, NULL));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_sessions)
{
	struct wire *first, *second, *third, *bob;

	start("[quota]\nquota_sessions = 2\n");
	first = open_as(ALICE);
	second = open_as(ALICE);
	third = connect_as(ALICE);
	cr_assert(eq(int, wire_hello(third, 0), -EDQUOT));
	says(third, "has 2 sessions");
	wire_close(third);
	bob = open_bob();
	check_bob(bob);
	wire_goodbye(second);
	second = open_as(ALICE);
	wire_close(second);
	wire_close(first);
	wire_close(bob);
}

Test(quota, of_waiting_requests)
{
	static const char *const name = "test/never";
	struct request forever = named_get(&name, -1);
	struct wire *alice, *bob;

	start("[quota]\nquota_waiting = 2\n");
	alice = open_as(ALICE);
	bob = open_bob();
	wire_send(alice, &forever);
	wire_send(alice, &forever);
	cr_assert(eq(int, wire_call(alice, &forever), -EDQUOT));
	says(alice, "has 2 waiting requests");
	cr_assert(eq(u64, wire_status(alice, "waiters"), 2));
	if (bob) {
		wire_send(bob, &forever);
		cr_assert(eq(u64, wire_status(bob, "waiters"), 3));
	}
	/* The connection takes them with it. */
	wire_close(alice);
	alice = open_as(ALICE);
	wire_wait_status(alice, "waiters", bob ? 1 : 0);
	wire_send(alice, &forever);
	wire_send(alice, &forever);
	cr_assert(eq(int, wire_call(alice, &forever), -EDQUOT));
	wire_close(bob);
	wire_close(alice);
}

/* A connection costs 16 KiB of it. */
Test(quota, of_replies_bounds_silent_connections)
{
	struct wire *alice, *silent[8], *bob;

	start("[quota]\nquota_queue = 64K\n");
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

Test(quota, of_replies_bounds_what_is_remembered)
{
	struct wire *alice, *bob;
	struct tensor_place place;
	static const char *const names[] = {"test/a", "test/a"};
	struct request get = named_get(names, 0);
	uint8_t *body;
	size_t size;
	int r = 0;

	start("[quota]\nquota_queue = 40K\n");
	alice = open_as(ALICE);
	bob = open_bob();
	get.get.n_names = 2;
	must(alice, wire_put(alice, names[0], 64, NULL, &place));
	cr_assert(zero(int, request_encode(&get, &body, &size, NULL)));
	/* It never says that anything was answered. */
	for (int i = 0; i < 60 && r == 0; i++) {
		wire_send_body(alice, MESSAGE_GET, ++alice->number, body, size,
			       NULL, 0);
		cr_assert(eq(int, wire_receive(alice), FRAME_OK));
		r = alice->frame.code;
	}
	free(body);
	cr_assert(eq(int, r, -EDQUOT));
	says(alice, "quota_queue");
	check_bob(bob);
	must(alice, wire_get(alice, names[0], NULL));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_first_components)
{
	struct wire *alice, *bob;

	start("[quota]\nquota_prefixes = 2\n");
	alice = open_as(ALICE);
	must(alice, wire_put(alice, "one/a", 64, NULL, NULL));
	must(alice, wire_put(alice, "two/a", 64, NULL, NULL));
	cr_assert(eq(int, wire_put(alice, "three/a", 64, NULL, NULL), -EDQUOT));
	says(alice, "has 2 first components");
	says(alice, "three");
	must(alice, wire_put(alice, "two/b", 64, NULL, NULL));
	bob = open_bob();
	if (bob)
		must(bob, wire_put(bob, "three/a", 64, NULL, NULL));
	wire_close(bob);
	wire_close(alice);
}

/* Three new ones in a batch, of which two would be allowed. */
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

	start("[quota]\nquota_prefixes = 2\n");
	alice = open_as(ALICE);
	for (int i = 0; i < 3; i++) {
		must(alice, wire_alloc(alice, 64, NULL, 0, &places[i]));
		items[i] = (struct publish_item){.ref = places[i].ref,
						 .name = names[i]};
	}
	cr_assert(eq(int, wire_call(alice, &publish), -EDQUOT));
	bob = open_bob();
	if (bob)
		must(bob, wire_put(bob, "one/b", 64, NULL, NULL));
	must(alice, wire_publish(alice, &places[1].ref, "two/a", 0));
	must(alice, wire_publish(alice, &places[2].ref, "three/a", 0));
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_chunks)
{
	struct access_class access = {.gid = GID_DEFAULT};
	struct wire *alice, *bob;

	start("[quota]\nquota_chunks = 2\n[memory]\nchunk_min = 2M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	for (access.mode = 0600; access.mode < 0604; access.mode += 2)
		must(alice, wire_alloc(alice, 64, &access, 0, NULL));
	cr_assert(eq(int, wire_alloc(alice, 64, &access, 0, NULL), -EDQUOT));
	says(alice, "has 2 chunks of memory");
	check_bob(bob);
	wire_close(bob);
	wire_close(alice);
}

Test(quota, of_grants)
{
	const struct access_class access = {.gid = GID_DEFAULT, .mode = 0644};
	struct wire *owner, *alice, *other;
	char name[32];

	start("[quota]\nquota_grants = 4\n");
	owner = open_bob();
	if (!owner)
		cr_skip_test("only root can be two users");
	alice = open_as(ALICE);
	other = open_as(ALICE);
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "test/%d", i);
		must(owner, wire_put(owner, name, 64, &access, NULL));
	}
	for (int i = 0; i < 4; i++) {
		snprintf(name, sizeof(name), "test/%d", i);
		must(alice, wire_get(alice, name, NULL));
	}
	cr_assert(eq(int, wire_get(other, "test/0", NULL), -EDQUOT));
	says(other, "has 4 grants");
	cr_assert(eq(int, wire_alloc(other, 64, NULL, 0, NULL), -EDQUOT));
	cr_assert(eq(u64, wire_status(other, "grants"), 8));
	/* Whoever ends gives back. */
	wire_goodbye(alice);
	must(other, wire_get(other, "test/0", NULL));
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

	start("[quota]\nquota_tickets = 2\n");
	alice = open_as(ALICE);
	must(alice, wire_alloc(alice, 64, NULL, 0, &place));
	ticket.ticket.ref = place.ref;
	for (int i = 0; i < 2; i++)
		must(alice, wire_call(alice, &ticket));
	memcpy(id[0], alice->reply.ticket.ticket, TICKET_SIZE);
	cr_assert(eq(int, wire_call(alice, &ticket), -EDQUOT));
	says(alice, "has 2 tickets");
	redeem.redeem.n_tickets = 1;
	redeem.redeem.tickets = id;
	must(alice, wire_call(alice, &redeem));
	must(alice, wire_call(alice, &ticket));
	wire_close(alice);
}

static struct request begin_request(const char *name, uint64_t size_hint)
{
	return (struct request){
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name,
				 .access = {.gid = GID_DEFAULT},
				 .size_hint = size_hint},
	};
}

Test(quota, of_bundles)
{
	struct request begin = begin_request("test/a/", 0);
	struct request abandon = {.kind = MESSAGE_BUNDLE_ABORT};
	struct wire *alice;

	start("[quota]\nquota_bundles = 2\n");
	alice = open_as(ALICE);
	for (int i = 0; i < 2; i++)
		must(alice, wire_call(alice, &begin));
	abandon.bundle_end.bundle = alice->reply.bundle.bundle;
	cr_assert(eq(int, wire_call(alice, &begin), -EDQUOT));
	says(alice, "has 2 versions of bundles");
	must(alice, wire_call(alice, &abandon));
	must(alice, wire_call(alice, &begin));
	wire_close(alice);
}

/* A chunk may be larger than what is allocated in it, but no hint and no
 * number of access classes takes more memory than the user may have. */
Test(quota, of_bytes_bounds_what_is_taken_in_advance)
{
	struct request begin = begin_request("test/a/", UINT64_C(1) << 40);
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

	start("[memory]\nmemory_max = 512M\nchunk_min = 8M\n"
	      "[quota]\nquota_bytes = 16M\n");
	alice = open_as(ALICE);
	must(alice, wire_call(alice, &begin));
	alloc.alloc.bundle = alice->reply.bundle.bundle;
	must(alice, wire_call(alice, &alloc));
	cr_assert(le(u64, wire_status(alice, "chunk_bytes"), 16 * MIB));
	for (access.mode = 0600; access.mode < 0610; access.mode += 2)
		must(alice, wire_alloc(alice, 64, &access, -1, NULL));
	cr_assert(le(u64, wire_status(alice, "chunk_bytes"), 24 * MIB));
	wire_close(alice);
}

/* --- room -------------------------------------------------------------------
 */

/* No quota is in the way of what is about memory_max. */
static const char SMALL[] = "[memory]\nmemory_max = 16M\nchunk_min = 2M\n"
			    "warm_ms = 1h\n"
			    "[quota]\nquota_bytes = 1G\n";

Test(room, that_is_not_there_is_refused_with_figures)
{
	struct tensor_place place;
	struct wire *alice;

	start(SMALL);
	alice = open_as(ALICE);
	must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, &place));
	cr_assert(eq(int, wire_alloc(alice, 4 * MIB, NULL, 0, NULL), -ENOMEM));
	says(alice, "out of memory: 4 MiB");
	says(alice, "14 of memory_max's 16 MiB");
	must(alice, wire_alloc(alice, 2 * MIB, NULL, 0, NULL));
	must(alice, wire_release(alice, &place.ref, 1));
	must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, NULL));
	cr_assert(
		eq(int, wire_alloc(alice, 17 * MIB, NULL, -1, NULL), -ENOMEM));
	says(alice, "can never fit");
	wire_close(alice);
}

Test(room, is_made_by_evicting_what_nobody_holds)
{
	struct tensor_place held, other;
	struct wire *alice;

	start(SMALL);
	alice = open_as(ALICE);
	must(alice, wire_alloc(alice, 6 * MIB, NULL, 0, &held));
	must(alice,
	     wire_publish(alice, &held.ref, "test/held", PUBLISH_EVICTABLE));
	must(alice, wire_alloc(alice, 6 * MIB, NULL, 0, &other));
	must(alice,
	     wire_publish(alice, &other.ref, "test/other", PUBLISH_EVICTABLE));
	must(alice, wire_release(alice, &other.ref, 1));
	must(alice, wire_alloc(alice, 6 * MIB, NULL, 0, NULL));
	cr_assert(eq(u64, wire_status(alice, "evicted"), 1));
	cr_assert(eq(int, wire_get(alice, "test/other", NULL), -ENOENT));
	must(alice, wire_get(alice, "test/held", NULL));
	/* Held, it stays, and the next one is refused. */
	cr_assert(eq(int, wire_alloc(alice, 6 * MIB, NULL, 0, NULL), -ENOMEM));
	must(alice, wire_get(alice, "test/held", NULL));
	cr_assert(eq(u64, wire_status(alice, "evicted"), 1));
	wire_close(alice);
}

/* With the defaults a user's quota is all the memory there is. */
Test(room, in_a_quota_is_made_by_evicting_what_is_charged_to_it)
{
	struct tensor_place held;
	struct wire *alice, *bob;

	start("[memory]\nmemory_max = 64M\nchunk_min = 2M\n"
	      "[quota]\nquota_bytes = 8M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	if (!bob)
		cr_skip_test("only root can be two users");
	must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, &held));
	must(alice,
	     wire_publish(alice, &held.ref, "alice/cache", PUBLISH_EVICTABLE));
	must(alice, wire_release(alice, &held.ref, 1));
	must(bob, wire_alloc(bob, 4 * MIB, NULL, 0, &held));
	must(bob, wire_publish(bob, &held.ref, "bob/cache", PUBLISH_EVICTABLE));
	must(bob, wire_release(bob, &held.ref, 1));
	must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, NULL));
	must(alice, wire_get(alice, "alice/cache", &held));
	must(alice, wire_release(alice, &held.ref, 1));
	must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, NULL));
	cr_assert(eq(int, wire_get(alice, "alice/cache", NULL), -ENOENT));
	cr_assert(eq(int, wire_alloc(alice, 1, NULL, 0, NULL), -EDQUOT));
	must(bob, wire_get(bob, "bob/cache", NULL));
	wire_close(bob);
	wire_close(alice);
}

/* The session's own mappings of its file and of the table. */
static void open_files(const struct wire *wire, struct refs *ret_refs,
		       struct table *ret_table)
{
	int refs_fd = fcntl(wire->refs_fd, F_DUPFD_CLOEXEC, 3);
	int table_fd = fcntl(wire->table_fd, F_DUPFD_CLOEXEC, 3);
	struct error err = ERROR_NULL;

	cr_assert(zero(int, refs_open(ret_refs, refs_fd, REFS_CLIENT, &err)),
		  "%s", err.msg);
	cr_assert(zero(int, table_open(ret_table, table_fd, false, &err)), "%s",
		  err.msg);
}

/* Released, and the doorbell not yet rung: it is found before the refusal. */
Test(room, is_made_by_collecting_limbo)
{
	struct tensor_place place;
	struct table table;
	struct wire *alice;
	struct refs refs;

	start(SMALL);
	alice = open_as(ALICE);
	open_files(alice, &refs, &table);
	must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, &place));
	must(alice, wire_publish(alice, &place.ref, "", 0));
	cr_assert(eq(u64, wire_status(alice, "slots_limbo"), 1));
	cr_assert(eq(int, wire_alloc(alice, 4 * MIB, NULL, 0, NULL), -ENOMEM));
	cr_assert(refs_release(&refs, &table, place.ref.slot));
	cr_assert(eq(u64, wire_status(alice, "slots_limbo"), 1));
	must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, NULL));
	cr_assert(zero(u64, wire_status(alice, "slots_limbo")));
	table_close(&table);
	refs_close(&refs);
	wire_close(alice);
}

/* Hold and release a tensor in limbo as fast as can be. */
struct flicker {
	struct refs *refs;
	const struct table *table;
	uint32_t slot;
	atomic_bool is_over;
};

static void *do_flicker(void *data)
{
	struct flicker *it = data;

	while (!atomic_load(&it->is_over)) {
		refs_hold(it->refs, it->slot);
		(void)refs_release(it->refs, it->table, it->slot);
	}
	return NULL;
}

/* Looking for room for a view can free what is to be viewed: it was held when
 * the request was checked, and then not any more. */
static void view_what_flickers(struct wire *wire, struct flicker *it)
{
	struct alloc_item view = {
		.type = {.dtype = DTYPE_U8}, .is_view = true, .name = ""};
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.n_items = 1, .items = &view},
	};
	struct tensor_place place;
	pthread_t thread;
	int r = 0;

	must(wire, wire_alloc(wire, 64, NULL, 0, &place));
	must(wire, wire_publish(wire, &place.ref, "", 0));
	view.base = place.ref;
	it->slot = place.ref.slot;
	it->is_over = false;
	(void)refs_release(it->refs, it->table, it->slot);
	cr_assert(zero(int, pthread_create(&thread, NULL, do_flicker, it)));
	for (int i = 0; i < 50 && r != -ESTALE; i++) {
		r = wire_call(wire, &request);
		cr_assert(r == -EINVAL || r == -EDQUOT || r == -ESTALE, "%s",
			  wire_sentence(wire));
	}
	atomic_store(&it->is_over, true);
	pthread_join(thread, NULL);
	/* Nobody holds it now, whether or not a call met the gap. */
	r = wire_call(wire, &request);
	cr_assert(r == -EINVAL || r == -ESTALE, "%s", wire_sentence(wire));
}

Test(room, for_a_view_is_not_made_of_what_it_views)
{
	struct flicker it = {0};
	struct table table;
	struct wire *alice;
	struct refs refs;

	start("[quota]\nquota_slots = 1\n");
	alice = open_as(ALICE);
	open_files(alice, &refs, &table);
	it.refs = &refs;
	it.table = &table;
	for (int i = 0; i < 100; i++)
		view_what_flickers(alice, &it);
	table_close(&table);
	refs_close(&refs);
	wire_close(alice);
}

static struct request alloc_request(struct alloc_item *item, int64_t size)
{
	*item = (struct alloc_item){
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {size}},
		.name = "",
	};
	tensor_type_contiguous(&item->type);
	return (struct request){
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .timeout_ms = -1,
			  .n_items = 1,
			  .items = item},
	};
}

Test(room, that_another_gives_back_goes_to_who_waits)
{
	struct alloc_item item;
	struct request alloc = alloc_request(&item, 8 * MIB);
	struct tensor_place place;
	struct wire *alice, *bob;

	start(SMALL);
	alice = open_as(ALICE);
	bob = getuid() == 0 ? open_as(BOB) : open_as(ALICE);
	must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, &place));
	wire_send(bob, &alloc);
	cr_assert(eq(u64, wire_status(alice, "waiters"), 1));
	must(alice, wire_release(alice, &place.ref, 1));
	cr_assert(eq(int, wire_receive(bob), FRAME_OK));
	cr_assert(zero(int, bob->frame.code), "%s", wire_sentence(bob));
	cr_assert(zero(u64, wire_status(alice, "waiters")));
	wire_close(bob);
	wire_close(alice);
}

Test(room, of_a_budget_holds_a_session_back_and_nobody_else)
{
	struct alloc_item item;
	struct request alloc = alloc_request(&item, MIB);
	struct tensor_place place;
	struct wire *alice, *other;

	start(SMALL);
	alice = connect_as(ALICE);
	must(alice, wire_hello(alice, 1 * MIB));
	other = open_as(ALICE);
	must(alice, wire_alloc(alice, MIB, NULL, 0, &place));
	cr_assert(eq(int, wire_alloc(alice, 1, NULL, 0, NULL), -EDQUOT));
	says(alice, "1048576 of its budget of 1048576 bytes");
	cr_assert(eq(int, wire_alloc(alice, MIB + 1, NULL, -1, NULL), -EDQUOT));
	wire_send(alice, &alloc);
	must(other, wire_alloc(other, MIB, NULL, 0, NULL));
	cr_assert(eq(u64, wire_status(other, "waiters"), 1));
	wire_send(alice, &(struct request){
				 .kind = MESSAGE_RELEASE,
				 .release = {.n_items = 1,
					     .items =
						     &(struct release_item){
							     .ref = place.ref,
							     .n_holds = 1,
						     }},
			 });
	for (int i = 0; i < 2; i++) {
		cr_assert(eq(int, wire_receive(alice), FRAME_OK));
		cr_assert(zero(int, alice->frame.code), "%s",
			  wire_sentence(alice));
	}
	wire_close(other);
	wire_close(alice);
}

/* --- memory goes back -------------------------------------------------------
 */

static uint64_t resident(int fd)
{
	struct stat status;

	cr_assert(zero(int, fstat(fd, &status)));
	return (uint64_t)status.st_blocks * 512;
}

/* The tensor's memory, for one process that will not unmap it. */
static uint8_t *map(struct wire *wire, const struct tensor_place *place,
		    int *ret_fd)
{
	struct stat status;
	uint8_t *at;

	*ret_fd = wire_chunk(wire, place->chunk);
	cr_assert(ge(int, *ret_fd, 0), "%s", wire_sentence(wire));
	cr_assert(zero(int, fstat(*ret_fd, &status)));
	at = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE,
		  MAP_SHARED, *ret_fd, 0);
	cr_assert(ne(ptr, at, MAP_FAILED));
	return at + place->offset;
}

Test(room, that_is_free_goes_back_to_the_kernel_and_what_is_held_stays)
{
	struct tensor_place going, staying;
	struct wire *alice;
	uint8_t *bytes;
	int fd;

	start("[memory]\nchunk_min = 16M\nwarm_ms = 20\n");
	alice = open_as(ALICE);
	must(alice, wire_alloc(alice, 8 * MIB, NULL, 0, &going));
	must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, &staying));
	cr_assert(eq(u32, going.chunk, staying.chunk));
	bytes = map(alice, &staying, &fd);
	memset(bytes, 0x5a, 4 * MIB);
	must(alice, wire_release(alice, &going.ref, 1));
	for (int i = 0; resident(fd) > 6 * MIB; i++) {
		cr_assert(lt(int, i, 10000), "nothing was punched");
		cr_assert(gt(u64, wire_status(alice, "chunk_bytes"), 0));
		usleep(1000);
	}
	for (size_t i = 0; i < 4 * MIB; i++)
		cr_assert(eq(u8, bytes[i], 0x5a));
	cr_assert(eq(u64, wire_status(alice, "chunk_bytes"), 16 * MIB));
	must(alice, wire_release(alice, &staying.ref, 1));
	wire_wait_status(alice, "chunk_bytes", 0);
	/* Our mapping is still there and pins nothing. */
	cr_assert(zero(u64, resident(fd)));
	close(fd);
	wire_close(alice);
}

/* --- floods -----------------------------------------------------------------
 */

/* Send it until the socket is full; gives how often. */
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

	/* However much is under way, others are served. */
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

	start(NULL);
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

	start(NULL);
	alice = open_as(ALICE);
	must(alice, wire_alloc(alice, 64, NULL, 0, &place));
	check_flood(alice, &chunk);
	wire_close(alice);
}

/* Answers to what was parked come all at once, each with a descriptor. They
 * are charged until they are read, or nobody will. */
Test(flood, of_queued_descriptors_is_charged_and_given_back)
{
	static const char *const name = "test/a/";
	struct request get = {
		.kind = MESSAGE_BUNDLE_GET,
		.bundle_get = {.name = name, .timeout_ms = -1},
	};
	struct request begin = begin_request(name, 0);
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

	start(NULL);
	alice = open_as(ALICE);
	reader = open_as(ALICE);
	for (int i = 0; i < 50; i++)
		wire_send(reader, &get);
	wire_wait_status(alice, "waiters", 50);
	must(alice, wire_call(alice, &begin));
	commit.bundle_end.bundle = alice->reply.bundle.bundle;
	alloc.alloc.bundle = commit.bundle_end.bundle;
	must(alice, wire_call(alice, &alloc));
	must(alice, wire_call(alice, &commit));
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

/* --- bounded work -----------------------------------------------------------
 */

#define N_HELD 5000

/* Who holds much does not make every list of clients long. */
Test(flood, of_holds_does_not_make_a_list_of_clients_long)
{
	struct request clients = {.kind = MESSAGE_CLIENTS};
	struct alloc_item items[200];
	struct request alloc = alloc_request(items, 1);
	struct wire *alice, *hoarders[3];
	uint32_t n = 0, n_pages = 0;

	start(NULL);
	alice = open_as(ALICE);
	for (int i = 1; i < 200; i++)
		items[i] = items[0];
	alloc.alloc.n_items = 200;
	for (int i = 0; i < 3; i++) {
		hoarders[i] = open_as(ALICE);
		for (int j = 0; j < N_HELD / 200; j++)
			must(hoarders[i], wire_call(hoarders[i], &alloc));
	}
	do {
		must(alice, wire_call(alice, &clients));
		for (uint32_t i = 0; i < alice->reply.clients.n_items; i++)
			cr_assert(le(u64, alice->reply.clients.items[i].n_slots,
				     N_HELD));
		n += alice->reply.clients.n_items;
		clients.clients.cursor = alice->reply.clients.next_cursor;
		n_pages++;
	} while (clients.clients.cursor);
	cr_assert(eq(u32, n, 4));
	cr_assert(gt(u32, n_pages, 2));
	for (int i = 0; i < 3; i++)
		wire_close(hoarders[i]);
	wire_close(alice);
}
