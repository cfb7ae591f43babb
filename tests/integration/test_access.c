/*
 * Tests access rights with two real users, each in a process of its own. The
 * tests try the memory itself to see whether the broker keeps its promises:
 * memory is read-only, and the memory of other users cannot be reached.
 */
#include "tests/lib/act.h"
#include "tests/lib/actor.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/memory.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define ALICE 61001
#define BOB   61002
#define GROUP 61100
#define ADMIN 61200

static struct daemon daemon_;
static struct actor alice, bob;
static struct wire *root_wire;

static const char CONFIG[] = "[memory]\n"
			     "memory_max = 256M\n"
			     "chunk_min = 4M\n"
			     "warm_ms = 1h\n"
			     "[access]\n"
			     "admin_group = 61200\n"
			     "[prefixes]\n"
			     "given = 61001\n";

/* --- the stage ----------------------------------------------------------- */

static void start_actors(const struct identity *first,
			 const struct identity *second)
{
	actor_start(&alice, first);
	actor_start(&bob, second);
}

static void connect_actors(void)
{
	cr_assert(zero(int, actor_run(&alice, do_connect)), "%s",
		  shared->sentence);
	cr_assert(zero(int, actor_run(&bob, do_connect)), "%s",
		  shared->sentence);
}

static void setup_empty(void)
{
	const struct daemon_options options = {.config = CONFIG};

	if (!actor_may_be_others())
		cr_skip_test("only root can be two users");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert(ne(ptr, shared, MAP_FAILED));
	daemon_start_with(&daemon_, &options);
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
	snprintf(shared->path, sizeof(shared->path), "%s",
		 daemon_socket(&daemon_));
	shared->access.gid = GID_DEFAULT;
	strcpy(shared->name, "alice/a");
	root_wire = wire_open(shared->path);
}

/* Start two users with one group in common. */
static void setup(void)
{
	const struct identity first = {ALICE, ALICE, GROUP};
	const struct identity second = {BOB, BOB, GROUP};

	setup_empty();
	if (!shared)
		return;
	start_actors(&first, &second);
	connect_actors();
}

static void teardown(void)
{
	if (!shared)
		return;
	actor_kill(&alice);
	actor_kill(&bob);
	wire_close(root_wire);
	daemon_stop(&daemon_);
	munmap(shared, sizeof(*shared));
}

CHECKED_SUITE(access, setup, teardown, .timeout = 300);
CHECKED_SUITE(access_identity, setup_empty, teardown, .timeout = 300);

/* Let Alice publish a tensor of this access, full of the pattern. */
static void show(uint32_t gid, uint32_t mode)
{
	shared->access.gid = gid;
	shared->access.mode = mode;
	cr_assert(zero(int, actor_run(&alice, do_alloc)), "%s",
		  shared->sentence);
	shared->protection = PROT_READ | PROT_WRITE;
	cr_assert(zero(int, actor_run(&alice, do_chunk)));
	cr_assert(zero(int, actor_run(&alice, do_map)));
	cr_assert(zero(int, actor_run(&alice, do_fill)));
	cr_assert(zero(int, actor_run(&alice, do_publish)), "%s",
		  shared->sentence);
}

static void trust(uint32_t uid)
{
	shared->is_trust_set = true;
	shared->trusted_uid = uid;
}

/* --- 0600 ---------------------------------------------------------------- */

Test(access, a_tensor_of_mode_0600_is_inaccessible_to_others_in_any_way)
{
	uint8_t ticket[TICKET_SIZE];

	show(GID_DEFAULT, 0);
	cr_assert(zero(int, actor_run(&alice, do_ticket)));
	memcpy(ticket, shared->ticket, TICKET_SIZE);
	trust(ALICE);
	cr_assert(eq(int, actor_run(&bob, do_get), -EACCES));
	cr_assert(ne(ptr, strstr(shared->sentence, "0600"), NULL));
	cr_assert(zero(int, actor_run(&bob, do_list)));
	cr_assert(eq(int, actor_run(&bob, do_who), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_who_slot), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_redeem), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_chunk), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_release), -EINVAL));
	cr_assert(eq(int, actor_run(&bob, do_ticket), -EINVAL));
	cr_assert(eq(int, actor_run(&bob, do_publish), -EINVAL));
	/* The owner's ticket is still valid. */
	memcpy(shared->ticket, ticket, TICKET_SIZE);
	cr_assert(zero(int, actor_run(&alice, do_redeem)));
	cr_assert(eq(int, actor_run(&alice, do_list), 1));
}

