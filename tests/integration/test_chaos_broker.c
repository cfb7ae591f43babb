/*
 * Kills the broker while tensors, names, tickets and sessions are made and
 * removed.
 */
#include "tests/integration/scene.h"
#include <errno.h>
#include <unistd.h>

TestSuite(broker_dies_during, .timeout = 300);

/* --- alloc --------------------------------------------------------------- */

static void alloc_three(struct stage *stage)
{
	struct fsdp_spec specs[3] = {PAGE, PAGE, PAGE};

	must(memory_alloc(stage->client, specs, 3, NULL, 0, stage->mine) == 0);
	for (uint64_t i = 0; i < 3; i++)
		pattern_fill(stage->mine[i], pattern_tag("three", i));
}

static void check_three(struct stage *stage)
{
	for (uint64_t i = 0; i < 3; i++) {
		cr_assert(pattern_is(stage->mine[i], pattern_tag("three", i)));
		cr_assert(eq(i64,
			     count_slot_holds(stage->client, stage->mine[i]),
			     1));
	}
}

static void alloc_one(struct stage *stage)
{
	stage->mine[3] = pattern_make(stage->client, 1);
}

SCENE(the_alloc_that_makes_a_pool, .act = alloc_three, .check = check_three)
SCENE(alloc, .prepare = alloc_one, .act = alloc_three, .check = check_three)

static void view(struct stage *stage)
{
	struct fsdp_spec spec = {FSDP_U64, 1, {512}};

	must(fsdp_view(stage->mine[3], &spec, NULL, 0, &stage->mine[0]) == 0);
}

static void check_view(struct stage *stage)
{
	fsdp_free(stage->mine[3]);
	cr_assert(eq(i64, count_slot_holds(stage->client, stage->mine[0]), 1));
	cr_assert(pattern_is(stage->mine[0], 1));
}

SCENE(view, .prepare = alloc_one, .act = view, .check = check_view)

#define FULL                                                                   \
	"[memory]\nmemory_max = 4M\ndevice_memory_max = 4M\nchunk_min = 2M\n"
static const struct fsdp_spec HALF_MIB = {FSDP_U8, 1, {512 * 1024}};

/* Publish three quarters of the memory, all of it evictable. */
static void publish_evictable(struct stage *stage)
{
	for (int i = 0; i < 3; i++) {
		struct fsdp_publication it = {.flags = FSDP_EVICTABLE};
		char name[] = "scene/cached0";

		name[12] = (char)('0' + i);
		it.name = name;
		must(memory_alloc(stage->other, &HALF_MIB, 1, NULL, 0,
				  &it.tensor) == 0);
		must(fsdp_publish(stage->other, &it, 1) == 0);
		fsdp_free(it.tensor);
	}
	/* After a restart, all tensors that a client ever got count as held
	 * until it reconnects. This client would not reconnect during the call,
	 * so a new one takes its place. */
	fsdp_close(stage->other);
	stage->other = chaos_connect(&stage->chaos);
}

static void alloc_much(struct stage *stage)
{
	struct fsdp_spec specs[2] = {HALF_MIB, HALF_MIB};

	must(memory_alloc(stage->client, specs, 2, NULL, 0, stage->mine) == 0);
}

static int count_entry(const struct fsdp_entry *entry, void *data)
{
	(void)entry;
	++*(int *)data;
	return 0;
}

/* Evictions are not part of a transaction, so the broker may evict one more
 * tensor if it dies. */
static void check_evicted(struct stage *stage)
{
	int n = 0;

	must(fsdp_list(stage->client, "scene/", count_entry, &n) == 0);
	cr_assert(le(int, n, 2));
	for (int i = 0; i < 2; i++)
		cr_assert(eq(i64,
			     count_slot_holds(stage->client, stage->mine[i]),
			     1));
}

SCENE(an_alloc_that_evicts, .prepare = publish_evictable, .act = alloc_much,
      .check = check_evicted, .config = FULL, .is_ragged = true)

#define COLD "[memory]\nchunk_min = 2M\nwarm_ms = 50\n"

static void load_and_alloc(struct stage *stage)
{
	load_first(stage);
	alloc_much(stage);
}

