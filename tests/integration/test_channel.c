/*
 * Tests channels. The right consumer receives what was sent, in order and
 * unchanged, and every user is told of an end, an error and a death.
 */
#include "shm/slots.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CAPACITY 4096
#define NAME     "data/batches"

CHECKED_SUITE(channel, client_setup, client_teardown, .timeout = 300);

static const struct fsdp_channel_options OPTIONS = {
	.capacity = CAPACITY, .n_slots = 4, .timeout_ms = 10000};

static struct fsdp_channel *open_as(struct fsdp_client *of,
				    const struct fsdp_channel_options *options,
				    enum fsdp_channel_role role)
{
	struct fsdp_channel *channel;

	must(fsdp_channel_open(of, NAME, options, role, &channel) == 0);
	return channel;
}

static struct fsdp_channel *producer(void)
{
	return open_as(client, &OPTIONS, FSDP_PRODUCER);
}

static struct fsdp_channel *consumer(void)
{
	return open_as(client, &OPTIONS, FSDP_CONSUMER);
}

static void send_number(struct fsdp_channel *channel, uint64_t number)
{
	const struct fsdp_spec spec = {FSDP_U64, 1, {4}};
	struct fsdp_item *item;
	uint64_t *data;
	void *at;

	must(fsdp_item_begin(channel, -1, &item) == 0);
	must(fsdp_item_part(item, &spec, &at) == 0);
	data = at;
	for (int i = 0; i < 4; i++)
		data[i] = number;
	must(fsdp_item_send(item) == 0);
}

static uint64_t number_of(const struct fsdp_item *item)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	uint64_t number;

	must(fsdp_item_view(item, 0, &view) == 0);
	must(view.dtype == FSDP_U64 && view.n_dims == 1 && view.shape[0] == 4);
	number = ((const uint64_t *)view.data)[0];
	for (int i = 1; i < 4; i++)
		must(((const uint64_t *)view.data)[i] == number);
	return number;
}

static uint64_t receive_number(struct fsdp_channel *channel)
{
	struct fsdp_item *item;
	uint64_t number;

	must(fsdp_item_receive(channel, -1, &item) == 0);
	number = number_of(item);
	must(fsdp_item_release(item) == 0);
	return number;
}

static int try_receive(struct fsdp_channel *channel)
{
	struct fsdp_item *item;
	int r = fsdp_item_receive(channel, 0, &item);

	if (r == 0)
		must(fsdp_item_release(item) == 0);
	return r;
}

static int try_begin(struct fsdp_channel *channel)
{
	struct fsdp_item *item;
	int r = fsdp_item_begin(channel, 0, &item);

	if (r == 0)
		fsdp_item_cancel(item);
	return r;
}

/* --- items --------------------------------------------------------------- */

Test(channel, items_are_received_in_order_and_slots_are_reused)
{
	struct fsdp_channel *from = producer(), *to = consumer();

	for (uint64_t i = 0; i < 100; i += 4) {
		for (uint64_t j = 0; j < 4; j++)
			send_number(from, i + j);
		cr_expect(eq(int, try_begin(from), -ETIMEDOUT));
		for (uint64_t j = 0; j < 4; j++)
			cr_assert(eq(u64, receive_number(to), i + j));
		cr_expect(eq(int, try_receive(to), -ETIMEDOUT));
	}
	cr_expect(zero(int, fsdp_channel_close(from)));
	cr_expect(zero(int, fsdp_channel_close(to)));
}

