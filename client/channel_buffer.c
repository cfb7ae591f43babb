/*
 * The buffers of a channel as this process knows them.
 *
 * The shared file is only a hint which tensor a buffer is, since other
 * processes can write it. This process gets the tensor from the broker, once,
 * and the read-only state table tells whether it still is a buffer of a
 * channel. Another process can take the buffer of an item out of the channel,
 * but its memory stays until the item ends.
 */
#include "client/channel_impl.h"
#include "client/places.h"
#include <errno.h>
#include <stdlib.h>

/* --- checks -------------------------------------------------------------- */

int channel_check(const struct fsdp_channel *channel, struct error *err)
{
	if (!channel)
		return error_set(err, -EINVAL, "the channel is NULL");
	return client_check(channel->client, err);
}

int channel_check_role(const struct fsdp_channel *channel,
		       enum fsdp_channel_role role, struct error *err)
{
	int r = channel_check(channel, err);

	if (r < 0 || channel->role == role)
		return r;
	return error_set(err, -EINVAL,
			 "channel '%s' was opened as %s; open it again as %s",
			 channel->name,
			 role == FSDP_PRODUCER ? "consumer" : "producer",
			 role == FSDP_PRODUCER ? "producer" : "consumer");
}

int channel_notify(struct fsdp_channel *channel, const struct request *request,
		   struct error *err)
{
	struct error cause = ERROR_NULL;
	int r = client_command(channel->client, request, &cause);

	return r == -EINTR ? error_set(err, r, "%s", cause.msg) : 0;
}

/* --- buffers ------------------------------------------------------------- */

struct fsdp_tensor *buffer_end_use(struct buffer *buffer)
{
	struct fsdp_tensor *tensor = NULL;

	if (buffer && --buffer->n_users == 0) {
		tensor = buffer->tensor;
		free(buffer);
	}
	return tensor;
}

/* Put a buffer with these two users into the list: the list and the caller. */
static void enter(struct fsdp_channel *channel, uint32_t at,
		  struct buffer *buffer)
{
	struct fsdp_tensor *old;

	buffer->n_users = 2;
	pthread_mutex_lock(&channel->lock);
	old = buffer_end_use(channel->buffers[at]);
	channel->buffers[at] = buffer;
	if (channel->n_buffers <= at)
		channel->n_buffers = at + 1;
	pthread_mutex_unlock(&channel->lock);
	fsdp_free(old);
}

static int ask_tensor(struct fsdp_channel *channel, uint32_t at,
		      struct buffer *ret, struct error *err)
{
	struct request request = {
		.kind = MESSAGE_CHANNEL_BUFFER,
		.channel_buffer = {channel->id, channel->place, at},
	};
	const struct places_use use = {.n = 1,
				       .is_writable = channel->is_writable};
	struct fsdp_client *client = channel->client;
	struct tensor_place place = {.size = 0};
	struct received received;
	int r = client_call(client, &request, &received, err);

	if (r < 0)
		return r;
	if (received.reply.places.n_places == 1)
		place = received.reply.places.places[0];
	r = places_receive(client, &received, &use, &ret->tensor, err);
	if (r < 0)
		return r;
	if (place.size < channel->slots.capacity) {
		fsdp_free(ret->tensor);
		return error_set(err, -EPROTO, "fsdpd sent a small buffer");
	}
	ret->ref = place.ref;
	ret->data = ret->tensor->data;
	return 0;
}

static int ask_buffer(struct fsdp_channel *channel, uint32_t at,
		      struct buffer **ret, struct error *err)
{
	struct buffer *buffer = calloc(1, sizeof(*buffer));
	int r;

	if (!buffer)
		return error_nomem(err, "a buffer of a channel");
	r = ask_tensor(channel, at, buffer, err);
	if (r < 0) {
		free(buffer);
		return r;
	}
	enter(channel, at, buffer);
	*ret = buffer;
	return 0;
}

bool channel_has_buffer(const struct fsdp_channel *channel,
			const struct buffer *buffer)
{
	return table_load(&channel->client->table, buffer->ref.slot) ==
	       table_word(buffer->ref.generation, SLOT_WRITING);
}

/* Tell whether the tensor that we know is still the buffer of this slot. */
static bool is_current(const struct fsdp_channel *channel, uint32_t at)
{
	const struct slots_buffer *hint = &channel->slots.page->buffers[at];
	const struct buffer *buffer = channel->buffers[at];

	/* Relaxed: the slot's word was read before. */
	return buffer &&
	       atomic_load_explicit(&hint->slot, memory_order_relaxed) ==
		       buffer->ref.slot &&
	       atomic_load_explicit(&hint->generation, memory_order_relaxed) ==
		       buffer->ref.generation &&
	       channel_has_buffer(channel, buffer);
}

static struct buffer *find_known(struct fsdp_channel *channel, uint32_t at)
{
	struct buffer *buffer = NULL;

	pthread_mutex_lock(&channel->lock);
	if (is_current(channel, at)) {
		buffer = channel->buffers[at];
		buffer->n_users++;
	}
	pthread_mutex_unlock(&channel->lock);
	return buffer;
}

int channel_find_buffer(struct fsdp_channel *channel, uint32_t at,
			int32_t timeout_ms, struct buffer **ret,
			struct error *err)
{
	struct buffer *buffer = find_known(channel, at);

	if (buffer) {
		*ret = buffer;
		return 0;
	}
	if (channel->known_only && timeout_ms == 0)
		return error_set(err, -EAGAIN,
				 "buffer %u of channel '%s' is not known yet; "
				 "wait for it",
				 at, channel->name);
	return ask_buffer(channel, at, ret, err);
}

/* Remove it from the list, unless another thread has done so. */
static void leave(struct fsdp_channel *channel, uint32_t at,
		  struct buffer *buffer)
{
	pthread_mutex_lock(&channel->lock);
	if (channel->buffers[at] == buffer) {
		channel->buffers[at] = NULL;
		(void)buffer_end_use(buffer); /* the item is a user, too */
	}
	pthread_mutex_unlock(&channel->lock);
}

int channel_take_out(const struct fsdp_item *item, struct error *err)
{
	struct fsdp_channel *channel = item->channel;
	const struct request request = {
		.kind = MESSAGE_CHANNEL_KEEP,
		.channel_keep = {channel->id, channel->place, item->hold.at,
				 item->buffer->ref},
	};
	int r = client_command(channel->client, &request, err);

	if (r == 0)
		leave(channel, item->hold.at, item->buffer);
	return r;
}
