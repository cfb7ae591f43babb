/*
 * Tests the lists of libfsdp. All memory is shown to the user that pays for it,
 * and the counters match it.
 */
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/check.h"
#include "tests/lib/daemon.h"
#include "tests/lib/ending.h"
#include "tests/lib/leaks.h"
#include "tests/lib/memory.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N_BATCH  256
#define N_NAMES  (20 * N_BATCH) /* more names than one page reads */
#define N_OTHERS 40

static const struct fsdp_spec VECTOR = {FSDP_F32, 1, {256}};
static struct daemon daemon_;
static struct fsdp_client *client;

static void setup(void)
{
	struct fsdp_connect_options options = {0};

	daemon_start(&daemon_);
	options.path = daemon_socket(&daemon_);
	cr_assert(zero(int, fsdp_connect(&options, &client)), "%s",
		  fsdp_error());
}

static void teardown(void)
{
	fsdp_close(client);
	daemon_stop(&daemon_);
}

CHECKED_SUITE(inspect, setup, teardown, .timeout = 300);

static struct fsdp_tensor *make(uint64_t size)
{
	struct fsdp_spec spec = {FSDP_U8, 1, {(int64_t)size}};
	struct fsdp_tensor *tensor = NULL;

	cr_assert(zero(int, memory_alloc(client, &spec, 1, NULL, 0, &tensor)),
		  "%s", fsdp_error());
	return tensor;
}

static int find_status(const char *name, uint64_t value, void *data)
{
	const char **asked = data;

	if (strcmp(name, asked[0]) != 0)
		return 0;
	*(uint64_t *)(void *)asked[1] = value;
	return 0;
}

static uint64_t status(const char *name)
{
	uint64_t value = UINT64_MAX;
	const char *asked[] = {name, (const char *)&value};

	cr_assert(zero(int, fsdp_status(client, find_status, asked, NULL)));
	return value;
}

/* --- blocks -------------------------------------------------------------- */

struct sum {
	uint64_t blocks[16];
	int n;
	uint64_t size;
	uint64_t last_size; /* size of the tensor that was listed last */
	struct fsdp_entry last;
};

static int add_entry(const struct fsdp_entry *entry, void *data)
{
	struct sum *sum = data;

	sum->last = *entry;
	sum->last_size = entry->info->size;
	for (int i = 0; i < sum->n; i++)
		if (sum->blocks[i] == entry->block)
			return 0;
	sum->blocks[sum->n++] = entry->block;
	sum->size += entry->block_size;
	return 0;
}

static struct sum sum_up(void)
{
	struct sum sum = {0};

	cr_assert(zero(int, fsdp_list_all(client, add_entry, &sum)), "%s",
		  fsdp_error());
	return sum;
}

static uint64_t bytes_live(void)
{
	return status("bytes_live") + status("device_bytes_live");
}

/* Status and list count memory that was never published, is staged, is kept by
 * a view, or is kept by a ticket. */
Test(inspect, all_memory_is_listed_for_any_reason_that_keeps_it)
{
	struct fsdp_tensor *unpublished = make(1000), *member = NULL, *view;
	struct fsdp_tensor *sent = make(3000), *base = make(100 << 10);
	struct fsdp_spec small = {FSDP_U8, 1, {16}};
	struct fsdp_spec spec = {FSDP_U8, 1, {2000}};
	const char *name = "test/b/x";
	struct fsdp_bundle *bundle;
	struct fsdp_ticket ticket;
	struct sum sum;

	cr_assert(
		zero(int, fsdp_bundle_begin(client, "test/b/", NULL, &bundle)));
	cr_assert(
		zero(int, fsdp_bundle_alloc(bundle, &name, &spec, 1, &member)));
	cr_assert(zero(int, fsdp_view(base, &small, NULL, 0, &view)), "%s",
		  fsdp_error());
	fsdp_free(base);
	cr_assert(zero(int, fsdp_ticket_make(sent, 1, 100000, &ticket)));
	fsdp_free(sent);
	sum = sum_up();
	cr_assert(eq(int, sum.n, 4));
	cr_assert(eq(u64, sum.size, bytes_live()));
	fsdp_free(view);
	fsdp_free(unpublished);
	fsdp_free(member);
	fsdp_bundle_abort(bundle);
}

