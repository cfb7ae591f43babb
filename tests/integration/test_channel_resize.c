/*
 * Tests changes of the number of buffers while a channel is in use. No item is
 * lost, the order stays, and the memory of removed buffers is freed.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/item.h"
#include "tests/lib/wire.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME    "data/batches"
#define N_SLOTS 8

CHECKED_SUITE(channel_resize, client_setup_supervised, client_teardown,
	      .timeout = 300);

static const struct fsdp_channel_options OPTIONS = {
	.capacity = 4096, .n_slots = N_SLOTS, .timeout_ms = 10000};

static struct fsdp_channel_options options;
static struct fsdp_channel *from, *to;

static struct fsdp_channel *open_as(struct fsdp_client *of,
				    enum fsdp_channel_role role)
{
	struct fsdp_channel *channel;

	must(fsdp_channel_open(of, NAME, &options, role, &channel) == 0);
	return channel;
}

static void open_both(enum fsdp_channel_mode mode)
{
	options = OPTIONS;
	options.mode = mode;
	from = open_as(client, FSDP_PRODUCER);
	to = open_as(client, FSDP_CONSUMER);
}

static void pass_on(struct fsdp_channel *channel, uint64_t number)
{
	must(fsdp_item_release(item_receive(channel, number)) == 0);
}

static void resize(uint32_t n)
{
	must(fsdp_channel_resize(from, n, -1) == 0);
}

static uint32_t count_slots(void)
{
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};

	must(fsdp_channel_info(from, &info) == 0);
	return info.n_slots;
}

/* Wait until the channel has `n` buffers, and check that all of them can be
 * used. */
static void await_slots(uint32_t n)
{
	struct fsdp_item *items[FSDP_CHANNEL_SLOTS], *more;

	while (count_slots() != n)
		nap_ms(1);
	for (uint32_t i = 0; i < n; i++)
		must(fsdp_item_begin(from, -1, &items[i]) == 0);
	cr_expect(eq(int, fsdp_item_begin(from, 0, &more), -ETIMEDOUT));
	for (uint32_t i = 0; i < n; i++)
		fsdp_item_cancel(items[i]);
}

/* Wait until this user has `n` tensors at the broker, each of them a buffer. */
static void await_memory(uint64_t n)
{
	struct wire *wire = wire_open(daemon_socket(&daemon_));

	while (wire_status(wire, "own_slots") != n) {
		struct fsdp_item *item;

		must(fsdp_item_receive(to, 0, &item) == -ETIMEDOUT);
		nap_ms(1);
	}
	wire_close(wire);
}

Test(channel_resize, a_larger_channel_holds_more_items)
{
	open_both(FSDP_CHANNEL_SHARE);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	resize(FSDP_CHANNEL_SLOTS);
	for (uint64_t i = N_SLOTS; i < FSDP_CHANNEL_SLOTS; i++)
		item_send_number(from, i);
	for (uint64_t i = 0; i < FSDP_CHANNEL_SLOTS; i++)
		pass_on(to, i);
	await_slots(FSDP_CHANNEL_SLOTS);
}

Test(channel_resize, a_smaller_channel_loses_no_item_and_frees_memory)
{
	open_both(FSDP_CHANNEL_SHARE);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	resize(2);
	cr_expect(eq(u32, count_slots(), N_SLOTS));
	for (uint64_t i = 0; i < N_SLOTS; i++) {
		pass_on(to, i);
		if (i < 2)
			item_send_number(from, N_SLOTS + i);
	}
	for (uint64_t i = N_SLOTS; i < N_SLOTS + 2; i++)
		pass_on(to, i);
	await_slots(2);
	await_memory(2);
	resize(N_SLOTS);
	await_slots(N_SLOTS);
	await_memory(N_SLOTS);
}

/* A slot above the new limit that is still in use stays if the limit grows
 * again. */
Test(channel_resize, a_buffer_that_was_not_removed_yet_is_kept)
{
	struct fsdp_item *held[N_SLOTS];

	open_both(FSDP_CHANNEL_SHARE);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		held[i] = item_receive(to, i);
	resize(1);
	resize(N_SLOTS + 1);
	for (uint64_t i = 0; i < N_SLOTS; i++) {
		cr_expect(eq(u64, item_number(held[i]), i));
		must(fsdp_item_release(held[i]) == 0);
	}
	await_slots(N_SLOTS + 1);
	await_memory(N_SLOTS + 1);
}

