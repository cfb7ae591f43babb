/*
 * Kills the broker while channels are opened, kept and closed. Meanwhile items
 * are still passed from process to process.
 */
#include "tests/integration/scene.h"
#include "tests/lib/item.h"
#include "tests/lib/patience.h"
#include <errno.h>

#define NAME    "scene/batches"
#define N_SLOTS 4

static const struct fsdp_channel_options OPTIONS = {
	.capacity = 4096, .n_slots = N_SLOTS, .timeout_ms = 20000};

static struct fsdp_channel *from, *to;
static struct fsdp_item *held;
static struct fsdp_tensor *kept;

TestSuite(broker_dies_during, .timeout = 300);

/* Check that every slot exists once, and that each consumer receives the items
 * sent to it. */
static void check_flow(void)
{
	struct fsdp_item *items[N_SLOTS];

	for (uint64_t round = 0; round < 3; round++) {
		for (uint64_t i = 0; i < N_SLOTS; i++)
			item_send_number(from, i);
		for (uint64_t i = 0; i < N_SLOTS; i++)
			items[i] = item_receive(to, i);
		must(fsdp_item_begin(from, 0, &held) == -ETIMEDOUT);
		for (uint64_t i = 0; i < N_SLOTS; i++)
			must(fsdp_item_release(items[i]) == 0);
	}
}

static void open_both(struct stage *stage)
{
	must(fsdp_channel_open(stage->client, NAME, &OPTIONS, FSDP_PRODUCER,
			       &from) == 0);
	must(fsdp_channel_open(stage->other, NAME, NULL, FSDP_CONSUMER, &to) ==
	     0);
}

/* A producer that nobody closes would keep the end from the consumer. */
static void check_open(struct stage *stage)
{
	struct fsdp_item *item;

	(void)stage;
	check_flow();
	must(fsdp_channel_end(from) == 0);
	must(fsdp_item_receive(to, PATIENCE_MS, &item) == -ENODATA);
}

SCENE(channel_open, .act = open_both, .check = check_open, .is_ragged = true)

static void open_broadcast(struct stage *stage)
{
	struct fsdp_channel_options options = OPTIONS;

	options.mode = FSDP_CHANNEL_BROADCAST;
	must(fsdp_channel_open(stage->client, NAME, &options, FSDP_CONSUMER,
			       &to) == 0);
	must(fsdp_channel_open(stage->other, NAME, NULL, FSDP_PRODUCER,
			       &from) == 0);
}

/* A consumer that nobody closes would keep all buffers. */
static void check_broadcast(struct stage *stage)
{
	(void)stage;
	for (uint64_t i = 0; i < 2 * N_SLOTS; i++) {
		must(fsdp_item_begin(from, PATIENCE_MS, &held) == 0);
		fsdp_item_cancel(held);
		item_send_number(from, i);
		must(fsdp_item_release(item_receive(to, i)) == 0);
	}
}

SCENE(channel_broadcast, .act = open_broadcast, .check = check_broadcast,
      .is_ragged = true)

static void open_and_receive(struct stage *stage)
{
	open_both(stage);
	item_send_number(from, 1);
	held = item_receive(to, 1);
	item_send_number(from, 2);
}

static void keep(struct stage *stage)
{
	(void)stage;
	must(fsdp_item_keep(held, 0, &kept) == 0);
	must(fsdp_item_release(held) == 0);
}

static void check_kept_item(struct stage *stage)
{
	(void)stage;
	must(fsdp_item_release(item_receive(to, 2)) == 0);
	check_flow();
	cr_assert(eq(u64, *(const uint64_t *)fsdp_data(kept), 1));
	fsdp_free(kept);
}

SCENE(channel_keep, .prepare = open_and_receive, .act = keep,
      .check = check_kept_item, .is_ragged = true)

static void end_and_close(struct stage *stage)
{
	(void)stage;
	must(fsdp_channel_end(from) == 0);
	must(fsdp_channel_close(from) == 0);
}