Test(inspect, a_view_shows_the_block_that_it_keeps)
{
	struct fsdp_tensor *base = make(100 << 10), *view = NULL;
	struct fsdp_spec small = {FSDP_U8, 1, {16}};
	struct sum sum;

	cr_assert(zero(int, fsdp_view(base, &small, NULL, 0, &view)), "%s",
		  fsdp_error());
	cr_assert(eq(u32, sum_up().last.n_in_block, 2));
	fsdp_free(base);
	sum = sum_up();
	cr_assert(eq(int, sum.n, 1));
	cr_assert(eq(u64, sum.last_size, 16));
	cr_assert(eq(u64, sum.last.block_size, 100 << 10));
	cr_assert(eq(u32, sum.last.maker_pid, (uint32_t)getpid()));
	cr_assert(eq(u32, sum.last.payer_uid, getuid()));
	fsdp_free(view);
}

/* --- clients ------------------------------------------------------------- */

static int find_self(const struct fsdp_peer *peer, void *data)
{
	*(struct fsdp_peer *)data = *peer;
	return 0;
}

static void publish_batch(int from)
{
	struct fsdp_publication items[N_BATCH] = {0};
	struct fsdp_tensor *tensors[N_BATCH];
	struct fsdp_spec specs[N_BATCH];
	char names[N_BATCH][32];

	for (int i = 0; i < N_BATCH; i++)
		specs[i] = VECTOR;
	cr_assert(zero(int,
		       memory_alloc(client, specs, N_BATCH, NULL, 0, tensors)));
	for (int i = 0; i < N_BATCH; i++) {
		snprintf(names[i], sizeof(names[i]), "test/%d", from + i);
		items[i] = (struct fsdp_publication){.tensor = tensors[i],
						     .name = names[i]};
	}
	cr_assert(zero(int, fsdp_publish(client, items, N_BATCH)), "%s",
		  fsdp_error());
	for (int i = 1; i < N_BATCH; i++)
		fsdp_free(tensors[i]);
}

/* One tensor of each batch is held, and the grants of the others are unused. */
Test(inspect, clients_counts_held_tensors_but_no_unused_grants)
{
	struct fsdp_peer self;

	for (int i = 0; i < N_NAMES; i += N_BATCH)
		publish_batch(i);
	cr_assert(zero(int, fsdp_clients(client, find_self, &self)));
	cr_assert(eq(u64, self.n_slots, N_NAMES / N_BATCH));
	cr_assert(eq(u64, self.n_bytes, (uint64_t)N_NAMES * 1024));
}

/* Start a broker that is restarted when it dies. */
static void start_supervised(void)
{
	struct fsdp_connect_options options = {0};

	fsdp_close(client);
	daemon_stop(&daemon_);
	daemon_start_supervised(&daemon_);
	options.path = daemon_socket(&daemon_);
	cr_assert(zero(int, fsdp_connect(&options, &client)), "%s",
		  fsdp_error());
}

/* --- walks --------------------------------------------------------------- */

struct walk {
	int n, stop_at;
	bool kills; /* the broker, at the first entry */
};

/* Makes requests while libfsdp has already requested the next page. */
static int step(const struct fsdp_entry *entry, void *data)
{
	struct walk *walk = data;
	struct walk inner = {.stop_at = 1};

	cr_expect(eq(u64, entry->info->size, 1024));
	if (walk->n++ % N_BATCH == 0 && walk->stop_at != 1) {
		cr_expect(zero(int, fsdp_ping(client)), "%s", fsdp_error());
		cr_expect(eq(int, fsdp_list(client, NULL, step, &inner), 1));
	}
	if (walk->kills && walk->n == 1)
		daemon_kill_broker(&daemon_);
	return walk->n == walk->stop_at;
}