/* --- reading ------------------------------------------------------------- */

static void check_read_only(void)
{
	cr_assert(zero(int, actor_run(&bob, do_get)), "%s", shared->sentence);
	cr_assert(zero(int, actor_run(&bob, do_chunk)));
	shared->protection = PROT_READ | PROT_WRITE;
	cr_assert(eq(int, actor_run(&bob, do_map), -EACCES));
	shared->protection = PROT_READ;
	cr_assert(zero(int, actor_run(&bob, do_map)));
	cr_assert(eq(int, actor_run(&bob, do_scan), ACT_SIZE / 8));
	cr_assert(eq(int, actor_run(&bob, do_store), 1), "it was written");
	cr_assert(eq(int, actor_run(&bob, do_protect), -EACCES));
	shared->open_flags = O_RDWR;
	cr_assert(eq(int, actor_run(&bob, do_reopen_chunk), -EACCES));
	shared->open_flags = O_WRONLY;
	cr_assert(eq(int, actor_run(&bob, do_reopen_chunk), -EACCES));
}

Test(access, a_group_can_read_0640_but_not_write_it_in_any_way)
{
	host_memory_only("nobody maps the file of a device's memory");
	show(GROUP, 0640);
	trust(ALICE);
	check_read_only();
}

Test(access, others_can_read_0644_but_not_write_it_in_any_way)
{
	host_memory_only("nobody maps the file of a device's memory");
	show(GID_DEFAULT, 0644);
	trust(ALICE);
	check_read_only();
}

Test(access, the_permissions_of_the_group_override_those_of_others)
{
	show(GROUP, 0604);
	trust(ALICE);
	cr_assert(eq(int, actor_run(&bob, do_get), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_chunk), -EACCES));
}

/* The memory belongs to its owner. A user that may write to the pool can map it
 * writable. */
Test(access, a_writer_of_a_pool_can_map_it_writable_but_owns_no_tensor)
{
	show(GROUP, 0660);
	trust(ALICE);
	cr_assert(zero(int, actor_run(&bob, do_get)), "%s", shared->sentence);
	cr_assert(zero(int, actor_run(&bob, do_chunk)));
	shared->protection = PROT_READ | PROT_WRITE;
	cr_assert(zero(int, actor_run(&bob, do_map)));
	cr_assert(zero(int, actor_run(&bob, do_store)));
	shared->flags = PUBLISH_REPLACE;
	cr_assert(eq(int, actor_run(&bob, do_publish), -EINVAL));
	cr_assert(eq(int, actor_run(&bob, do_remove), -EPERM));
	cr_assert(eq(int, actor_run(&bob, do_who), -EACCES));
}

Test(access, a_reader_is_not_shown_the_process_of_the_owner)
{
	show(GROUP, 0640);
	cr_assert(eq(int, actor_run(&bob, do_list), 1));
	cr_expect(zero(int, shared->n));
	cr_assert(eq(int, actor_run(&alice, do_list), 1));
	cr_expect(eq(int, shared->n, 1));
}

/* A second user who requests the same class gets another pool. */
Test(access, a_pool_of_any_mode_is_used_only_by_its_owner)
{
	uint32_t chunk;

	show(GROUP, 0666);
	chunk = shared->place.chunk;
	cr_assert(zero(int, actor_run(&bob, do_alloc)), "%s", shared->sentence);
	cr_assert(ne(u32, shared->place.chunk, chunk));
}

Test(access, the_state_table_is_read_only_for_clients)
{
	cr_assert(eq(int, actor_run(&bob, do_map_table_writable), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_map_table_and_protect), -EACCES));
	shared->open_flags = O_RDWR;
	cr_assert(eq(int, actor_run(&bob, do_reopen_table), -EACCES));
}

/* --- classes ------------------------------------------------------------- */

