/*
 * Tests broadcasts with a limit of lag. The channel cuts a consumer that keeps
 * items while a producer waits. The items that the consumer has received stay
 * valid, and the producer and the other consumers continue.
 */
#include "shm/slots.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/item.h"
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NAME    "data/weights"
#define N_SLOTS 4

CHECKED_SUITE(channel_lag, client_setup, client_teardown, .timeout = 300);

/* With this `lag_ms`, a consumer that keeps an item while the producer waits is
 * cut at once. */
static const struct fsdp_channel_options OPTIONS = {
	.capacity = 4096,
	.n_slots = N_SLOTS,
	.mode = FSDP_CHANNEL_BROADCAST,
	.timeout_ms = 10000,
	.lag_ms = 1,
};

static struct fsdp_channel *from, *quick;

static struct fsdp_channel *open_as(struct fsdp_client *of,
				    enum fsdp_channel_role role)
{
	struct fsdp_channel *channel;

	must(fsdp_channel_open(of, NAME, &OPTIONS, role, &channel) == 0);
	return channel;
}

static int try_receive(struct fsdp_channel *channel)
{
	struct fsdp_item *item;

	return fsdp_item_receive(channel, 0, &item);
}

/* Fill the channel. `quick` releases all items; the other consumers release
 * none. */
static void fill(void)
{
	for (uint64_t i = 1; i <= N_SLOTS; i++)
		item_send_number(from, i);
	for (uint64_t i = 1; i <= N_SLOTS; i++)
		must(fsdp_item_release(item_receive(quick, i)) == 0);
}

/* Wait until all buffers are there, and check that they are free. */
static void await_slots(void)
{
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};
	struct fsdp_item *items[N_SLOTS];

	do {
		nap_ms(1);
		must(fsdp_channel_info(from, &info) == 0);
	} while (info.n_slots < N_SLOTS);
	for (int i = 0; i < N_SLOTS; i++)
		must(fsdp_item_begin(from, -1, &items[i]) == 0);
	for (int i = 0; i < N_SLOTS; i++)
		fsdp_item_cancel(items[i]);
}

static void open_two(void)
{
	from = open_as(client, FSDP_PRODUCER);
	quick = open_as(client, FSDP_CONSUMER);
}

Test(channel_lag, a_consumer_that_keeps_items_while_a_producer_waits_is_cut)
{
	struct fsdp_channel *slow;
	struct fsdp_item *held;

	open_two();
	slow = open_as(client, FSDP_CONSUMER);
	fill();
	held = item_receive(slow, 1);
	for (uint64_t i = 10; i < 30; i++) {
		item_send_number(from, i);
		must(fsdp_item_release(item_receive(quick, i)) == 0);
	}
	cr_expect(eq(u64, item_number(held), 1));
	cr_expect(eq(int, try_receive(slow), -EOVERFLOW));
	cr_expect(strstr(fsdp_error(), " 23 items behind") != NULL, "%s",
		  fsdp_error());
	cr_expect(eq(int, try_receive(slow), -EOVERFLOW));
	cr_expect(eq(u64, item_number(held), 1));
	cr_expect(zero(int, fsdp_item_release(held)));
	await_slots();
	cr_expect(zero(int, fsdp_channel_close(slow)));
	slow = open_as(client, FSDP_CONSUMER);
	item_send_number(from, 40);
	cr_expect(zero(int, fsdp_item_release(item_receive(slow, 40))));
}

/* Make an item's consumer slow: it has kept all items for longer than the
 * limit, which is long enough for a few calls. */
#define LONG_LAG_MS 200

static struct fsdp_channel *keep_all_items(void)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_channel *slow;

	options.lag_ms = LONG_LAG_MS;
	must(fsdp_channel_open(client, NAME, &options, FSDP_PRODUCER, &from) ==
	     0);
	must(fsdp_channel_open(client, NAME, &options, FSDP_CONSUMER, &slow) ==
	     0);
	for (uint64_t i = 1; i <= N_SLOTS; i++) {
		item_send_number(from, i);
		(void)item_receive(slow, i);
	}
	return slow;
}

Test(channel_lag, the_time_between_two_short_waits_does_not_count)
{
	struct fsdp_channel *slow = keep_all_items();
	struct fsdp_item *item;

	cr_expect(eq(int, fsdp_item_begin(from, 0, &item), -ETIMEDOUT));
	nap_ms(LONG_LAG_MS + 1);
	cr_expect(eq(int, fsdp_item_begin(from, LONG_LAG_MS / 2, &item),
		     -ETIMEDOUT),
		  "%s", fsdp_error());
	cr_expect(eq(int, try_receive(slow), -ETIMEDOUT), "%s", fsdp_error());
}

Test(channel_lag, short_waits_one_after_another_are_one_wait)
{
	struct fsdp_channel *slow = keep_all_items();
	struct fsdp_item *item;
	int r;

	do
		r = fsdp_item_begin(from, 1, &item);
	while (r == -ETIMEDOUT);
	cr_expect(eq(int, r, -EPIPE), "%s", fsdp_error());
	cr_expect(eq(int, try_receive(slow), -EOVERFLOW));
}

Test(channel_lag, buffers_are_replaced_if_a_cut_consumer_keeps_all)
{
	struct fsdp_item *held[N_SLOTS];
	struct fsdp_channel *slow;

	open_two();
	slow = open_as(client, FSDP_CONSUMER);
	fill();
	for (uint64_t i = 0; i < N_SLOTS; i++)
		held[i] = item_receive(slow, i + 1);
	for (uint64_t i = 10; i < 30; i++) {
		item_send_number(from, i);
		must(fsdp_item_release(item_receive(quick, i)) == 0);
	}
	await_slots();
	for (uint64_t i = 0; i < N_SLOTS; i++) {
		cr_expect(eq(u64, item_number(held[i]), i + 1));
		cr_expect(zero(int, fsdp_item_release(held[i])));
	}
	await_slots();
}