static void give_all_back(struct stage *stage)
{
	const char *name = "scene/model/";
	struct figures now = {.chunks = UINT64_MAX};

	must(fsdp_release_sync(stage->client, stage->mine, 2) == 0);
	must(fsdp_remove(stage->client, &name, 1) == 0);
	/* Until a client is back, all tensors that it ever got count as
	 * held. */
	while (now.chunks > 1 || now.chunk_bytes > stage->chunk_bytes) {
		must(fsdp_ping(stage->client) == 0);
		must(fsdp_ping(stage->other) == 0);
		figures_read(stage->bystander, &now);
	}
}

static void check_given_back(struct stage *stage)
{
	struct figures now;

	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.chunks, 1));
}

SCENE(the_return_of_memory_to_the_kernel, .has_no_pool = true,
      .prepare = load_and_alloc, .act = give_all_back,
      .check = check_given_back, .config = COLD, .is_ragged = true)

/* --- publish and remove -------------------------------------------------- */

#define NAME "scene/a"

static void publish(struct stage *stage, struct fsdp_tensor *tensor,
		    const char *name, uint32_t flags, uint64_t version)
{
	struct fsdp_publication it = {
		.tensor = tensor, .name = name, .flags = flags};

	must(fsdp_publish(stage->client, &it, 1) == 0);
	must(it.version == version);
}

static void make_first(struct stage *stage)
{
	stage->mine[0] = pattern_make(stage->client, pattern_tag(NAME, 1));
}

static void publish_first(struct stage *stage)
{
	publish(stage, stage->mine[0], NAME, 0, 1);
}

static void check_first(struct stage *stage)
{
	cr_assert(pattern_is_published(stage->other, NAME, 1));
	cr_assert(eq(i64, count_holds(stage->client, NAME), 1));
	cr_assert(eq(int, fsdp_release(stage->mine[0]), 0));
	cr_assert(eq(int, fsdp_acquire(stage->mine[0]), 0));
}

SCENE(publish, .prepare = make_first, .act = publish_first,
      .check = check_first)

static void hold_first_make_second(struct stage *stage)
{
	const char *name = NAME;

	pattern_put(stage->client, NAME, 1);
	must(fsdp_get(stage->other, &name, 1, NULL, stage->others) == 0);
	stage->mine[0] = pattern_make(stage->client, pattern_tag(NAME, 2));
}

static void replace(struct stage *stage)
{
	publish(stage, stage->mine[0], NAME, FSDP_REPLACE, 2);
}

static void check_replaced(struct stage *stage)
{
	struct figures now;

	cr_assert(pattern_is_published(stage->other, NAME, 2));
	cr_assert(eq(i64, count_holds(stage->client, NAME), 1));
	cr_assert(pattern_is(stage->others[0], pattern_tag(NAME, 1)));
	cr_assert(eq(i64, count_slot_holds(stage->other, stage->others[0]), 1));
	cr_assert(eq(int, fsdp_acquire(stage->others[0]), -ESTALE));
	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.slots_limbo, 1));
	cr_assert(
		eq(int, fsdp_release_sync(stage->other, stage->others, 1), 0));
	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.slots_limbo, 0));
}

SCENE(replace, .prepare = hold_first_make_second, .act = replace,
      .check = check_replaced)

static void publish_unnamed(struct stage *stage)
{
	publish(stage, stage->mine[0], NULL, 0, 0);
}

static void check_unnamed(struct stage *stage)
{
	cr_assert(pattern_is(stage->mine[0], pattern_tag(NAME, 1)));
	cr_assert(eq(i64, count_slot_holds(stage->client, stage->mine[0]), 1));
	/* The tensor is published, so this session cannot write it any more,
	 * but it can still give it a name. */
	publish(stage, stage->mine[0], NAME, 0, 1);
}

SCENE(anonymous_publish, .prepare = make_first, .act = publish_unnamed,
      .check = check_unnamed)

static const char *const THREE[] = {"scene/x", "scene/y", "scene/z"};

static void make_three(struct stage *stage)
{
	for (int i = 0; i < 3; i++)
		stage->mine[i] = pattern_make(stage->client,
					      pattern_tag(THREE[i], i ? 1 : 2));
	pattern_put(stage->other, THREE[0], 1);
}