Test(channel, an_item_has_several_arrays_of_different_types)
{
	const struct fsdp_spec specs[] = {
		{FSDP_U8, 1, {5}}, {FSDP_F32, 2, {3, 7}}, {FSDP_F64, 0, {0}}};
	struct fsdp_channel *from = producer(), *to = consumer();
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_item *item;
	void *at[3];

	cr_assert(zero(int, fsdp_item_begin(from, 0, &item)));
	for (int i = 0; i < 3; i++) {
		cr_assert(zero(int, fsdp_item_part(item, &specs[i], &at[i])));
		cr_expect(zero(u64, (uintptr_t)at[i] % FSDP_ITEM_ALIGN));
	}
	memset(at[0], 'x', 5);
	((float *)at[1])[20] = 2.5f;
	*(double *)at[2] = 1e300;
	cr_assert(zero(int, fsdp_item_send(item)));
	cr_assert(zero(int, fsdp_item_receive(to, -1, &item)));
	cr_assert(eq(u32, fsdp_item_n_parts(item), 3));
	for (uint32_t i = 0; i < 3; i++) {
		cr_assert(zero(int, fsdp_item_view(item, i, &view)));
		cr_expect(eq(int, (int)view.dtype, (int)specs[i].dtype));
		cr_expect(eq(u32, view.n_dims, specs[i].n_dims));
		cr_expect(zero(int, memcmp(view.shape, specs[i].shape,
					   view.n_dims * sizeof(int64_t))));
		cr_expect(zero(ptr, view.data_mut));
	}
	cr_expect(eq(dbl, *(const double *)view.data, 1e300));
	cr_expect(eq(u64, view.size, sizeof(double)));
	cr_expect(eq(int, fsdp_item_view(item, 3, &view), -ERANGE));
	cr_expect(zero(int, fsdp_item_release(item)));
	cr_expect(eq(int, fsdp_item_release(item), -EINVAL));
}

Test(channel, an_item_is_no_larger_than_the_capacity)
{
	const struct fsdp_spec large = {FSDP_U8, 1, {CAPACITY}},
			       one = {FSDP_U8, 1, {1}},
			       none = {FSDP_U8, 1, {0}};
	struct fsdp_channel *from = producer();
	struct fsdp_item *item;
	void *at;

	cr_assert(zero(int, fsdp_item_begin(from, 0, &item)));
	cr_expect(zero(int, fsdp_item_part(item, &large, &at)));
	cr_expect(eq(int, fsdp_item_part(item, &one, &at), -ERANGE));
	for (int i = 1; i < FSDP_ITEM_PARTS; i++)
		cr_expect(zero(int, fsdp_item_part(item, &none, &at)));
	cr_expect(eq(int, fsdp_item_part(item, &none, &at), -E2BIG));
	fsdp_item_cancel(item);
	cr_expect(eq(int, fsdp_item_send(item), -EINVAL));
	cr_expect(zero(int, try_begin(from)));
}

Test(channel, a_writable_consumer_can_change_items_in_place)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_channel *from = producer(), *to;
	struct fsdp_item *item;

	options.changes_items = true;
	to = open_as(client, &options, FSDP_CONSUMER);
	send_number(from, 7);
	cr_assert(zero(int, fsdp_item_receive(to, -1, &item)));
	cr_assert(zero(int, fsdp_item_view(item, 0, &view)));
	cr_assert(eq(ptr, view.data_mut, (void *)(uintptr_t)view.data));
	memset(view.data_mut, 0, view.size);
	cr_expect(zero(u64, number_of(item)));
}

Test(channel, several_producers_and_consumers_share_a_channel)
{
	struct fsdp_channel *from[2] = {producer(), producer()};
	struct fsdp_channel *to[2] = {consumer(), consumer()};
	uint64_t sum = 0;

	for (uint64_t i = 0; i < 40; i += 2) {
		send_number(from[0], i);
		send_number(from[1], i + 1);
		sum += receive_number(to[1]);
		sum += receive_number(to[0]);
	}
	cr_expect(eq(u64, sum, 780));
}

/* --- malformed items ----------------------------------------------------- */

/* Returns the channel's shared file, which a producer without libfsdp could
 * change. */
static struct slots_page *find_page(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long begin = 0;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "fsdp-channel"))
			must(sscanf(line, "%lx", &begin) == 1);
	}
	if (maps)
		(void)fclose(maps);
	must(begin);
	return (struct slots_page *)begin;
}

static void spoil(struct slots_head *head, int how)
{
	struct slots_part *part = &head->parts[0];

	switch (how) {
	case 0:
		head->kind = 0;
		break;
	case 1:
		head->n_parts = SLOTS_PARTS + 1;
		break;
	case 2:
		part->dtype = 99;
		break;
	case 3:
		part->n_dims = SLOTS_DIMS + 1;
		break;
	case 4:
		part->shape[0] = -1;
		break;
	case 5:
		part->shape[0] = INT64_MAX / 2;
		break;
	case 6:
		part->offset = CAPACITY;
		break;
	case 7:
		part->offset = 8;
		break;
	case 8:
		part->offset = UINT64_MAX - SLOTS_ALIGN + 1;
		break;
	}
}