/* While the next page is requested, one walk makes other requests, one ends,
 * and one sees the broker die. */
Test(inspect, the_callback_of_a_list_may_make_requests_and_end_it)
{
	struct walk walks[] = {{0}, {.stop_at = 300}, {.kills = true}};

	start_supervised();
	for (int i = 0; i < N_NAMES; i += N_BATCH)
		publish_batch(i);
	for (size_t i = 0; i < sizeof(walks) / sizeof(*walks); i++) {
		bool ends = walks[i].stop_at;

		cr_assert(
			eq(int, fsdp_list(client, NULL, step, &walks[i]), ends),
			"%s", fsdp_error());
		cr_expect(eq(int, walks[i].n, ends ? 300 : N_NAMES));
	}
}

/* --- digests ------------------------------------------------------------- */

static int keep_digest(const struct fsdp_entry *entry, void *data)
{
	*(uint64_t *)data = entry->digest;
	return 1;
}

static void publish(struct fsdp_tensor *tensor, const char *name)
{
	struct fsdp_publication publication = {.tensor = tensor, .name = name};

	cr_assert(zero(int, fsdp_publish(client, &publication, 1)), "%s",
		  fsdp_error());
}

static uint64_t digest_of(const char *name)
{
	uint64_t digest = 1;

	cr_assert(eq(int, fsdp_list(client, name, keep_digest, &digest), 1));
	return digest;
}

Test(inspect, a_digest_is_recorded_by_the_writer_and_survives_a_restart)
{
	uint64_t digests[2] = {0xfedcba9876543210, 7};
	struct fsdp_tensor *tensors[2];

	start_supervised();
	tensors[0] = make(100);
	tensors[1] = make(100);
	cr_assert(zero(int, fsdp_set_digests(tensors, digests, 2)), "%s",
		  fsdp_error());
	publish(tensors[0], "digests/a");
	publish(tensors[1], "digests/b");
	cr_assert(eq(int, fsdp_set_digests(tensors, digests, 1), -EPERM));
	daemon_kill_broker(&daemon_);
	cr_assert(eq(u64, digest_of("digests/a"), digests[0]));
	cr_assert(eq(u64, digest_of("digests/b"), digests[1]));
}

Test(inspect, a_member_of_a_bundle_has_a_digest)
{
	const char *name = "digests/bundle/m";
	struct fsdp_bundle *bundle = NULL;
	struct fsdp_tensor *member = NULL;
	uint64_t digest = 9;

	cr_assert(zero(int, fsdp_bundle_begin(client, "digests/bundle/", NULL,
					      &bundle)));
	cr_assert(zero(int,
		       fsdp_bundle_alloc(bundle, &name, &VECTOR, 1, &member)));
	cr_assert(zero(int, fsdp_set_digests(&member, &digest, 1)), "%s",
		  fsdp_error());
	cr_assert(zero(int, fsdp_bundle_commit(bundle, NULL)), "%s",
		  fsdp_error());
	cr_assert(eq(u64, digest_of(name), digest));
	cr_assert(eq(int, fsdp_set_digests(&member, &digest, 1), -EPERM));
}

static int keep_entry(const struct fsdp_entry *entry, void *data)
{
	*(struct fsdp_entry *)data = *entry;
	return 1;
}