Test(channel_resize, an_item_that_was_begun_is_sent)
{
	struct fsdp_item *begun[N_SLOTS];

	open_both(FSDP_CHANNEL_SHARE);
	for (int i = 0; i < N_SLOTS; i++)
		must(fsdp_item_begin(from, -1, &begun[i]) == 0);
	resize(1);
	for (int i = 0; i < N_SLOTS; i += 2) {
		struct fsdp_item *item;

		must(fsdp_item_send(begun[i]) == 0);
		fsdp_item_cancel(begun[i + 1]);
		must(fsdp_item_receive(to, -1, &item) == 0);
		must(fsdp_item_release(item) == 0);
	}
	await_slots(1);
	await_memory(1);
}

Test(channel_resize, a_resized_broadcast_loses_no_item)
{
	struct fsdp_channel *other;

	open_both(FSDP_CHANNEL_BROADCAST);
	other = open_as(client, FSDP_CONSUMER);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	must(fsdp_channel_resize(other, 2, 0) == 0);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		pass_on(to, i);
	cr_expect(eq(u32, count_slots(), N_SLOTS));
	for (uint64_t i = 0; i < N_SLOTS; i++)
		pass_on(other, i);
	await_slots(2);
	resize(4);
	await_slots(4);
}

Test(channel_resize, a_kept_item_beyond_the_limit_is_not_replaced)
{
	struct fsdp_tensor *kept;
	struct fsdp_item *held[N_SLOTS];

	open_both(FSDP_CHANNEL_SHARE);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		held[i] = item_receive(to, i);
	resize(N_SLOTS - 1);
	must(fsdp_item_keep(held[N_SLOTS - 1], 0, &kept) == 0);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		must(fsdp_item_release(held[i]) == 0);
	await_slots(N_SLOTS - 1);
	await_memory(N_SLOTS);
	cr_expect(eq(u64, *(const uint64_t *)fsdp_data(kept), N_SLOTS - 1));
	fsdp_free(kept);
	await_memory(N_SLOTS - 1);
}

/* The consumer that was cut still holds all old buffers. */
Test(channel_resize, items_kept_by_a_cut_consumer_stay_valid)
{
	struct fsdp_item *held[N_SLOTS], *item;
	struct fsdp_channel *slow;

	options = OPTIONS;
	options.mode = FSDP_CHANNEL_BROADCAST;
	options.lag_ms = 1;
	from = open_as(client, FSDP_PRODUCER);
	to = open_as(client, FSDP_CONSUMER);
	slow = open_as(client, FSDP_CONSUMER);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	for (uint64_t i = 0; i < N_SLOTS; i++) {
		held[i] = item_receive(slow, i);
		pass_on(to, i);
	}
	resize(2);
	item_send_number(from, N_SLOTS);
	pass_on(to, N_SLOTS);
	await_slots(2);
	cr_expect(eq(int, fsdp_item_receive(slow, 0, &item), -EOVERFLOW));
	for (uint64_t i = 0; i < N_SLOTS; i++) {
		cr_expect(eq(u64, item_number(held[i]), i));
		must(fsdp_item_release(held[i]) == 0);
	}
	must(fsdp_channel_close(slow) == 0);
	/* The other users see the new buffers. */
	for (uint64_t i = 0; i < 2; i++)
		item_send_number(from, i);
	for (uint64_t i = 0; i < 2; i++)
		pass_on(to, i);
	await_memory(2);
}

static int note_slots(const struct fsdp_channel_entry *entry, void *data)
{
	*(uint32_t *)data = entry->n_slots;
	return 0;
}

Test(channel_resize,
     a_resized_channel_can_be_opened_and_the_list_shows_its_slots)
{
	uint32_t n = 0;

	open_both(FSDP_CHANNEL_SHARE);
	resize(3);
	(void)open_as(client, FSDP_CONSUMER);
	cr_expect(zero(int, fsdp_channels(client, note_slots, &n)));
	cr_expect(eq(u32, n, 3));
	cr_expect(eq(int, fsdp_channel_resize(from, 0, 0), -EINVAL));
	cr_expect(eq(int, fsdp_channel_resize(from, 65, 0), -EINVAL));
	await_slots(3);
}

/* --- deaths and restarts -------------------------------------------------- */

Test(channel_resize, a_restart_of_the_broker_does_not_disturb_a_resize)
{
	open_both(FSDP_CHANNEL_SHARE);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	resize(2);
	daemon_kill_broker(&daemon_);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		pass_on(to, i);
	await_slots(2);
	await_memory(2);
	daemon_kill_broker(&daemon_);
	resize(4);
	daemon_kill_broker(&daemon_);
	await_slots(4);
	await_memory(4);
}

static atomic_int *n_held; /* shared */

static void hold_all(void *unused)
{
	struct fsdp_client *mine = connect_to(&daemon_, 0);
	struct fsdp_channel *channel = open_as(mine, FSDP_CONSUMER);

	(void)unused;
	for (uint64_t i = 0; i < N_SLOTS; i++) {
		(void)item_receive(channel, i);
		atomic_fetch_add(n_held, 1);
	}
	for (;;)
		pause();
}