static void check_ended(struct stage *stage)
{
	struct fsdp_item *item;

	must(fsdp_item_release(held) == 0);
	must(fsdp_item_release(item_receive(to, 2)) == 0);
	must(fsdp_item_receive(to, -1, &item) == -ENODATA);
	must(fsdp_channel_open(stage->client, NAME, NULL, FSDP_PRODUCER,
			       &from) == 0);
	check_flow();
}

SCENE(channel_close, .prepare = open_and_receive, .act = end_and_close,
      .check = check_ended, .is_ragged = true)

/* --- another number of slots ---------------------------------------------- */

static void open_small_and_fill(struct stage *stage)
{
	open_both(stage);
	for (uint64_t i = 1; i <= N_SLOTS; i++)
		item_send_number(from, i);
	held = item_receive(to, 1);
}

/* Make the channel larger and then smaller. Buffers that are in use leave when
 * they are released. */
static void resize(struct stage *stage)
{
	(void)stage;
	must(fsdp_channel_resize(from, N_SLOTS + 2, -1) == 0);
	must(fsdp_channel_resize(to, 2, -1) == 0);
	for (uint64_t i = 2; i <= N_SLOTS; i++)
		must(fsdp_item_release(item_receive(to, i)) == 0);
	must(fsdp_ping(stage->other) == 0);
}

static void check_resized(struct stage *stage)
{
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};

	(void)stage;
	must(fsdp_item_release(held) == 0);
	do {
		nap_ms(1);
		must(fsdp_channel_info(from, &info) == 0);
	} while (info.n_slots > 2);
	must(fsdp_channel_resize(from, N_SLOTS, -1) == 0);
	do {
		nap_ms(1);
		must(fsdp_channel_info(from, &info) == 0);
	} while (info.n_slots < N_SLOTS);
	check_flow();
}

SCENE(channel_resize, .prepare = open_small_and_fill, .act = resize,
      .check = check_resized, .is_ragged = true)

/* --- a limit of lag ------------------------------------------------------ */

static struct fsdp_channel *quick;

static void open_and_lag(struct stage *stage)
{
	struct fsdp_channel_options options = OPTIONS;

	options.mode = FSDP_CHANNEL_BROADCAST;
	options.lag_ms = 1;
	must(fsdp_channel_open(stage->client, NAME, &options, FSDP_PRODUCER,
			       &from) == 0);
	must(fsdp_channel_open(stage->client, NAME, &options, FSDP_CONSUMER,
			       &quick) == 0);
	must(fsdp_channel_open(stage->other, NAME, &options, FSDP_CONSUMER,
			       &to) == 0);
	for (uint64_t i = 1; i <= N_SLOTS; i++)
		item_send_number(from, i);
	held = item_receive(to, 1);
	for (uint64_t i = 1; i <= N_SLOTS; i++) {
		struct fsdp_item *item;

		must(fsdp_item_receive(quick, -1, &item) == 0);
		must(fsdp_item_release(item) == 0);
	}
}

static void cut(struct stage *stage)
{
	struct fsdp_item *item;

	(void)stage;
	must(fsdp_item_begin(from, -1, &item) == 0);
	fsdp_item_cancel(item);
}

static void check_cut(struct stage *stage)
{
	struct fsdp_channel_info info = {.struct_size = sizeof(info)};
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_item *item;

	(void)stage;
	must(fsdp_item_receive(to, 0, &item) == -EOVERFLOW);
	must(fsdp_item_view(held, 0, &view) == 0);
	must(*(const uint64_t *)view.data == 1);
	must(fsdp_item_release(held) == 0);
	do {
		nap_ms(1);
		must(fsdp_channel_info(from, &info) == 0);
	} while (info.n_slots < N_SLOTS);
	to = quick;
	check_flow();
}

SCENE(channel_lag, .prepare = open_and_lag, .act = cut, .check = check_cut,
      .is_ragged = true)