Test(inspect, a_member_has_the_time_to_live_and_flags_of_its_bundle)
{
	const struct fsdp_bundle_options options = {.ttl_ms = 3600 * 1000,
						    .flags = FSDP_TIED};
	const char *name = "ends/m";
	struct fsdp_bundle *bundle = NULL;
	struct fsdp_tensor *member = NULL;
	struct fsdp_entry entry = {0};

	cr_assert(zero(int,
		       fsdp_bundle_begin(client, "ends/", &options, &bundle)));
	cr_assert(zero(int,
		       fsdp_bundle_alloc(bundle, &name, &VECTOR, 1, &member)));
	cr_assert(zero(int, fsdp_bundle_commit(bundle, NULL)), "%s",
		  fsdp_error());
	cr_assert(eq(int, fsdp_list(client, name, keep_entry, &entry), 1));
	cr_expect(gt(u64, entry.ttl_left_ms, 0));
	cr_expect(le(u64, entry.ttl_left_ms, options.ttl_ms));
	cr_expect(ne(u32, entry.flags & FSDP_TIED, 0));
	fsdp_free(member);
}

Test(inspect, a_reused_slot_has_no_digest)
{
	struct fsdp_tensor *tensor = make(100);
	uint64_t digest = 7;

	cr_assert(zero(int, fsdp_set_digests(&tensor, &digest, 1)));
	cr_assert(zero(int, fsdp_release_sync(client, &tensor, 1)));
	fsdp_free(tensor);
	publish(make(100), "digests/again");
	cr_assert(zero(u64, digest_of("digests/again")));
}

/* --- watching ------------------------------------------------------------ */

struct seen {
	enum fsdp_event_kind kinds[8];
	size_t n;
};

static int keep_event(const struct fsdp_event *event, void *data)
{
	struct seen *seen = data;

	cr_assert(lt(sz, seen->n, 8));
	seen->kinds[seen->n++] = event->kind;
	return 0;
}

Test(inspect, a_watcher_sees_why_a_name_ended)
{
	struct fsdp_publication tied = {
		.tensor = make(1), .name = "watch/tied", .flags = FSDP_TIED};
	struct fsdp_client *other = NULL;
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};
	uint64_t cursor = 0;
	struct seen seen = {0};

	cr_assert(zero(int, fsdp_connect(&options, &other)));
	cr_assert(zero(int, fsdp_watch(other, "watch/", &cursor, -1, keep_event,
				       &seen)));
	cr_assert(zero(int, fsdp_publish(client, &tied, 1)));
	cr_assert(zero(int, fsdp_close(client)));
	client = NULL;
	while (seen.n < 2)
		cr_assert(zero(int, fsdp_watch(other, "watch/", &cursor, -1,
					       keep_event, &seen)));
	cr_assert(eq(int, seen.kinds[0], FSDP_EVENT_PUBLISHED));
	cr_assert(eq(int, seen.kinds[1], FSDP_EVENT_ENDED));
	fsdp_close(other);
}

Test(inspect, a_restart_loses_events_and_the_watcher_is_told)
{
	uint64_t cursor = 0;
	struct seen seen = {0};

	start_supervised();
	cr_assert(zero(
		int, fsdp_watch(client, NULL, &cursor, -1, keep_event, &seen)));
	daemon_kill_broker(&daemon_);
	cr_assert(zero(
		int, fsdp_watch(client, NULL, &cursor, -1, keep_event, &seen)));
	cr_assert(eq(sz, seen.n, 1));
	cr_assert(eq(int, seen.kinds[0], FSDP_EVENT_LOST));
	publish(make(1), "after");
	cr_assert(zero(
		int, fsdp_watch(client, NULL, &cursor, -1, keep_event, &seen)));
	cr_assert(eq(sz, seen.n, 2));
	cr_assert(eq(int, seen.kinds[1], FSDP_EVENT_PUBLISHED));
}

Test(inspect, a_watch_ends_after_its_time)
{
	uint64_t cursor = 0;
	struct seen seen = {0};

	for (int i = 0; i < 2; i++)
		cr_assert(zero(int, fsdp_watch(client, NULL, &cursor, 10,
					       keep_event, &seen)));
	cr_assert(zero(sz, seen.n));
}

/* --- tickets ------------------------------------------------------------- */

static int keep_ticket(const struct fsdp_ticket_entry *entry, void *data)
{
	*(struct fsdp_ticket_entry *)data = *entry;
	return 1;
}