/* One name is replaced, one is tied and has a time to live, and one may be
 * evicted. */
static void publish_three(struct stage *stage)
{
	struct fsdp_publication it[3] = {
		{.tensor = stage->mine[0],
		 .name = THREE[0],
		 .flags = FSDP_REPLACE},
		{.tensor = stage->mine[1],
		 .name = THREE[1],
		 .flags = FSDP_TIED,
		 .ttl_ms = 1000000},
		{.tensor = stage->mine[2],
		 .name = THREE[2],
		 .flags = FSDP_EVICTABLE},
	};

	must(fsdp_publish(stage->client, it, 3) == 0);
	must(it[0].version == 2 && it[1].version == 1 && it[2].version == 1);
}

static int check_entry(const struct fsdp_entry *entry, void *data)
{
	int i = entry->info->name[6] - 'x';
	static const uint32_t flags[] = {0, FSDP_TIED, FSDP_EVICTABLE};

	++*(int *)data;
	must((entry->flags & (FSDP_TIED | FSDP_EVICTABLE)) == flags[i]);
	must((entry->ttl_left_ms > 0) == (i == 1));
	must(entry->n_holders == 1);
	return 0;
}

static void check_batch(struct stage *stage)
{
	int n = 0;

	must(fsdp_list(stage->bystander, "scene/", check_entry, &n) == 0);
	cr_assert(eq(int, n, 3));
	for (int i = 0; i < 3; i++)
		cr_assert(pattern_is_published(stage->other, THREE[i],
					       i ? 1 : 2));
	/* The tied name ends with its session. */
	fsdp_close(stage->client);
	stage->client = NULL;
	n = 0;
	must(fsdp_list(stage->bystander, "scene/y", count_entry, &n) == 0);
	cr_assert(eq(int, n, 0));
}

SCENE(a_batch_of_publications, .prepare = make_three, .act = publish_three,
      .check = check_batch)

static void hold_first(struct stage *stage)
{
	const char *name = NAME;

	pattern_put(stage->client, NAME, 1);
	must(fsdp_get(stage->other, &name, 1, NULL, stage->others) == 0);
}

static void remove_name(struct stage *stage)
{
	const char *name = NAME;

	must(fsdp_remove(stage->client, &name, 1) == 0);
}

static void check_removed(struct stage *stage)
{
	struct fsdp_tensor *tensor = NULL;
	const char *name = NAME;

	cr_assert(eq(int, fsdp_get(stage->client, &name, 1, NULL, &tensor),
		     -ENOENT));
	cr_assert(pattern_is(stage->others[0], pattern_tag(NAME, 1)));
	cr_assert(
		eq(int, fsdp_release_sync(stage->other, stage->others, 1), 0));
	cr_assert(eq(int, fsdp_acquire(stage->others[0]), -ESTALE));
}

SCENE(remove, .prepare = hold_first, .act = remove_name, .check = check_removed)

/* --- get and release ----------------------------------------------------- */

static void put_two(struct stage *stage)
{
	pattern_put(stage->other, "scene/x", 1);
	pattern_put(stage->other, "scene/y", 1);
}

static void get_two(struct stage *stage)
{
	must(fsdp_get(stage->client, THREE, 2, NULL, stage->mine) == 0);
}

static void check_two(struct stage *stage)
{
	for (int i = 0; i < 2; i++) {
		cr_assert(pattern_is(stage->mine[i], pattern_tag(THREE[i], 1)));
		cr_assert(eq(i64, count_holds(stage->other, THREE[i]), 1));
		cr_assert(eq(int, fsdp_release(stage->mine[i]), 0));
		cr_assert(eq(i64, count_holds(stage->other, THREE[i]), 0));
	}
}

SCENE(get, .prepare = put_two, .act = get_two, .check = check_two)

static void *wait_for_first(void *data)
{
	struct fsdp_get_options options = {.timeout_ms = -1};
	struct stage *stage = data;
	const char *name = NAME;

	stage->r = fsdp_get(stage->other, &name, 1, &options, stage->others);
	return NULL;
}

