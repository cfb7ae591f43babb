/*
 * Tests how the broker finds memory: what it frees before it refuses an
 * allocation, and which memory it returns to the kernel.
 */
#include "proto/error.h"
#include "shm/refs.h"
#include "shm/table.h"
#include "tests/lib/memory.h"
#include "tests/lib/users.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(room, .fini = users_stop, .timeout = 300);

/* No quota is smaller than memory_max. */
static const char SMALL[] = "[memory]\nmemory_max = 16M\n"
			    "device_memory_max = 16M\nchunk_min = 2M\n"
			    "warm_ms = 1h\n"
			    "[quota]\nquota_bytes = 1G\n";

Test(room, that_is_missing_is_reported_with_figures)
{
	struct tensor_place place;
	struct wire *alice;

	users_start(SMALL);
	alice = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, &place));
	cr_assert(eq(int, wire_alloc(alice, 4 * MIB, NULL, 0, NULL), -ENOMEM));
	wire_says(alice, "out of memory");
	wire_says(alice, ": 4 MiB");
	wire_says(alice, are_on_devices() ? "14 of device_memory_max's 16 MiB"
					  : "14 of memory_max's 16 MiB");
	if (!are_on_devices())
		wire_says(alice, "or raise memory_max");
	wire_must(alice, wire_alloc(alice, 2 * MIB, NULL, 0, NULL));
	wire_must(alice, wire_release(alice, &place.ref));
	wire_must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, NULL));
	cr_assert(
		eq(int, wire_alloc(alice, 17 * MIB, NULL, -1, NULL), -ENOMEM));
	wire_says(alice, "can never fit");
	wire_close(alice);
}

Test(room, that_the_machine_lacks_is_not_due_to_memory_max)
{
	struct wire *alice;

	if (are_on_devices())
		return;
	users_start("[memory]\nmemory_reserve = 1000T\n");
	alice = open_as(ALICE);
	cr_assert(eq(int, wire_alloc(alice, 4 * MIB, NULL, 0, NULL), -ENOMEM));
	wire_says(alice, "or lower memory_reserve");
	wire_close(alice);
}

Test(room, is_gained_by_evicting_tensors_without_holders)
{
	struct tensor_place held, other;
	struct wire *alice;

	users_start(SMALL);
	alice = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 6 * MIB, NULL, 0, &held));
	wire_must(alice, wire_publish(alice, &held.ref, "test/held",
				      PUBLISH_EVICTABLE));
	wire_must(alice, wire_alloc(alice, 6 * MIB, NULL, 0, &other));
	wire_must(alice, wire_publish(alice, &other.ref, "test/other",
				      PUBLISH_EVICTABLE));
	wire_must(alice, wire_release(alice, &other.ref));
	wire_must(alice, wire_alloc(alice, 6 * MIB, NULL, 0, NULL));
	cr_assert(eq(u64, wire_status(alice, "evicted"), 1));
	cr_assert(eq(int, wire_get(alice, "test/other", NULL), -ENOENT));
	wire_must(alice, wire_get(alice, "test/held", NULL));
	/* A held tensor stays, and the next one is refused. */
	cr_assert(eq(int, wire_alloc(alice, 6 * MIB, NULL, 0, NULL), -ENOMEM));
	wire_must(alice, wire_get(alice, "test/held", NULL));
	cr_assert(eq(u64, wire_status(alice, "evicted"), 1));
	wire_close(alice);
}

/* Alice's first request is the older one, so it is tried first whenever memory
 * comes. Her second one must get the chunk that was made for it. */
Test(room, of_a_new_chunk_is_for_the_request_that_caused_it)
{
	const struct access_class readable = {.gid = GID_DEFAULT, .mode = 0644};
	struct wire *holder, *alice, *other;
	struct alloc_item large, small;
	struct tensor_place place;
	struct request request;

	users_start("[memory]\nmemory_max = 128M\nchunk_min = 64M\n"
		    "device_memory_max = 128M\nwarm_ms = 1h\n");
	holder = open_as(ALICE);
	alice = open_as(ALICE);
	other = open_as(ALICE);
	wire_must(holder, wire_alloc(holder, 64 * MIB, &readable, 0, &place));
	request = wire_alloc_request(&large, 100 * MIB);
	wire_send(alice, &request);
	wire_wait_status(holder, "waiters", 1);
	request = wire_alloc_request(&small, MIB);
	wire_send(other, &request);
	wire_must(holder, wire_release(holder, &place.ref));
	wire_must(other, wire_receive(other));
	wire_goodbye(other);
	wire_must(alice, wire_receive(alice));
	wire_close(alice);
	wire_close(holder);
}