Test(access, invalid_modes_are_refused)
{
	static const uint32_t modes[] = {0700, 01600,    0400,
					 0060, 0640 | 1, 0xffffffff};

	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
		shared->access.mode = modes[i];
		cr_assert(eq(int, actor_run(&alice, do_alloc), -EINVAL), "%o",
			  modes[i]);
		cr_assert(ne(ptr, strstr(shared->sentence, "0600 to 0666"),
			     NULL));
	}
}

Test(access, memory_for_a_group_can_be_allocated_only_by_its_members)
{
	shared->access.gid = 61999;
	shared->access.mode = 0640;
	cr_assert(eq(int, actor_run(&alice, do_alloc), -EPERM));
	cr_assert(ne(ptr, strstr(shared->sentence, "61999"), NULL));
	shared->access.gid = 0;
	cr_assert(eq(int, actor_run(&alice, do_alloc), -EPERM));
	shared->access.gid = GROUP;
	cr_assert(zero(int, actor_run(&alice, do_alloc)));
}

/* --- names --------------------------------------------------------------- */

Test(access, a_first_component_belongs_to_its_first_user)
{
	show(GID_DEFAULT, 0644);
	cr_assert(zero(int, actor_run(&bob, do_alloc)));
	strcpy(shared->name, "alice/b");
	cr_assert(eq(int, actor_run(&bob, do_publish), -EPERM));
	cr_assert(ne(ptr, strstr(shared->sentence, "alice"), NULL));
	cr_assert(ne(ptr, strstr(shared->sentence, "61001"), NULL));
	strcpy(shared->name, "given/b");
	cr_assert(eq(int, actor_run(&bob, do_publish), -EPERM));
	strcpy(shared->name, "bob/b");
	cr_assert(zero(int, actor_run(&bob, do_publish)));
	strcpy(shared->name, "bob/a");
	cr_assert(zero(int, actor_run(&alice, do_alloc)));
	cr_assert(eq(int, actor_run(&alice, do_publish), -EPERM));
}

Test(access, an_empty_first_component_is_kept_by_its_user)
{
	show(GID_DEFAULT, 0644);
	cr_assert(zero(int, actor_run(&alice, do_remove)));
	cr_assert(zero(int, actor_run(&bob, do_alloc)));
	cr_assert(eq(int, actor_run(&bob, do_publish), -EPERM));
}

Test(access, other_users_cannot_replace_or_remove_a_name)
{
	struct tensor_place place;

	show(GID_DEFAULT, 0666);
	place = shared->place;
	cr_assert(eq(int, actor_run(&bob, do_remove), -EPERM));
	cr_assert(ne(ptr, strstr(shared->sentence, "61001"), NULL));
	cr_assert(zero(int, actor_run(&bob, do_alloc)));
	shared->flags = PUBLISH_REPLACE;
	cr_assert(eq(int, actor_run(&bob, do_publish), -EPERM));
	trust(ALICE);
	cr_assert(zero(int, actor_run(&bob, do_get)));
	cr_assert(eq(u32, shared->place.ref.slot, place.ref.slot));
	cr_assert(zero(int, wire_remove(root_wire, "alice/a")), "%s",
		  wire_sentence(root_wire));
}

/* --- trust --------------------------------------------------------------- */

Test(access, a_get_trusts_the_owner_of_the_first_component)
{
	show(GID_DEFAULT, 0644);
	cr_assert(zero(int, actor_run(&bob, do_get)), "%s", shared->sentence);
	trust(BOB);
	cr_assert(eq(int, actor_run(&bob, do_get), -EACCES));
	cr_assert(ne(ptr, strstr(shared->sentence, "61001"), NULL));
	trust(0);
	cr_assert(eq(int, actor_run(&bob, do_get), -EACCES));
}

Test(access, a_get_trusts_root_unless_another_user_is_named)
{
	const struct access_class all = {.gid = GID_DEFAULT, .mode = 0644};

	cr_assert(zero(int, wire_put(root_wire, "given/a", 100, &all, NULL)),
		  "%s", wire_sentence(root_wire));
	strcpy(shared->name, "given/a");
	cr_assert(zero(int, actor_run(&bob, do_get)), "%s", shared->sentence);
	trust(ALICE);
	cr_assert(eq(int, actor_run(&bob, do_get), -EACCES));
}

/* --- holders and clients ------------------------------------------------- */