Test(inspect, a_ticket_is_listed_and_revoked)
{
	struct fsdp_tensor *tensor = make(5000), *got = NULL;
	struct fsdp_ticket_entry entry = {0};
	struct fsdp_ticket ticket;

	cr_assert(zero(int, fsdp_ticket_make(tensor, 2, 100000, &ticket)));
	fsdp_free(tensor);
	cr_assert(eq(int, fsdp_tickets(client, keep_ticket, &entry), 1));
	cr_assert(eq(u64, entry.id, fsdp_ticket_id(&ticket)));
	cr_assert(eq(u32, entry.pid, (uint32_t)getpid()));
	cr_assert(eq(u64, entry.block_size, bytes_live()));
	cr_assert(zero(int, fsdp_ticket_revoke(client, entry.id)), "%s",
		  fsdp_error());
	cr_assert(zero(u64, bytes_live()));
	cr_assert(eq(int, fsdp_ticket_revoke(client, entry.id), -ENOENT));
	cr_assert(
		eq(int, fsdp_ticket_redeem(client, &ticket, 1, &got), -ENOENT));
}

/* --- who ----------------------------------------------------------------- */

static int get_and_keep(void)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};
	const char *name = "test/held";
	struct fsdp_client *own;
	struct fsdp_tensor *tensor;

	if (fsdp_connect(&options, &own) < 0 ||
	    fsdp_get(own, &name, 1, NULL, &tensor) < 0)
		return -1;
	return ending_thread();
}

struct holders {
	pid_t pid;
	int n, n_of_pid, n_ending;
};

static int count_holder(const struct fsdp_holder *holder, void *data)
{
	struct holders *holders = data;

	holders->n++;
	if (holder->pid == (uint32_t)holders->pid) {
		holders->n_of_pid++;
		holders->n_ending += holder->is_ending;
	}
	return 0;
}

static struct holders count_holders(pid_t pid)
{
	struct holders holders = {.pid = pid};

	cr_assert(zero(int,
		       fsdp_who(client, "test/held", count_holder, &holders)));
	return holders;
}

static struct fsdp_tensor *publish_held(void)
{
	struct fsdp_tensor *tensor = make(1000);

	publish(tensor, "test/held");
	return tensor;
}

/* The broker keeps the hold until the kernel reports the death. */
Test(inspect, who_reports_that_a_process_is_ending)
{
	struct fsdp_tensor *tensor = publish_held();
	struct actor actor = {.fd = -1};
	struct holders holders;
	pid_t thread;

	actor_start(&actor, NULL);
	thread = actor_run(&actor, get_and_keep);
	cr_assert(gt(int, thread, 0));
	cr_assert(zero(int, count_holders(actor.pid).n_ending));
	ending_begin(actor.pid, thread);
	holders = count_holders(actor.pid);
	cr_assert(eq(int, holders.n_of_pid, 1));
	cr_assert(eq(int, holders.n_ending, 1));
	ending_end(thread);
	actor_kill(&actor);
	while (count_holders(actor.pid).n_of_pid)
		;
	fsdp_release(tensor);
}

/* There are more holders than a page has. */
Test(inspect, who_lists_each_of_many_holders_once)
{
	struct fsdp_connect_options options = {.path = daemon_socket(&daemon_)};
	struct fsdp_tensor *tensor = publish_held(), *held;
	const char *name = "test/held";
	struct fsdp_client *others[N_OTHERS];

	for (int i = 0; i < N_OTHERS; i++) {
		cr_assert(zero(int, fsdp_connect(&options, &others[i])));
		cr_assert(
			zero(int, fsdp_get(others[i], &name, 1, NULL, &held)));
	}
	cr_assert(eq(int, count_holders(getpid()).n_of_pid, N_OTHERS + 1));
	for (int i = 0; i < N_OTHERS; i++)
		fsdp_close(others[i]);
	fsdp_release(tensor);
}