/* By default the quota of a user is all memory. */
Test(room, in_a_quota_is_gained_by_evicting_tensors_charged_to_it)
{
	struct tensor_place held;
	struct wire *alice, *bob;

	users_start("[memory]\nmemory_max = 64M\nchunk_min = 2M\n"
		    "[quota]\nquota_bytes = 8M\nquota_device_bytes = 8M\n");
	alice = open_as(ALICE);
	bob = open_bob();
	if (!bob)
		cr_skip_test("only root can be two users");
	wire_must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, &held));
	wire_must(alice, wire_publish(alice, &held.ref, "alice/cache",
				      PUBLISH_EVICTABLE));
	wire_must(alice, wire_release(alice, &held.ref));
	wire_must(bob, wire_alloc(bob, 4 * MIB, NULL, 0, &held));
	wire_must(bob,
		  wire_publish(bob, &held.ref, "bob/cache", PUBLISH_EVICTABLE));
	wire_must(bob, wire_release(bob, &held.ref));
	wire_must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, NULL));
	wire_must(alice, wire_get(alice, "alice/cache", &held));
	wire_must(alice, wire_release(alice, &held.ref));
	wire_must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, NULL));
	cr_assert(eq(int, wire_get(alice, "alice/cache", NULL), -ENOENT));
	cr_assert(eq(int, wire_alloc(alice, 1, NULL, 0, NULL), -EDQUOT));
	wire_must(bob, wire_get(bob, "bob/cache", NULL));
	wire_close(bob);
	wire_close(alice);
}

/* Map the session's file and the table, as the session does. */
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

/* The tensor is released, but the doorbell has not rung yet. The broker must
 * find the tensor itself before it refuses the request. */
Test(room, is_gained_by_collecting_limbo)
{
	struct tensor_place place;
	struct table table;
	struct wire *alice;
	struct refs refs;

	users_start(SMALL);
	alice = open_as(ALICE);
	open_files(alice, &refs, &table);
	wire_must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, &place));
	wire_must(alice, wire_publish(alice, &place.ref, "", 0));
	cr_assert(eq(u64, wire_status(alice, "slots_limbo"), 1));
	cr_assert(eq(int, wire_alloc(alice, 4 * MIB, NULL, 0, NULL), -ENOMEM));
	cr_assert(refs_release(&refs, &table, place.ref.slot));
	cr_assert(eq(u64, wire_status(alice, "slots_limbo"), 1));
	wire_must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, NULL));
	cr_assert(zero(u64, wire_status(alice, "slots_limbo")));
	table_close(&table);
	refs_close(&refs);
	wire_close(alice);
}

/* A thread takes and drops a hold of a tensor in limbo as fast as it can. */
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

/* The tensor is held when the request for a view is checked. It may not be held
 * any more when the search for memory collects limbo, and may be freed then. */
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

	wire_must(wire, wire_alloc(wire, 64, NULL, 0, &place));
	wire_must(wire, wire_publish(wire, &place.ref, "", 0));
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
	/* No session holds the tensor now, whether or not a call found it
	 * without a hold. */
	r = wire_call(wire, &request);
	cr_assert(r == -EINVAL || r == -ESTALE, "%s", wire_sentence(wire));
}

Test(room, for_a_view_is_not_gained_by_freeing_its_base)
{
	struct flicker it = {0};
	struct table table;
	struct wire *alice;
	struct refs refs;

	users_start("[quota]\nquota_slots = 1\n");
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

Test(room, freed_by_another_client_is_given_to_one_that_waits)
{
	struct alloc_item item;
	struct request alloc = wire_alloc_request(&item, 8 * MIB);
	struct tensor_place place;
	struct wire *alice, *bob;

	users_start(SMALL);
	alice = open_as(ALICE);
	bob = getuid() == 0 ? open_as(BOB) : open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 14 * MIB, NULL, 0, &place));
	wire_send(bob, &alloc);
	cr_assert(eq(u64, wire_status(alice, "waiters"), 1));
	wire_must(alice, wire_release(alice, &place.ref));
	cr_assert(eq(int, wire_receive(bob), FRAME_OK));
	cr_assert(zero(int, bob->frame.code), "%s", wire_sentence(bob));
	cr_assert(zero(u64, wire_status(alice, "waiters")));
	wire_close(bob);
	wire_close(alice);
}