Test(channel, a_malformed_item_is_dropped)
{
	struct fsdp_channel *from = producer(), *to = consumer();
	struct slots_page *page = find_page();

	for (int how = 0; how <= 8; how++) {
		send_number(from, 1);
		for (int i = 0; i < 4; i++)
			spoil(&page->heads[i], how);
		cr_expect(eq(int, try_receive(to), -EBADMSG), "%d", how);
		send_number(from, 2);
		cr_expect(eq(u64, receive_number(to), 2));
	}
}

Test(channel, a_forged_error_ends_within_its_text)
{
	struct fsdp_channel *from = producer(), *to = consumer();
	struct slots_page *page = find_page();

	cr_assert(zero(int, fsdp_item_fail(from, 0, "short")));
	for (int i = 0; i < 4; i++)
		memset(page->heads[i].text, 'x', sizeof(page->heads[i].text));
	cr_expect(eq(int, try_receive(to), -EREMOTEIO));
	cr_expect(lt(sz, strlen(fsdp_error()), FSDP_ITEM_TEXT));
}

/* --- broadcast ----------------------------------------------------------- */

Test(channel, every_consumer_receives_all_items_of_a_broadcast)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_channel *from, *to[2];

	options.mode = FSDP_CHANNEL_BROADCAST;
	from = open_as(client, &options, FSDP_PRODUCER);
	/* A broadcast needs a consumer: without one, no item can be begun. */
	cr_expect(eq(int, try_begin(from), -ETIMEDOUT));
	cr_expect(eq(str, (char *)fsdp_error(),
		     "channel '" NAME "' has no consumer yet"));
	for (int i = 0; i < 2; i++)
		to[i] = open_as(client, &options, FSDP_CONSUMER);
	for (uint64_t i = 0; i < 40; i += 4) {
		for (uint64_t j = 0; j < 4; j++)
			send_number(from, i + j);
		for (uint64_t j = 0; j < 4; j++)
			cr_assert(eq(u64, receive_number(to[0]), i + j));
		cr_expect(eq(int, try_receive(to[0]), -ETIMEDOUT));
		cr_expect(eq(int, try_begin(from), -ETIMEDOUT));
		for (uint64_t j = 0; j < 4; j++)
			cr_assert(eq(u64, receive_number(to[1]), i + j));
	}
	/* A consumer that leaves delays no other. */
	for (uint64_t j = 0; j < 4; j++)
		send_number(from, j);
	cr_expect(zero(int, fsdp_channel_close(to[0])));
	for (uint64_t j = 0; j < 4; j++)
		cr_expect(eq(u64, receive_number(to[1]), j));
	cr_expect(zero(int, try_begin(from)));
}

/* --- descriptors --------------------------------------------------------- */

static bool is_readable(int fd, int timeout_ms)
{
	struct pollfd polled = {.fd = fd, .events = POLLIN};
	int n = poll(&polled, 1, timeout_ms);

	must(n >= 0);
	return n == 1;
}

/* Wait without a limit. */
static void await_readable(int fd)
{
	must(is_readable(fd, -1));
}

Test(channel, a_consumer_polls_for_items)
{
	struct fsdp_channel *from = producer(), *to = consumer();
	int fd = fsdp_channel_fd(to);

	cr_assert(ge(int, fd, 0));
	cr_expect(eq(int, fsdp_channel_fd(to), fd));
	cr_expect(not(is_readable(fd, 0)));
	for (uint64_t i = 0; i < 20; i++) {
		send_number(from, 2 * i);
		await_readable(fd);
		send_number(from, 2 * i + 1);
		cr_expect(eq(u64, receive_number(to), 2 * i));
		cr_expect(is_readable(fd, 0));
		cr_expect(eq(u64, receive_number(to), 2 * i + 1));
		cr_expect(eq(int, try_receive(to), -ETIMEDOUT));
		cr_expect(not(is_readable(fd, 0)));
	}
	cr_expect(zero(int, fsdp_channel_end(from)));
	await_readable(fd);
	cr_expect(eq(int, try_receive(to), -ENODATA));
	cr_expect(is_readable(fd, 0));
	cr_expect(zero(int, fsdp_channel_close(from)));
	cr_expect(zero(int, fsdp_channel_close(to)));
}