Test(channel_resize, buffers_held_by_a_dead_consumer_are_removed)
{
	pid_t pid;

	n_held = shared_memory(sizeof(*n_held));
	options = OPTIONS;
	from = open_as(client, FSDP_PRODUCER);
	for (uint64_t i = 0; i < N_SLOTS; i++)
		item_send_number(from, i);
	pid = child_start(hold_all, NULL);
	while (atomic_load(n_held) < N_SLOTS)
		nap_ms(1);
	resize(2);
	to = open_as(client, FSDP_CONSUMER);
	cr_expect(eq(u32, count_slots(), N_SLOTS));
	(void)child_kill(pid);
	await_slots(2);
	await_memory(2);
	(void)munmap(n_held, sizeof(*n_held));
}

/* --- shortage ------------------------------------------------------------- */

#define LITTLE "[memory]\nmemory_max = 6M\nchunk_min = 2M\nchunk_max = 2M\n"
#define MIB    (UINT64_C(1) << 20)

static struct chaos chaos;

static void use_broker(const char *config)
{
	client_teardown();
	chaos_start(&chaos, config);
	daemon_ = chaos.daemon;
	client = chaos_connect(&chaos);
}

static void drop_broker(void)
{
	fsdp_close(client);
	chaos_stop(&chaos);
	client_setup_supervised();
}

static uint64_t status_of(const char *name)
{
	struct wire *wire = wire_open(daemon_socket(&daemon_));
	uint64_t value = wire_status(wire, name);

	wire_goodbye(wire);
	return value;
}

/* Open a channel in which each side has one item, and one item was sent but not
 * received. */
static void open_busy(uint64_t capacity, uint32_t n, struct fsdp_item **ret)
{
	const struct fsdp_spec spec = {FSDP_U64, 0, {0}};
	void *data;

	options = OPTIONS;
	options.capacity = capacity;
	options.n_slots = n;
	from = open_as(client, FSDP_PRODUCER);
	to = open_as(client, FSDP_CONSUMER);
	item_send_number(from, 0);
	ret[0] = item_receive(to, 0);
	item_send_number(from, 1);
	must(fsdp_item_begin(from, -1, &ret[1]) == 0);
	must(fsdp_item_part(ret[1], &spec, &data) == 0);
	*(uint64_t *)data = 2;
}

/* Check that all items arrive, and that the channel can use all of its
 * buffers. */
static void finish_busy(uint32_t n, struct fsdp_item *const *items)
{
	cr_expect(eq(u64, item_number(items[0]), 0));
	must(fsdp_item_release(items[0]) == 0);
	must(fsdp_item_send(items[1]) == 0);
	pass_on(to, 1);
	pass_on(to, 2);
	await_slots(n);
}

static void expect_refusal(uint32_t n, int code, const char *remedy)
{
	uint64_t n_bytes = status_of("own_bytes");
	uint64_t n_slots = status_of("own_slots");

	cr_expect(eq(int, fsdp_channel_resize(from, n, 0), code));
	cr_expect(strstr(fsdp_error(), "cannot give channel '" NAME "' ") &&
			  strstr(fsdp_error(), remedy),
		  "%s", fsdp_error());
	cr_expect(eq(u32, count_slots(), 3));
	cr_expect(eq(u64, status_of("own_slots"), n_slots));
	cr_expect(eq(u64, status_of("own_bytes"), n_bytes));
}

/* Take a chunk of 2 MiB that buffers of a channel of mode 0600 cannot use. */
static struct fsdp_tensor *take_chunk(void)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {1}};
	const struct fsdp_access access = {.gid = FSDP_GID_DEFAULT,
					   .mode = 0640};
	struct fsdp_tensor *tensor;

	must(fsdp_alloc(client, &spec, 1, &access, 0, &tensor) == 0);
	return tensor;
}

Test(channel_resize, without_memory_a_resize_changes_nothing)
{
	struct fsdp_tensor *hog;
	struct fsdp_item *items[2];

	use_broker(LITTLE);
	hog = take_chunk();
	open_busy(MIB, 3, items);
	expect_refusal(5, -ENOMEM, "release tensors, or raise memory_max");
	resize(4);
	finish_busy(4, items);
	fsdp_free(hog);
	drop_broker();
}

Test(channel_resize, above_the_quota_a_resize_changes_nothing)
{
	struct fsdp_tensor *hog;
	struct fsdp_item *items[2];

	use_broker(LITTLE);
	open_busy(MIB, 3, items);
	hog = take_chunk();
	expect_refusal(6, -EDQUOT, "release some, or have memory_max raised");
	expect_refusal(10, -EDQUOT, "ask for less, or have the quota raised");
	resize(4);
	finish_busy(4, items);
	fsdp_free(hog);
	drop_broker();
}