/* A chunk of another access class must be freed first, since the quota permits
 * one. */
Test(room, of_the_quota_of_chunks_can_be_awaited)
{
	struct alloc_item item;
	struct request alloc = wire_alloc_request(&item, MIB);
	struct tensor_place place;
	struct wire *alice, *other;

	users_start("[memory]\nmemory_max = 64M\nchunk_min = 2M\n"
		    "[quota]\nquota_chunks = 1\n");
	alice = open_as(ALICE);
	other = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, MIB, NULL, 0, &place));
	alloc.alloc.access.mode = 0640;
	wire_send(other, &alloc);
	cr_assert(eq(u64, wire_status(alice, "waiters"), 1));
	wire_must(alice, wire_release(alice, &place.ref));
	cr_assert(eq(int, wire_receive(other), FRAME_OK));
	cr_assert(zero(int, other->frame.code), "%s", wire_sentence(other));
	wire_close(other);
	wire_close(alice);
}

Test(room, of_a_budget_that_is_used_up_blocks_only_its_session)
{
	struct alloc_item item;
	struct request alloc = wire_alloc_request(&item, MIB);
	struct tensor_place place;
	struct wire *alice, *other;

	users_start(SMALL);
	alice = connect_as(ALICE);
	wire_must(alice, wire_hello(alice, 1 * MIB));
	other = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, MIB, NULL, 0, &place));
	cr_assert(eq(int, wire_alloc(alice, 1, NULL, 0, NULL), -EDQUOT));
	wire_says(alice, "1048576 of its budget of 1048576 bytes");
	cr_assert(eq(int, wire_alloc(alice, MIB + 1, NULL, -1, NULL), -EDQUOT));
	wire_send(alice, &alloc);
	wire_must(other, wire_alloc(other, MIB, NULL, 0, NULL));
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

/* --- memory is returned -------------------------------------------------- */

static uint64_t resident(int fd)
{
	struct stat status;

	cr_assert(zero(int, fstat(fd, &status)));
	return (uint64_t)status.st_blocks * 512;
}

/* Map the tensor's memory in a process that does not unmap it. */
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

Test(room, that_is_free_is_returned_to_the_kernel_but_held_memory_is_kept)
{
	struct tensor_place going, staying;
	struct wire *alice;
	uint8_t *bytes;
	int fd;

	host_memory_only("of a device chunks go back as a whole");
	users_start("[memory]\nchunk_min = 16M\nwarm_ms = 20\n");
	alice = open_as(ALICE);
	wire_must(alice, wire_alloc(alice, 8 * MIB, NULL, 0, &going));
	wire_must(alice, wire_alloc(alice, 4 * MIB, NULL, 0, &staying));
	cr_assert(eq(u32, going.chunk, staying.chunk));
	bytes = map(alice, &staying, &fd);
	memset(bytes, 0x5a, 4 * MIB);
	wire_must(alice, wire_release(alice, &going.ref));
	for (int i = 0; resident(fd) > 6 * MIB; i++) {
		cr_assert(lt(int, i, 10000), "nothing was punched");
		cr_assert(gt(u64, wire_status(alice, "chunk_bytes"), 0));
		usleep(1000);
	}
	for (size_t i = 0; i < 4 * MIB; i++)
		cr_assert(eq(u8, bytes[i], 0x5a));
	cr_assert(eq(u64, wire_status(alice, "chunk_bytes"), 16 * MIB));
	wire_must(alice, wire_release(alice, &staying.ref));
	wire_wait_status(alice, "chunk_bytes", 0);
	/* This process still has the memory mapped, but no page of it is
	 * left. */
	cr_assert(zero(u64, resident(fd)));
	close(fd);
	wire_close(alice);
}
