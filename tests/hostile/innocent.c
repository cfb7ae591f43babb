/*
 * The calm processes, which must not notice the hostile ones.
 */
#include "client/fsdp_channel.h"
#include "tests/hostile/hostile.h"
#include "tests/lib/chaos.h"
#include <errno.h>
#include <string.h>

#define CAPACITY 4096
#define SLICE_MS 200

void calm_client(void *data)
{
	const struct life *life = data;
	struct soak_life soak = {.soak = &life->siege->soak,
				 .seed = life->seed,
				 .first_number = (uint64_t)(life->number + 1)
						 << 32};

	siege_become(life->siege, USER_CALM);
	soak_client(&soak);
}

void calm_rank(void *data)
{
	const struct life *life = data;

	siege_become(life->siege, USER_CALM);
	exact_train(&life->siege->training, life->number);
}

/* --- a channel ----------------------------------------------------------- */

static struct fsdp_client *connect_calm(const struct life *life)
{
	const struct fsdp_connect_options options = {
		.path = life->siege->socket};
	struct fsdp_client *client = NULL;

	siege_become(life->siege, USER_CALM);
	must(fsdp_connect(&options, &client) == 0);
	return client;
}

static void fill(uint64_t *words, uint64_t number)
{
	for (size_t i = 0; i < CAPACITY / sizeof(*words); i++)
		words[i] = number + i;
}

static bool is_filled(const uint64_t *words, uint64_t number)
{
	size_t i = 0;

	while (i < CAPACITY / sizeof(*words) && words[i] == number + i)
		i++;
	return i == CAPACITY / sizeof(*words);
}

void calm_producer(void *data)
{
	const struct life *life = data;
	const struct fsdp_spec spec = {FSDP_U8, 1, {CAPACITY}};
	const struct fsdp_channel_options options = {.capacity = CAPACITY,
						     .n_slots = 4};
	struct fsdp_client *client = connect_calm(life);
	struct fsdp_channel *channel = NULL;
	struct fsdp_item *item = NULL;
	uint64_t number = 0;
	void *words;
	int r;

	must(fsdp_channel_open(client, "calm/items", &options, FSDP_PRODUCER,
			       &channel) == 0);
	while (!atomic_load(&life->siege->must_end)) {
		r = fsdp_item_begin(channel, SLICE_MS, &item);
		must(r == 0 || r == -ETIMEDOUT);
		if (r < 0)
			continue;
		must(fsdp_item_part(item, &spec, &words) == 0);
		fill(words, ++number);
		must(fsdp_item_send(item) == 0);
	}
	must(fsdp_channel_end(channel) == 0);
	/* its items stay only while a process has the channel open */
	while (atomic_load(&life->siege->n_items) < number)
		nap_ms(1);
	must(fsdp_channel_close(channel) == 0);
	must(fsdp_close(client) == 0);
}

void calm_consumer(void *data)
{
	const struct life *life = data;
	const struct fsdp_channel_options options = {.timeout_ms = -1};
	struct fsdp_client *client = connect_calm(life);
	struct fsdp_item_view view = {.struct_size = sizeof(view)};
	struct fsdp_channel *channel = NULL;
	struct fsdp_item *item = NULL;
	uint64_t number = 0;
	int r;

	must(fsdp_channel_open(client, "calm/items", &options, FSDP_CONSUMER,
			       &channel) == 0);
	while ((r = fsdp_item_receive(channel, SLICE_MS, &item)) != -ENODATA) {
		must(r == 0 || r == -ETIMEDOUT);
		if (r < 0)
			continue;
		must(fsdp_item_view(item, 0, &view) == 0);
		must(view.size == CAPACITY && is_filled(view.data, ++number));
		must(fsdp_item_release(item) == 0);
		atomic_store(&life->siege->n_items, number);
	}
	must(fsdp_channel_close(channel) == 0);
	must(fsdp_close(client) == 0);
}