Test(channel, a_producer_polls_for_buffers)
{
	struct fsdp_channel *from = producer(), *to = consumer();
	int fd = fsdp_channel_fd(from);

	cr_assert(ge(int, fd, 0));
	await_readable(fd);
	for (uint64_t i = 0; i < 20; i++) {
		while (try_begin(from) == 0)
			send_number(from, i);
		cr_expect(not(is_readable(fd, 0)));
		cr_expect(eq(u64, receive_number(to), i < 3 ? 0 : i - 3));
		await_readable(fd);
	}
	while (try_begin(from) == 0)
		send_number(from, 20);
	cr_expect(zero(int, fsdp_channel_close(to)));
	await_readable(fd);
	cr_expect(eq(int, try_begin(from), -EPIPE));
	cr_expect(zero(int, fsdp_channel_close(from)));
}

static _Atomic pid_t receiver;

/* Return when that thread of this process sleeps in the kernel. */
static void await_sleep(void)
{
	char path[64], line[256], *state = NULL;

	do {
		FILE *file;

		nap_ms(1);
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat",
			 receiver);
		file = fopen(path, "re");
		if (file && fgets(line, sizeof(line), file))
			state = strrchr(line, ')');
		if (file)
			(void)fclose(file);
	} while (!state || state[2] != 'S');
}

static void *receive_one(void *to)
{
	static uint64_t number;

	receiver = gettid();
	number = receive_number(to);
	return &number;
}

/* A process that only polls does not take a wake-up from another process that
 * sleeps. */
Test(channel, a_process_that_polls_takes_no_wake_up_from_others)
{
	struct fsdp_channel *from = producer(), *polls[2], *to = consumer();
	pthread_t thread;
	int fds[2];

	for (int i = 0; i < 2; i++) {
		polls[i] = consumer();
		fds[i] = fsdp_channel_fd(polls[i]);
	}
	for (uint64_t round = 1; round <= 100; round++) {
		void *number = NULL;

		receiver = 0;
		must(pthread_create(&thread, NULL, receive_one, to) == 0);
		await_sleep();
		send_number(from, round);
		must(pthread_join(thread, &number) == 0);
		cr_expect(eq(u64, *(uint64_t *)number, round));
		for (int i = 0; i < 2; i++)
			cr_expect(eq(int, try_receive(polls[i]), -ETIMEDOUT));
	}
	send_number(from, 0);
	for (int i = 0; i < 2; i++)
		await_readable(fds[i]);
	cr_expect(zero(int, fsdp_channel_close(to)));
	for (int i = 0; i < 2; i++)
		cr_expect(zero(int, fsdp_channel_close(polls[i])));
	cr_expect(zero(int, fsdp_channel_close(from)));
}

/* --- ends ---------------------------------------------------------------- */

Test(channel, the_end_is_received_after_the_last_item)
{
	struct fsdp_channel *from[2] = {producer(), producer()};
	struct fsdp_channel *to = consumer();

	send_number(from[0], 1);
	cr_expect(zero(int, fsdp_channel_end(from[0])));
	cr_expect(eq(int, try_begin(from[0]), -ENODATA));
	cr_expect(eq(u64, receive_number(to), 1));
	cr_expect(eq(int, try_receive(to), -ETIMEDOUT));
	send_number(from[1], 2);
	cr_expect(zero(int, fsdp_channel_close(from[1])));
	cr_expect(eq(u64, receive_number(to), 2));
	cr_expect(eq(int, try_receive(to), -ENODATA));
}

Test(channel, an_error_is_received_in_the_order_of_sending)
{
	struct fsdp_channel *from = producer(), *to = consumer();

	send_number(from, 1);
	cr_expect(zero(int, fsdp_item_fail(from, 0, "no such file")));
	send_number(from, 2);
	cr_expect(eq(u64, receive_number(to), 1));
	cr_expect(eq(int, try_receive(to), -EREMOTEIO));
	cr_expect(zero(int, strcmp(fsdp_error(), "no such file")));
	cr_expect(eq(u64, receive_number(to), 2));
}

