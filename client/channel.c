/*
 * Channels: opening and closing, and the list of them.
 */
#include "client/channel.h"
#include "client/channel_impl.h"
#include "client/pages.h"
#include "client/sized.h"
#include "client/spec.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FSDP_CHANNEL_SLOTS == SLOTS_MAX, "one limit of slots");
_Static_assert(FSDP_CHANNEL_SLOTS == CHANNEL_MAX_SLOTS, "one limit of slots");
_Static_assert((int)FSDP_PRODUCER == (int)CHANNEL_PRODUCER &&
		       (int)FSDP_CONSUMER == (int)CHANNEL_CONSUMER,
	       "one numbering of roles");
_Static_assert((int)FSDP_CHANNEL_SHARE == (int)SLOTS_SHARE &&
		       (int)FSDP_CHANNEL_BROADCAST == (int)SLOTS_BROADCAST,
	       "one numbering of modes");

/* --- opening ------------------------------------------------------------- */

static int call_open(struct fsdp_client *client, const struct request *request,
		     struct channel_reply *ret, struct error *err)
{
	struct received received;
	int r = client_call_in_slices(client, request, &received, err);

	if (r < 0)
		return r;
	*ret = received.reply.channel;
	received_deinit(&received);
	return 0;
}

static int fetch_slots(struct fsdp_channel *channel,
		       const struct channel_reply *reply, struct error *err)
{
	struct request request = {
		.kind = MESSAGE_CHANNEL_SLOTS,
		.channel_slots = {channel->id, channel->place},
	};
	const struct slots_form form = {.channel = reply->channel,
					.mode = (enum slots_mode)reply->way,
					.has_lag = reply->lag_ms,
					.capacity = reply->capacity};
	struct received received;
	int r = client_call(channel->client, &request, &received, err);

	if (r < 0)
		return r;
	if (received.n_fds != 1) {
		r = error_set(err, -EPROTO, "fsdpd sent no file of a channel");
	} else {
		r = slots_open(&channel->slots, received.fds[0], &form,
			       SLOTS_USER, err);
		received.fds[0] = -1;
	}
	received_deinit(&received);
	return r;
}

static int call_close(const struct fsdp_channel *channel, bool is_end,
		      struct error *err)
{
	const struct request request = {
		.kind = MESSAGE_CHANNEL_CLOSE,
		.channel_close = {channel->id, channel->place, is_end},
	};

	return client_command(channel->client, &request, err);
}

/* The handles of the buffers have ended already, or end with the
 * connection. */
static void free_one(struct fsdp_channel *channel, bool is_forked)
{
	while (channel->items) {
		struct fsdp_item *item = channel->items;

		channel->items = item->next;
		(void)buffer_end_use(item->buffer);
		free(item);
	}
	for (uint32_t i = 0; i < SLOTS_MAX; i++)
		(void)buffer_end_use(channel->buffers[i]);
	channel_watch_free(channel, is_forked);
	if (!is_forked)
		slots_close(&channel->slots);
	pthread_mutex_destroy(&channel->lock);
	free(channel);
}

void channel_free_all(struct fsdp_client *client, bool is_forked)
{
	while (client->channels) {
		struct fsdp_channel *channel = client->channels;

		client->channels = channel->next;
		free_one(channel, is_forked);
	}
}

static int open_place(struct fsdp_client *client,
		      const struct channel_reply *reply, const char *name,
		      enum fsdp_channel_role role, bool is_writable,
		      struct fsdp_channel **ret, struct error *err)
{
	struct fsdp_channel *channel = calloc(1, sizeof(*channel));
	int r;

	if (!channel)
		return error_nomem(err, "a channel");
	channel->client = client;
	channel->id = reply->channel;
	channel->place = reply->place;
	channel->role = role;
	channel->is_writable = is_writable;
	channel->lag_ms = reply->lag_ms;
	channel->slots = SLOTS_NULL;
	strncpy(channel->name, name, FSDP_MAX_NAME);
	pthread_mutex_init(&channel->lock, NULL);
	r = fetch_slots(channel, reply, err);
	if (r < 0) {
		(void)call_close(channel, false, NULL);
		free_one(channel, false);
		return r;
	}
	channel_note_order(channel);
	/* The caller is not told of deaths before it opened the channel. */
	channel->n_died = atomic_load_explicit(
		&channel->slots.page->people.n_died, memory_order_seq_cst);
	*ret = channel;
	return 0;
}

static int make_request(const char *name,
			const struct fsdp_channel_options *options,
			enum fsdp_channel_role role, struct request *ret,
			struct error *err)
{
	if (!name)
		return error_set(err, -EINVAL, "the channel's name is NULL");
	if (role != FSDP_PRODUCER && role != FSDP_CONSUMER)
		return error_set(err, -EINVAL,
				 "role %d is neither FSDP_PRODUCER nor "
				 "FSDP_CONSUMER",
				 (int)role);
	*ret = (struct request){
		.kind = MESSAGE_CHANNEL_OPEN,
		.channel_open =
			{
				.name = name,
				.access = spec_access(&options->access),
				.capacity = options->capacity,
				.n_slots = options->n_slots,
				.way = options->mode,
				.role = (uint32_t)role,
				.writes = role == FSDP_PRODUCER ||
					  options->changes_items,
				.timeout_ms = options->timeout_ms,
				.lag_ms = options->lag_ms,
				.knows_limit = true,
			},
	};
	return 0;
}