static int find_cut(const struct fsdp_channel_entry *entry, void *data)
{
	int *n = data;

	*n += entry->role == FSDP_CONSUMER && entry->is_ended;
	return 0;
}

Test(channel_lag, the_list_of_channels_shows_consumers_that_were_cut)
{
	int n = 0;

	open_two();
	(void)open_as(client, FSDP_CONSUMER);
	fill();
	cr_expect(zero(int, fsdp_channels(client, find_cut, &n)));
	cr_expect(zero(int, n));
	item_send_number(from, 9);
	cr_expect(zero(int, fsdp_channels(client, find_cut, &n)));
	cr_expect(eq(int, n, 1));
}

static int count_lines(const char *word)
{
	char path[128], line[1024];
	FILE *file;
	int n = 0;

	(void)snprintf(path, sizeof(path), "%s/log", daemon_.dir);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		n += strstr(line, word) != NULL;
	must(file && fclose(file) == 0);
	return n;
}

Test(channel_lag, cutting_many_consumers_writes_one_line_to_the_log)
{
	int n = 0;

	open_two();
	for (int i = 0; i < 8; i++)
		(void)open_as(client, FSDP_CONSUMER);
	fill();
	item_send_number(from, 9);
	cr_expect(zero(int, fsdp_channels(client, find_cut, &n)));
	cr_expect(eq(int, n, 8));
	cr_expect(eq(int, count_lines("was cut"), 1));
}

Test(channel_lag, a_producer_that_polls_a_descriptor_is_woken_by_a_cut)
{
	struct pollfd polled = {.events = POLLIN};
	struct fsdp_channel *slow;
	struct fsdp_item *item;

	open_two();
	slow = open_as(client, FSDP_CONSUMER);
	fill();
	polled.fd = fsdp_channel_fd(from);
	cr_assert(ge(int, polled.fd, 0));
	while (fsdp_item_begin(from, 0, &item) == -ETIMEDOUT)
		must(poll(&polled, 1, -1) == 1);
	fsdp_item_cancel(item);
	cr_expect(eq(int, try_receive(slow), -EOVERFLOW));
}

Test(channel_lag, a_producer_gets_an_error_when_its_only_consumer_is_cut)
{
	struct fsdp_channel *slow;
	struct fsdp_item *item;

	from = open_as(client, FSDP_PRODUCER);
	slow = open_as(client, FSDP_CONSUMER);
	for (uint64_t i = 1; i <= N_SLOTS; i++)
		item_send_number(from, i);
	cr_expect(eq(int, fsdp_item_begin(from, -1, &item), -EPIPE));
	cr_expect(eq(int, try_receive(slow), -EOVERFLOW));
}

Test(channel_lag, a_lag_limit_needs_a_broadcast_and_must_be_equal_for_all_users)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_channel *channel;

	options.mode = FSDP_CHANNEL_SHARE;
	cr_expect(eq(int,
		     fsdp_channel_open(client, NAME, &options, FSDP_PRODUCER,
				       &channel),
		     -EINVAL));
	open_two();
	options = OPTIONS;
	options.lag_ms = 2;
	cr_expect(eq(int,
		     fsdp_channel_open(client, NAME, &options, FSDP_CONSUMER,
				       &channel),
		     -EINVAL));
}

/* --- death --------------------------------------------------------------- */

static atomic_int *has_item; /* shared */

static void hold_for_ever(void *unused)
{
	struct fsdp_client *mine = connect_to(&daemon_, 0);
	struct fsdp_channel *slow = open_as(mine, FSDP_CONSUMER);

	(void)unused;
	atomic_store(has_item, 1);
	(void)item_receive(slow, 1);
	atomic_store(has_item, 2);
	for (;;)
		pause();
}

/* Write to the channel's file that every user is a consumer, and that each of
 * them still has to read every item. */
static void claim_all_late(void)
{
	struct slots_page *page = item_page();

	atomic_store(&page->people.consumers, UINT64_MAX);
	for (int i = 0; i < N_SLOTS; i++)
		atomic_store(&page->masks[i], UINT64_MAX);
}

Test(channel_lag, a_producer_is_never_cut_even_if_the_file_says_so)
{
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};
	struct fsdp_channel *other, *slow;
	struct fsdp_item *item;

	open_two();
	other = open_as(client, FSDP_PRODUCER);
	slow = open_as(client, FSDP_CONSUMER);
	for (uint64_t i = 1; i <= N_SLOTS; i++)
		item_send_number(from, i);
	claim_all_late();
	/* Both consumers are cut, so that the producers are the only users
	 * left. */
	cr_expect(eq(int, fsdp_item_begin(from, -1, &item), -EPIPE));
	cr_expect(zero(int, fsdp_channel_info(from, &info)));
	cr_expect(eq(u32, info.n_producers, 2));
	cr_expect(zero(int, fsdp_channel_close(slow)));
	cr_expect(zero(int, fsdp_channel_close(other)));
}

Test(channel_lag, a_cut_consumer_that_is_killed_keeps_no_slot)
{
	pid_t pid;

	has_item = shared_memory(sizeof(*has_item));
	open_two();
	pid = child_start(hold_for_ever, NULL);
	while (atomic_load(has_item) < 1)
		nap_ms(1);
	fill();
	while (atomic_load(has_item) < 2)
		nap_ms(1);
	item_send_number(from, 9);
	must(fsdp_item_release(item_receive(quick, 9)) == 0);
	(void)child_kill(pid);
	await_slots();
	(void)munmap(has_item, sizeof(*has_item));
}