static void *grow_patiently(void *data)
{
	int *code = data;

	*code = fsdp_channel_resize(from, 5, -1);
	return NULL;
}

/* If a resize that waits made the buffers for which there is memory, their
 * freeing would resume it again and again. */
Test(channel_resize, a_resize_that_waits_allocates_no_buffer)
{
	struct fsdp_item *items[2];
	struct fsdp_tensor *hog;
	pthread_t thread;
	uint64_t n_freed;
	int code = 1;

	use_broker(LITTLE);
	hog = take_chunk();
	open_busy(MIB, 3, items);
	n_freed = status_of("freed_slots");
	must(pthread_create(&thread, NULL, grow_patiently, &code) == 0);
	wait_until_parked(1);
	cr_expect(eq(u64, status_of("freed_slots"), n_freed));
	fsdp_free(hog);
	must(pthread_join(thread, NULL) == 0);
	cr_expect(zero(int, code));
	finish_busy(5, items);
	drop_broker();
}

/* Let the n-th call of that kind fail while the channel grows. Returns false if
 * there is no n-th call, so that the channel has grown. */
static bool fail_to_grow(const char *point, unsigned int n)
{
	int r;

	plan_failure(chaos.failures, point, n, ENOMEM);
	r = fsdp_channel_resize(from, 16, 0);
	if (plan_is_done(chaos.failures)) {
		cr_expect(eq(int, r, -ENOMEM), "%s %u: %s", point, n,
			  fsdp_error());
		cr_expect(eq(u32, count_slots(), 3), "%s %u", point, n);
		cr_expect(eq(u64, status_of("own_slots"), 3), "%s %u", point,
			  n);
		return true;
	}
	plan_drop(chaos.failures);
	cr_expect(zero(int, r), "%s", fsdp_error());
	resize(3);
	return false;
}

static void sweep_failures(const char *point)
{
	struct fsdp_item *items[2];
	unsigned int n = 1;

	use_broker("[memory]\nmemory_max = 64M\nchunk_min = 2M\n"
		   "chunk_max = 2M\n");
	open_busy(MIB / 2, 3, items);
	while (fail_to_grow(point, n))
		n++;
	cr_expect(gt(uint, n, 1), "%s was passed", point);
	finish_busy(3, items);
	drop_broker();
}

Test(channel_resize, a_resize_that_fails_at_any_failpoint_changes_nothing)
{
	if (!chaos_has_points())
		cr_skip_test("the build has no failpoints");
	sweep_failures("arena.grow");
	sweep_failures("memfd.create");
	sweep_failures("chunk.populate");
}

/* The memory of a chunk is refused once, while no request waits for memory. */
Test(channel_resize, a_buffer_that_could_not_be_allocated_is_allocated_later)
{
	struct fsdp_tensor *kept;
	struct fsdp_item *item;

	if (!chaos_has_points())
		cr_skip_test("the build has no failpoints");
	use_broker("[memory]\nmemory_max = 64M\nchunk_min = 2M\n"
		   "chunk_max = 2M\n");
	options = OPTIONS;
	options.mode = FSDP_CHANNEL_SHARE;
	options.capacity = MIB;
	options.n_slots = 2;
	from = open_as(client, FSDP_PRODUCER);
	to = open_as(client, FSDP_CONSUMER);
	item_send_number(from, 0);
	item = item_receive(to, 0);
	plan_failure(chaos.failures, "chunk.populate", 1, ENOMEM);
	must(fsdp_item_keep(item, 0, &kept) == 0);
	must(fsdp_item_release(item) == 0);
	await_slots(2);
	cr_expect(plan_is_done(chaos.failures));
	fsdp_free(kept);
	drop_broker();
}

/* --- libraries of before -------------------------------------------------- */

static int open_as_before(struct wire *wire)
{
	const struct request request = {
		.kind = MESSAGE_CHANNEL_OPEN,
		.channel_open = {.name = NAME, .role = CHANNEL_CONSUMER}};

	return wire_call(wire, &request);
}

Test(channel_resize, a_library_without_support_for_resizing_is_refused)
{
	struct wire *wire = wire_open(daemon_socket(&daemon_));

	open_both(FSDP_CHANNEL_SHARE);
	wire_must(wire, open_as_before(wire));
	cr_expect(eq(int, fsdp_channel_resize(from, 2, 0), -EOPNOTSUPP));
	cr_expect(strstr(fsdp_error(), "too old for resizing") != NULL, "%s",
		  fsdp_error());
	await_slots(N_SLOTS);
	wire_goodbye(wire);
	resize(2);
	wire = wire_open(daemon_socket(&daemon_));
	cr_expect(eq(int, open_as_before(wire), -EOPNOTSUPP));
	wire_says(wire, "was resized");
	wire_close(wire);
}