Test(access, holders_are_shown_to_the_owner_and_to_root)
{
	struct request who = {
		.kind = MESSAGE_WHO,
		.who = {.name = "alice/a"},
	};

	show(GID_DEFAULT, 0644);
	cr_assert(zero(int, actor_run(&bob, do_get)));
	cr_assert(zero(int, actor_run(&alice, do_who)));
	cr_assert(eq(int, actor_run(&bob, do_who), -EACCES));
	cr_assert(zero(int, wire_call(root_wire, &who)));
	cr_assert(eq(u32, root_wire->reply.who.n_holders, 2));
}

Test(access, a_client_sees_the_sessions_of_its_own_user)
{
	struct request clients = {.kind = MESSAGE_CLIENTS};

	cr_assert(zero(int, actor_run(&bob, do_clients)));
	cr_assert(eq(int, shared->n, 1));
	cr_assert(zero(int, wire_call(root_wire, &clients)));
	cr_assert(eq(u32, root_wire->reply.clients.n_items, 3));
}

Test(access, counters_are_reset_by_administrators_only)
{
	const struct request reset = {.kind = MESSAGE_STATUS, .status = {true}};

	cr_expect(eq(int, actor_run(&bob, do_reset), -EPERM));
	cr_expect(zero(int, wire_call(root_wire, &reset)));
}

/* Everybody may see the components of the configuration. */
Test(access, a_user_sees_its_own_first_components)
{
	struct request prefixes = {.kind = MESSAGE_PREFIXES};
	const struct prefixes_reply *reply = &root_wire->reply.prefixes;

	cr_assert(zero(int, wire_put(root_wire, "roots/a", 64, NULL, NULL)));
	cr_assert(eq(int, actor_run(&bob, do_prefixes), 1));
	cr_assert(zero(int, wire_call(root_wire, &prefixes)));
	cr_assert(eq(u32, reply->n_items, 2));
	cr_expect(eq(str, (char *)reply->items[0].name, "given"));
	cr_expect(reply->items[0].is_configured);
	cr_expect(eq(u32, reply->items[0].uid, ALICE));
	cr_expect(eq(str, (char *)reply->items[1].name, "roots"));
	cr_expect(eq(u32, reply->items[1].n_names, 1));
	cr_expect(zero(u32, reply->items[1].uid));
}

Test(access_identity, the_admin_group_sees_holders_and_clients_but_no_memory)
{
	const struct identity first = {ALICE, ALICE, 0};
	const struct identity second = {BOB, BOB, ADMIN};

	start_actors(&first, &second);
	connect_actors();
	show(GID_DEFAULT, 0);
	cr_assert(zero(int, actor_run(&bob, do_who)), "%s", shared->sentence);
	cr_assert(eq(int, actor_run(&bob, do_clients), 2));
	trust(ALICE);
	cr_assert(eq(int, actor_run(&bob, do_get), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_remove), -EPERM));
	cr_assert(eq(int, actor_run(&bob, do_chunk), -EACCES));
}

/* --- sessions ------------------------------------------------------------ */

Test(access_identity, the_overflow_uid_is_refused)
{
	const struct identity first = {65534, ALICE, 0};
	const struct identity second = {BOB, BOB, 0};

	start_actors(&first, &second);
	cr_assert(eq(int, actor_run(&alice, do_connect), -EPERM));
	cr_assert(ne(ptr, strstr(shared->sentence, "65534"), NULL));
	cr_assert(zero(int, actor_run(&bob, do_connect)));
}

/* The kernel shows this group id for every group that has no id here, so
 * membership in it gives no rights. */
Test(access_identity, the_overflow_gid_has_no_members)
{
	const struct identity first = {ALICE, 65534, 0};
	const struct identity second = {BOB, 65534, 0};

	start_actors(&first, &second);
	connect_actors();
	show(GID_DEFAULT, 0660);
	trust(ALICE);
	cr_assert(eq(int, actor_run(&bob, do_get), -EACCES));
	cr_assert(eq(int, actor_run(&bob, do_chunk), -EACCES));
	cr_assert(zero(int, actor_run(&alice, do_get)));
}

