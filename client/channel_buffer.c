/*
 * The buffers of a channel as this process knows them.
 *
 * The shared file is only a hint which tensor a buffer is, since other
 * processes can write it. This process gets the tensor from the broker, once,
 * and the read-only state table tells whether it still is a buffer of a
 * channel. So another process cannot make this one write to memory that has
 * left the channel.
 */
#include "client/channel_impl.h"
#include "client/places.h"
#include <errno.h>

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

static int ask_buffer(struct fsdp_channel *channel, uint32_t at,
		      struct error *err)
{
	struct request request = {
		.kind = MESSAGE_CHANNEL_BUFFER,
		.channel_buffer = {channel->id, channel->place, at},
	};
	const struct places_use use = {.n = 1,
				       .is_writable = channel->is_writable};
	struct fsdp_client *client = channel->client;
	struct buffer *buffer = &channel->buffers[at];
	struct fsdp_tensor *tensor = NULL;
	struct tensor_place place = {.size = 0};
	struct received received;
	int r = client_call(client, &request, &received, err);

	if (r < 0)
		return r;
	if (received.reply.places.n_places == 1)
		place = received.reply.places.places[0];
	r = places_receive(client, &received, &use, &tensor, err);
	if (r < 0)
		return r;
	if (place.size < channel->slots.capacity) {
		fsdp_free(tensor);
		return error_set(err, -EPROTO, "fsdpd sent a small buffer");
	}
	pthread_mutex_lock(&channel->lock);
	buffer->ref = place.ref;
	buffer->data = tensor->data;
	tensor = atomic_exchange(&buffer->tensor, tensor);
	if (channel->n_buffers <= at)
		channel->n_buffers = at + 1;
	pthread_mutex_unlock(&channel->lock);
	fsdp_free(tensor);
	return 0;
}

bool channel_has_buffer(const struct fsdp_channel *channel, uint32_t at)
{
	const struct buffer *buffer = &channel->buffers[at];

	return table_load(&channel->client->table, buffer->ref.slot) ==
	       table_word(buffer->ref.generation, SLOT_WRITING);
}

/* Tell whether the tensor that we know is still this buffer. */
static bool is_current(const struct fsdp_channel *channel, uint32_t at)
{
	const struct slots_buffer *hint = &channel->slots.page->buffers[at];
	const struct buffer *buffer = &channel->buffers[at];

	/* Relaxed: the slot's word was read before. */
	return atomic_load_explicit(&buffer->tensor, memory_order_acquire) &&
	       atomic_load_explicit(&hint->slot, memory_order_relaxed) ==
		       buffer->ref.slot &&
	       atomic_load_explicit(&hint->generation, memory_order_relaxed) ==
		       buffer->ref.generation &&
	       channel_has_buffer(channel, at);
}

int channel_find_buffer(struct fsdp_channel *channel, uint32_t at,
			int32_t timeout_ms, uint8_t **ret, struct error *err)
{
	int r = 0;

	if (!is_current(channel, at))
		r = channel->known_only && timeout_ms == 0
			    ? error_set(err, -EAGAIN,
					"buffer %u of channel '%s' is not "
					"known yet; wait for it",
					at, channel->name)
			    : ask_buffer(channel, at, err);
	if (r == 0)
		*ret = channel->buffers[at].data;
	return r;
}

int channel_take_out(struct fsdp_channel *channel, uint32_t at,
		     struct fsdp_tensor **ret, struct error *err)
{
	struct buffer *buffer = &channel->buffers[at];
	const struct request request = {
		.kind = MESSAGE_CHANNEL_KEEP,
		.channel_keep = {channel->id, channel->place, at, buffer->ref},
	};
	/* Take the tensor before it leaves the channel: afterwards another
	 * thread might drop it. */
	struct fsdp_tensor *tensor = atomic_exchange(&buffer->tensor, NULL);
	int r = client_command(channel->client, &request, err);

	if (r < 0)
		buffer->tensor = tensor;
	else
		*ret = tensor;
	return r;
}
