/*
 * Tests what a user of a channel can do to the process of another user by
 * writing to the words of the channel. It can make the channel useless. The
 * other process keeps the memory of its items, and its calls return in time.
 */
#include "client/fsdp_channel.h"
#include "shm/slots.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/client.h"
#include "tests/lib/item.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define CAPACITY 4096
#define N_SLOTS  64
#define N_OTHERS 8 /* tensors that would get memory that was freed */

static struct fsdp_client *hostile;
static struct fsdp_channel *from, *to, *thief;

static struct fsdp_channel *open_as(struct fsdp_client *of,
				    enum fsdp_channel_role role)
{
	const struct fsdp_channel_options options = {
		.capacity = CAPACITY, .n_slots = N_SLOTS, .timeout_ms = 10000};
	struct fsdp_channel *channel;

	must(fsdp_channel_open(of, "data/items", &options, role, &channel) ==
	     0);
	return channel;
}

static void setup(void)
{
	client_setup();
	hostile = connect_to(&daemon_, 0);
	from = open_as(client, FSDP_PRODUCER);
	to = open_as(client, FSDP_CONSUMER);
	thief = open_as(hostile, FSDP_CONSUMER);
}

static void teardown(void)
{
	must(fsdp_close(hostile) == 0);
	client_teardown();
}

CHECKED_SUITE(hostile_channel, setup, teardown, .timeout = 300);

/* --- memory -------------------------------------------------------------- */

/* Begins an item whose bytes are all `byte`. */
static struct fsdp_item *begin(uint8_t byte, uint8_t **ret_data)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {CAPACITY}};
	struct fsdp_item *item;
	void *data;

	must(fsdp_item_begin(from, -1, &item) == 0);
	must(fsdp_item_part(item, &spec, &data) == 0);
	memset(data, byte, CAPACITY);
	*ret_data = data;
	return item;
}

/* Returns the first slot that a user has claimed or taken. */
static uint32_t find_used(const struct slots_page *page)
{
	uint32_t at = 0;

	while (slots_state(page->words[at]) != SLOTS_WRITING &&
	       slots_state(page->words[at]) != SLOTS_HELD)
		at++;
	return at;
}

/* Writes that an item was sent in this slot, receives it, and takes its buffer
 * out of the channel. Returns when the slot has another buffer. */
static void steal(uint32_t at)
{
	struct slots_page *page = item_page();
	uint32_t slot = page->buffers[at].slot;
	struct fsdp_tensor *kept;
	struct fsdp_item *item;

	page->heads[at] = (struct slots_head){
		.kind = SLOTS_ITEM,
		.n_parts = 1,
		.parts = {{.dtype = FSDP_U8, .n_dims = 0}},
	};
	page->words[at] = slots_word(1, 1, SLOTS_QUEUED);
	must(fsdp_item_receive(thief, -1, &item) == 0);
	must(fsdp_item_keep(item, 0, &kept) == 0);
	fsdp_free(kept);
	must(fsdp_item_release(item) == 0);
	while (page->buffers[at].slot == slot ||
	       slots_state(page->words[at]) != SLOTS_FREE)
		must(fsdp_ping(client) == 0);
}

/* Makes tensors, and fills them with another byte. */
static void make_others(struct fsdp_tensor *ret[N_OTHERS], uint8_t byte)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {CAPACITY}};

	for (int i = 0; i < N_OTHERS; i++) {
		must(fsdp_alloc(client, &spec, 1, NULL, 0, &ret[i]) == 0);
		memset(fsdp_data_mut(ret[i]), byte, CAPACITY);
	}
}

Test(hostile_channel, an_item_that_is_being_written_keeps_its_memory)
{
	struct fsdp_tensor *others[N_OTHERS];
	uint8_t *data, *unused;

	(void)begin(1, &data);
	steal(find_used(item_page()));
	/* This process learns that the slot has another buffer. */
	for (int i = 0; i < N_SLOTS; i++)
		(void)begin(2, &unused);
	make_others(others, 3);
	memset(data, 4, CAPACITY);
	for (int i = 0; i < N_OTHERS; i++) {
		cr_expect(eq(u8, *(const uint8_t *)fsdp_data(others[i]), 3));
		fsdp_free(others[i]);
	}
}

/* Receives the next item. */
static const uint8_t *receive(void)
{
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_item *item;

	must(fsdp_item_receive(to, -1, &item) == 0);
	must(fsdp_item_view(item, 0, &view) == 0);
	return view.data;
}

Test(hostile_channel, an_item_that_is_being_read_keeps_its_memory)
{
	struct fsdp_tensor *others[N_OTHERS];
	const uint8_t *read;
	uint8_t *data;

	must(fsdp_item_send(begin(1, &data)) == 0);
	read = receive();
	steal(find_used(item_page()));
	for (int i = 0; i < N_SLOTS; i++) {
		must(fsdp_item_send(begin(2, &data)) == 0);
		(void)receive();
	}
	make_others(others, 3);
	cr_expect(eq(u8, *read, 1));
	for (int i = 0; i < N_OTHERS; i++)
		fsdp_free(others[i]);
}

/* --- time ---------------------------------------------------------------- */

static atomic_bool is_over;

/* Writes an item that is older each time that another process looks. */
static void *grow_older(void *data)
{
	_Atomic uint64_t *word = &item_page()->words[N_SLOTS - 1];
	uint64_t number = UINT64_C(1) << 47;

	while (!atomic_load(&is_over))
		atomic_store(word, slots_word(number--, 1, SLOTS_QUEUED));
	return data;
}

Test(hostile_channel, a_consumer_does_not_look_for_the_oldest_item_for_ever)
{
	struct fsdp_item *item;
	pthread_t thread;

	must(pthread_create(&thread, NULL, grow_older, NULL) == 0);
	for (int i = 0; i < 1000; i++) {
		if (fsdp_item_receive(to, 1, &item) == 0)
			must(fsdp_item_release(item) == 0);
	}
	atomic_store(&is_over, true);
	must(pthread_join(thread, NULL) == 0);
}