Test(access, a_session_is_not_given_to_another_process)
{
	cr_assert(zero(int, actor_run(&alice, do_tell_secrets)));
	cr_assert(eq(int, actor_run(&bob, do_steal), -EPERM));
	cr_assert(
		ne(ptr, strstr(shared->sentence, "belongs to process"), NULL));
	shared->token[0] ^= 1;
	cr_assert(eq(int, actor_run(&bob, do_steal), -ESTALE));
	cr_assert(zero(int, actor_run(&alice, do_ping)));
	cr_assert(zero(int, actor_run(&bob, do_ping)));
}

/* A session belongs to the user that it began with. */
static int do_become_bob(void)
{
	if (setresuid(BOB, BOB, BOB) < 0)
		return 1;
	(void)do_tell_secrets();
	return do_steal();
}

Test(access_identity, a_process_that_became_another_user_has_lost_its_session)
{
	start_actors(NULL, NULL);
	connect_actors();
	cr_assert(zero(int, actor_run(&alice, do_tell_secrets)));
	cr_assert(zero(int, actor_run(&alice, do_steal)));
	cr_assert(eq(int, actor_run(&alice, do_become_bob), -EPERM));
}

/* --- memory -------------------------------------------------------------- */

/* Alice's memory goes back to her pool, full of the pattern. Bob allocates all
 * that he can, and looks for it. */
static void check_no_leak(void)
{
	for (int i = 0; i < 8; i++) {
		show(GID_DEFAULT, 0600);
		cr_assert(zero(int, actor_run(&alice, do_remove)));
		cr_assert(zero(int, actor_run(&alice, do_release)));
	}
	cr_assert(zero(u64, wire_status(root_wire, "bytes_live")));
	for (uint32_t mode = 0600; mode <= 0666; mode += 066) {
		shared->access.mode = mode;
		for (int i = 0; i < 12; i++)
			cr_assert(zero(int, actor_run(&bob, do_alloc)), "%s",
				  shared->sentence);
	}
	cr_assert(zero(int, actor_run(&bob, do_scan_all)));
	cr_assert(gt(int, shared->n, 1));
}

Test(access, freed_memory_is_never_seen_by_another_user)
{
	check_no_leak();
}

/* Alice's own pools of another class do not get the memory either. */
Test(access, freed_memory_does_not_move_to_a_wider_class)
{
	show(GID_DEFAULT, 0600);
	cr_assert(zero(int, actor_run(&alice, do_remove)));
	cr_assert(zero(int, actor_run(&alice, do_release)));
	shared->access.mode = 0644;
	cr_assert(zero(int, actor_run(&alice, do_alloc)));
	cr_assert(zero(int, actor_run(&bob, do_scan_all)));
	cr_assert(eq(int, shared->n, 1));
}

/* The broker may use no more memory, so Alice's chunk must be freed first. */
Test(access_identity,
     memory_freed_by_a_user_is_returned_to_the_kernel_before_reuse)
{
	const struct identity first = {ALICE, ALICE, 0};
	const struct identity second = {BOB, BOB, 0};

	daemon_stop(&daemon_);
	wire_close(root_wire);
	daemon_start_with(&daemon_, &(struct daemon_options){
					    .config = "[memory]\n"
						      "memory_max = 16M\n"
						      "device_memory_max = "
						      "16M\n"
						      "chunk_min = 16M\n"
						      "warm_ms = 1h\n",
				    });
	cr_assert(zero(int, chmod(daemon_.dir, 0755)));
	strcpy(shared->path, daemon_socket(&daemon_));
	root_wire = wire_open(shared->path);
	start_actors(&first, &second);
	connect_actors();
	show(GID_DEFAULT, 0600);
	cr_assert(zero(int, actor_run(&alice, do_remove)));
	cr_assert(zero(int, actor_run(&alice, do_release)));
	shared->access.mode = 0600;
	cr_assert(zero(int, actor_run(&bob, do_alloc)), "%s", shared->sentence);
	cr_assert(eq(u64, wire_status(root_wire, "chunks_retired"), 1));
	cr_assert(zero(int, actor_run(&bob, do_scan_all)));
	cr_assert(eq(int, shared->n, 1));
	/* The broker has freed the pages that Alice still has mapped, so the
	 * pattern is gone. Memory of a device would keep it until she unmaps
	 * it. */
	if (!are_on_devices())
		cr_assert(zero(int, actor_run(&alice, do_scan)));
}