static int add_waiting(const struct fsdp_peer *peer, void *data)
{
	*(uint32_t *)data += peer->n_waiting;
	return 0;
}

static void park(struct stage *stage)
{
	uint32_t n = 0;

	make_first(stage);
	pthread_create(&stage->thread, NULL, wait_for_first, stage);
	while (n == 0)
		must(fsdp_clients(stage->client, add_waiting, &n) == 0);
}

static void publish_to_waiter(struct stage *stage)
{
	publish_first(stage);
	pthread_join(stage->thread, NULL);
	must(stage->r == 0);
}

static void check_waiter(struct stage *stage)
{
	cr_assert(pattern_is(stage->others[0], pattern_tag(NAME, 1)));
	cr_assert(eq(i64, count_holds(stage->client, NAME), 2));
	cr_assert(eq(i64, count_slot_holds(stage->other, stage->others[0]), 2));
}

SCENE(a_publish_that_wakes_a_waiting_get, .prepare = park,
      .act = publish_to_waiter, .check = check_waiter, .is_ragged = true)

static void get_twice(struct stage *stage)
{
	hold_first(stage);
	must(fsdp_hold(stage->others[0]) == 0);
	remove_name(stage);
}

static void release_sync(struct stage *stage)
{
	must(fsdp_release_sync(stage->other, stage->others, 1) == 0);
}

static void check_released_once(struct stage *stage)
{
	cr_assert(eq(i64, count_slot_holds(stage->other, stage->others[0]), 1));
	release_sync(stage);
	cr_assert(eq(int, fsdp_release(stage->others[0]), -EINVAL));
}

SCENE(release_sync, .prepare = get_twice, .act = release_sync,
      .check = check_released_once)

static void hold_in_limbo(struct stage *stage)
{
	hold_first(stage);
	remove_name(stage);
}

static void release_in_limbo(struct stage *stage)
{
	struct figures now = {.slots_limbo = 1};

	must(fsdp_release(stage->others[0]) == 0);
	while (now.slots_limbo > 0) {
		/* After its restart the broker knows that no session holds the
		 * tensor only when all sessions that ever had it are back. */
		must(fsdp_ping(stage->client) == 0);
		must(fsdp_ping(stage->other) == 0);
		figures_read(stage->bystander, &now);
	}
}

static void check_collected(struct stage *stage)
{
	cr_assert(eq(int, fsdp_acquire(stage->others[0]), -ESTALE));
}

SCENE(a_ring_of_the_doorbell, .prepare = hold_in_limbo, .act = release_in_limbo,
      .check = check_collected, .is_ragged = true)

/* --- tickets ------------------------------------------------------------- */

static void ticket(struct stage *stage)
{
	must(fsdp_ticket_make(stage->mine[0], 2, 1000000, &stage->ticket) == 0);
}

static void redeem(struct stage *stage, struct fsdp_tensor **ret)
{
	must(fsdp_ticket_redeem(stage->other, &stage->ticket, 1, ret) == 0);
}

static void check_used_up(struct stage *stage)
{
	struct fsdp_tensor *none = NULL;
	struct figures now;

	cr_assert(eq(int,
		     fsdp_ticket_redeem(stage->other, &stage->ticket, 1, &none),
		     -ENOENT));
	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.tickets, 0));
	cr_assert(pattern_is(stage->others[0], pattern_tag(NAME, 1)));
	cr_assert(eq(i64, count_slot_holds(stage->other, stage->others[0]), 2));
}

static void check_ticket(struct stage *stage)
{
	fsdp_free(stage->mine[0]);
	redeem(stage, &stage->others[0]);
	redeem(stage, &stage->others[1]);
	check_used_up(stage);
}

SCENE(ticket, .prepare = make_first, .act = ticket, .check = check_ticket)

static void make_ticket(struct stage *stage)
{
	make_first(stage);
	ticket(stage);
	fsdp_free(stage->mine[0]);
}

static void redeem_first(struct stage *stage)
{
	redeem(stage, &stage->others[0]);
}

static void check_redeemed_once(struct stage *stage)
{
	cr_assert(eq(i64, count_slot_holds(stage->other, stage->others[0]), 1));
	redeem(stage, &stage->others[1]);
	check_used_up(stage);
}