Test(channel, a_long_error_is_received_as_the_beginning_of_its_text)
{
	struct fsdp_channel *from = producer(), *to = consumer();
	char text[FSDP_ITEM_TEXT] = "line 1\nline 2";

	memset(text + strlen(text), 'x', sizeof(text) - 1 - strlen(text));
	cr_assert(zero(int, fsdp_item_fail(from, 0, text)));
	cr_expect(eq(int, try_receive(to), -EREMOTEIO));
	text[strcspn(text, "\n")] = '?';
	text[511] = '\0';
	cr_expect(eq(str, (char *)fsdp_error(), text));
}

Test(channel, producers_get_an_error_when_all_consumers_have_left)
{
	struct fsdp_channel *from = producer(), *to = consumer();

	send_number(from, 1);
	cr_expect(zero(int, fsdp_channel_close(to)));
	cr_expect(eq(int, try_begin(from), -EPIPE));
	/* The next consumer receives the rest. */
	to = consumer();
	cr_expect(eq(u64, receive_number(to), 1));
	cr_expect(zero(int, try_begin(from)));
}

/* --- opening ------------------------------------------------------------- */

Test(channel, opening_without_a_capacity_waits_for_the_channel)
{
	struct fsdp_channel_options options = {0};
	struct fsdp_channel *to;

	cr_expect(eq(
		int,
		fsdp_channel_open(client, NAME, &options, FSDP_CONSUMER, &to),
		-ENOENT));
	options.timeout_ms = 20;
	cr_expect(eq(
		int,
		fsdp_channel_open(client, NAME, &options, FSDP_CONSUMER, &to),
		-ETIMEDOUT));
	(void)producer();
	cr_expect(zero(int, fsdp_channel_open(client, NAME, NULL, FSDP_CONSUMER,
					      &to)));
}

/* The user's first channel needs a chunk, and making one takes time. A time-out
 * of 0 does not limit it. */
Test(channel, a_channel_is_created_even_with_a_time_out_of_0)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_channel *from;

	options.timeout_ms = 0;
	cr_expect(zero(int, fsdp_channel_open(client, NAME, &options,
					      FSDP_PRODUCER, &from)));
}

Test(channel, a_channel_that_can_never_fit_is_refused)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_channel *from;

	options.capacity = UINT64_C(1) << 50;
	cr_expect(lt(
		int,
		fsdp_channel_open(client, NAME, &options, FSDP_PRODUCER, &from),
		0));
	cr_expect(ne(ptr, (void *)strstr(fsdp_error(), NAME), NULL));
}

Test(channel, other_options_are_refused)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_channel *from = producer(), *other;

	options.capacity++;
	cr_expect(eq(int,
		     fsdp_channel_open(client, NAME, &options, FSDP_PRODUCER,
				       &other),
		     -EINVAL));
	options = OPTIONS;
	options.mode = FSDP_CHANNEL_BROADCAST;
	cr_expect(eq(int,
		     fsdp_channel_open(client, NAME, &options, FSDP_PRODUCER,
				       &other),
		     -EINVAL));
	options = OPTIONS;
	options.n_slots = 65;
	cr_expect(eq(int,
		     fsdp_channel_open(client, "data/other", &options,
				       FSDP_PRODUCER, &other),
		     -EINVAL));
	cr_expect(eq(int, try_receive(from), -EINVAL));
}

Test(channel, a_channel_ends_with_its_last_user)
{
	struct fsdp_channel *from = producer(), *other;
	struct fsdp_channel_options options = {0};

	cr_expect(zero(int, fsdp_channel_close(from)));
	cr_expect(eq(int,
		     fsdp_channel_open(client, NAME, &options, FSDP_CONSUMER,
				       &other),
		     -ENOENT));
}

Test(channel, a_channel_has_at_most_64_users)
{
	struct fsdp_channel *other;

	for (int i = 0; i < 64; i++)
		(void)producer();
	cr_expect(eq(int,
		     fsdp_channel_open(client, NAME, &OPTIONS, FSDP_PRODUCER,
				       &other),
		     -EUSERS));
}

/* --- keeping ------------------------------------------------------------- */