int fsdp_channel_open(struct fsdp_client *client, const char *name,
		      const struct fsdp_channel_options *options,
		      enum fsdp_channel_role role, struct fsdp_channel **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_channel_options desc;
	struct fsdp_channel *channel = NULL;
	struct channel_reply reply = {0};
	struct request request;
	int r = client_check(client, err);

	if (r == 0)
		r = sized_take(&desc, options, SIZED(fsdp_channel_options),
			       err);
	if (r == 0)
		r = make_request(name, &desc, role, &request, err);
	if (r == 0)
		r = call_open(client, &request, &reply, err);
	if (r == 0)
		r = open_place(client, &reply, name, role,
			       request.channel_open.writes, &channel, err);
	if (r < 0)
		return r;
	channel->known_only = desc.known_only;
	pthread_mutex_lock(&client->channels_lock);
	channel->next = client->channels;
	client->channels = channel;
	pthread_mutex_unlock(&client->channels_lock);
	*ret = channel;
	return 0;
}

/* --- closing ------------------------------------------------------------- */

static void unlink_channel(struct fsdp_channel *channel)
{
	struct fsdp_client *client = channel->client;
	struct fsdp_channel **link = &client->channels;

	pthread_mutex_lock(&client->channels_lock);
	while (*link != channel)
		link = &(*link)->next;
	*link = channel->next;
	pthread_mutex_unlock(&client->channels_lock);
}

static void drop_items(struct fsdp_channel *channel)
{
	for (struct fsdp_item *item = channel->items; item; item = item->next) {
		switch ((enum item_use)atomic_load(&item->use)) {
		case ITEM_BEGUN:
			fsdp_item_cancel(item);
			break;
		case ITEM_RECEIVED:
			(void)fsdp_item_release(item);
			break;
		case ITEM_FREE:
			break;
		}
	}
}

int fsdp_channel_close(struct fsdp_channel *channel)
{
	struct error *err = error_of_thread();
	int r;

	/* As in fsdp_free(): fsdp_close() frees it in a forked child. */
	if (!channel || guard_is_forked(&channel->client->guard))
		return 0;
	drop_items(channel);
	r = call_close(channel, false, err);
	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		fsdp_free(buffer_end_use(channel->buffers[i]));
		channel->buffers[i] = NULL;
	}
	unlink_channel(channel);
	free_one(channel, false);
	return r;
}

int fsdp_channel_end(struct fsdp_channel *channel)
{
	struct error *err = error_of_thread();
	int r = channel_check_role(channel, FSDP_PRODUCER, err);

	if (r < 0 || channel->is_ended)
		return r;
	if (channel->n_begun)
		return error_set(err, -EBUSY,
				 "%u items of channel '%s' were begun and not "
				 "sent; send or cancel them first",
				 channel->n_begun, channel->name);
	r = call_close(channel, true, err);
	/* It is done also if the wait for the reply was interrupted. */
	if (r == 0 || r == -EINTR)
		channel->is_ended = true;
	return r;
}

int fsdp_channel_info(const struct fsdp_channel *channel,
		      struct fsdp_channel_info *ret)
{
	struct error *err = error_of_thread();
	const struct slots_people *people;
	struct fsdp_channel_info info;
	uint32_t n_free, n_held;
	int r = channel_check(channel, err);

	if (r < 0)
		return r;
	people = &channel->slots.page->people;
	info = (struct fsdp_channel_info){
		.capacity = channel->slots.capacity,
		.mode = (uint32_t)channel->slots.mode,
		.n_producers = (uint32_t)__builtin_popcountll(
			atomic_load(&people->producers)),
		.n_consumers = (uint32_t)__builtin_popcountll(
			atomic_load(&people->consumers)),
	};
	slots_count(&channel->slots, &info.n_queued, &n_free, &n_held);
	info.n_slots = info.n_queued + n_free + n_held;
	return sized_give(ret, &info, SIZED(fsdp_channel_info), err);
}

/* --- resizing ------------------------------------------------------------ */

int fsdp_channel_resize(struct fsdp_channel *channel, uint32_t n_slots,
			int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_CHANNEL_RESIZE};
	struct received received;
	int r = channel_check(channel, err);

	if (r < 0)
		return r;
	if (n_slots < 1 || n_slots > SLOTS_MAX)
		return error_set(err, -EINVAL,
				 "a channel has 1 to %d slots, not %u",
				 SLOTS_MAX, n_slots);
	request.channel_resize = (struct channel_resize_request){
		channel->id, channel->place, n_slots, timeout_ms};
	r = client_call_in_slices(channel->client, &request, &received, err);
	if (r == 0)
		received_deinit(&received);
	return r;
}

/* --- the list ------------------------------------------------------------ */

static int show(const struct channel_item *item, fsdp_channel_fn *fn,
		void *data)
{
	const struct fsdp_channel_entry entry = {
		.struct_size = sizeof(entry),
		.name = item->name,
		.uid = item->uid,
		.mode = item->way,
		.capacity = item->capacity,
		.n_slots = item->n_slots,
		.n_queued = item->n_queued,
		.pid = item->pid,
		.command = item->command,
		.role = (enum fsdp_channel_role)item->role,
		.is_ended = item->is_ended,
		.n_items = item->n_items,
		.n_waits = item->n_waits,
		.age_ms = item->age_ms,
		.is_waiting = item->want != SLOTS_NOTHING,
		.wait_ms = item->wait_ms,
	};

	return fn(&entry, data);
}

int fsdp_channels(struct fsdp_client *client, fsdp_channel_fn *fn, void *data)
{
	struct request request = {.kind = MESSAGE_CHANNELS};
	struct pages pages = PAGES(client, &request, channels);
	const struct channels_reply *page = &pages.received.reply.channels;

	pages_for_each (&pages, page, item)
		pages.r = show(item, fn, data);
	return pages.r;
}