SCENE(redeem, .prepare = make_ticket, .act = redeem_first,
      .check = check_redeemed_once)

static void redeem_last(struct stage *stage)
{
	redeem(stage, &stage->others[1]);
}

static void make_half_used_ticket(struct stage *stage)
{
	make_ticket(stage);
	redeem(stage, &stage->others[0]);
}

SCENE(the_last_redeem, .prepare = make_half_used_ticket, .act = redeem_last,
      .check = check_used_up)

/* --- sessions ------------------------------------------------------------ */

/* The broker is back, but `other` has not reconnected yet. */
static void restart(struct stage *stage)
{
	struct figures now;

	hold_first(stage);
	daemon_kill_broker(&stage->chaos.daemon);
	figures_read(stage->bystander, &now);
	must(fsdp_ping(stage->client) == 0);
}

static void reconnect(struct stage *stage)
{
	must(fsdp_ping(stage->other) == 0);
}

static void check_reconnected(struct stage *stage)
{
	cr_assert(eq(i64, count_holds(stage->client, NAME), 1));
	remove_name(stage);
	cr_assert(pattern_is(stage->others[0], pattern_tag(NAME, 1)));
	must(fsdp_release_sync(stage->other, stage->others, 1) == 0);
}

SCENE(the_hello_of_a_client_that_comes_back, .prepare = restart,
      .act = reconnect, .check = check_reconnected)

static void say_goodbye(struct stage *stage)
{
	fsdp_close(stage->client);
	stage->client = NULL;
}

/* Use something of each kind that a session can leave. */
static void use_everything(struct stage *stage)
{
	struct fsdp_publication tied = {.tensor =
						pattern_make(stage->client, 0),
					.name = "scene/tied",
					.flags = FSDP_TIED};

	hold_first(stage);
	must(fsdp_publish(stage->client, &tied, 1) == 0);
	begin_and_fill(stage);
	alloc_one(stage);
	put_two(stage);
	must(fsdp_get(stage->client, THREE, 2, NULL, stage->mine) == 0);
}

static void check_gone(struct stage *stage)
{
	struct figures now;

	figures_read(stage->bystander, &now);
	cr_assert(eq(u64, now.bundles, 0));
	cr_assert(eq(u64, now.slots, 4)); /* kept/tensor, NAME, x and y */
	cr_assert(eq(i64, count_holds(stage->other, "scene/x"), 0));
	cr_assert(pattern_is(stage->others[0], pattern_tag(NAME, 1)));
}

SCENE(goodbye, .prepare = use_everything, .act = say_goodbye,
      .check = check_gone, .is_ragged = true)

static void connect_and_get(void *data)
{
	struct fsdp_client *mine = chaos_connect(data);

	/* The parent's driver cannot be used after the fork. */
	must(are_on_devices() || pattern_is_published(mine, NAME, 1));
	fsdp_close(mine);
}

static void first_hello(struct stage *stage)
{
	must(child_wait(child_start(connect_and_get, &stage->chaos)) == 0);
}

static void put_first(struct stage *stage)
{
	pattern_put(stage->client, NAME, 1);
}

static void check_put(struct stage *stage)
{
	cr_assert(eq(i64, count_holds(stage->other, NAME), 0));
}

SCENE(the_first_hello, .prepare = put_first, .act = first_hello,
      .check = check_put, .is_ragged = true)

static int ignore_peer(const struct fsdp_peer *peer, void *data)
{
	(void)peer;
	(void)data;
	return 0;
}

static void inspect(struct stage *stage)
{
	struct figures now;
	int n = 0;

	must(fsdp_list(stage->client, NULL, count_entry, &n) == 0);
	must(n == 2);
	must(fsdp_clients(stage->client, ignore_peer, NULL) == 0);
	figures_read(stage->client, &now);
	must(count_holds(stage->client, NAME) == 1);
}

static void check_first_held(struct stage *stage)
{
	cr_assert(eq(i64, count_slot_holds(stage->other, stage->others[0]), 1));
}

SCENE(inspection, .prepare = hold_first, .act = inspect,
      .check = check_first_held)