Test(channel, a_kept_array_becomes_a_tensor_and_its_buffer_is_replaced)
{
	struct fsdp_channel *from = producer(), *to = consumer();
	struct fsdp_tensor *kept[8];
	struct fsdp_item *item;

	for (uint64_t i = 0; i < 8; i++) {
		send_number(from, i);
		cr_assert(zero(int, fsdp_item_receive(to, -1, &item)));
		cr_assert(zero(int, fsdp_item_keep(item, 0, &kept[i])));
		cr_expect(eq(u64, number_of(item), i));
		cr_expect(zero(int, fsdp_item_release(item)));
	}
	for (uint64_t i = 100; i < 120; i++) {
		send_number(from, i);
		cr_expect(eq(u64, receive_number(to), i));
	}
	for (uint64_t i = 0; i < 8; i++) {
		cr_expect(eq(u64, *(const uint64_t *)fsdp_data(kept[i]), i));
		fsdp_free(kept[i]);
	}
}

Test(channel, a_call_that_does_not_wait_can_leave_the_broker_alone)
{
	struct fsdp_channel_options options = OPTIONS;
	struct fsdp_channel *from, *to;

	options.n_slots = 1;
	options.known_only = true;
	from = open_as(client, &options, FSDP_PRODUCER);
	to = open_as(client, &options, FSDP_CONSUMER);
	for (int i = 0; i < 2; i++) {
		/* The second time, both know the buffer. */
		cr_expect(eq(int, try_begin(from), i == 0 ? -EAGAIN : 0));
		send_number(from, 7);
		if (i == 0)
			cr_expect(eq(int, try_receive(to), -EAGAIN));
		cr_expect(eq(u64, receive_number(to), 7));
	}
	send_number(from, 8);
	cr_expect(zero(int, try_receive(to)));
}

/* --- deaths and restarts ------------------------------------------------- */

struct victim {
	void (*work)(struct fsdp_channel *channel);
	enum fsdp_channel_role role;
};

static void live(void *data)
{
	const struct victim *victim = data;
	struct fsdp_client *mine = connect_to(&daemon_, 0);

	victim->work(open_as(mine, &OPTIONS, victim->role));
	(void)raise(SIGKILL);
}

static void die_writing(struct fsdp_channel *channel)
{
	struct fsdp_item *item;

	send_number(channel, 1);
	for (int i = 0; i < 3; i++)
		must(fsdp_item_begin(channel, -1, &item) == 0);
}

static void die_reading(struct fsdp_channel *channel)
{
	struct fsdp_item *item;

	for (int i = 0; i < 3; i++)
		must(fsdp_item_receive(channel, -1, &item) == 0);
}

Test(channel, the_slots_of_a_dead_producer_are_freed_and_the_error_names_it)
{
	struct victim victim = {die_writing, FSDP_PRODUCER};
	struct fsdp_channel *to = consumer(), *from;
	struct fsdp_item *item;
	pid_t pid = child_start(live, &victim);

	cr_expect(eq(u64, receive_number(to), 1));
	cr_expect(eq(int, fsdp_item_receive(to, -1, &item), -EOWNERDEAD));
	cr_expect(ne(ptr, (void *)strstr(fsdp_error(), "has died"), NULL));
	cr_expect(eq(int, try_receive(to), -ENODATA));
	cr_expect(eq(int, child_wait(pid), SIGKILL));
	from = producer();
	for (uint64_t i = 0; i < 4; i++)
		send_number(from, i);
	for (uint64_t i = 0; i < 4; i++)
		cr_expect(eq(u64, receive_number(to), i));
}

Test(channel, the_slots_of_a_dead_consumer_are_freed)
{
	struct victim victim = {die_reading, FSDP_CONSUMER};
	struct fsdp_channel *from = producer();
	struct fsdp_item *item;
	pid_t pid;

	for (uint64_t i = 0; i < 4; i++)
		send_number(from, i);
	pid = child_start(live, &victim);
	cr_expect(eq(int, child_wait(pid), SIGKILL));
	/* The producer learns of the death at the latest when it waits for a
	 * free slot. */
	while (fsdp_item_begin(from, -1, &item) == 0)
		fsdp_item_cancel(item);
	cr_expect(ne(ptr, (void *)strstr(fsdp_error(), "have left"), NULL));
}
