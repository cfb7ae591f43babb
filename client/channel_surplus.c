/*
 * Buffers that have to leave a channel whose number of slots was reduced. The
 * broker is notified when such a slot is free. The memory of a buffer that has
 * left lives as long as a process holds it, so each process drops those that it
 * has.
 */
#include "client/channel_impl.h"
#include "proto/failpoint.h"

void channel_report_free(struct fsdp_channel *channel, uint32_t at)
{
	if (!slots_is_surplus(&channel->slots, at))
		return;
	failpoint("channel_surplus.freed");
	connection_ring_anew(&channel->client->connection);
}

/* Find a buffer from index `limit` on that has left the channel, and remove it
 * from the list. Returns false if no buffer has left. An item that is still in
 * the buffer keeps its memory. */
static bool take_surplus(struct fsdp_channel *channel, uint32_t limit,
			 struct fsdp_tensor **ret)
{
	bool is_found = false;
	uint32_t n = limit;

	pthread_mutex_lock(&channel->lock);
	for (uint32_t i = limit; i < SLOTS_MAX && !is_found; i++) {
		struct buffer *buffer = channel->buffers[i];

		if (!buffer)
			continue;
		n = SLOTS_MAX;
		is_found = !channel_has_buffer(channel, buffer);
		if (!is_found)
			continue;
		channel->buffers[i] = NULL;
		*ret = buffer_end_use(buffer);
	}
	atomic_store_explicit(&channel->n_buffers, n, memory_order_relaxed);
	pthread_mutex_unlock(&channel->lock);
	return is_found;
}

void channel_forget_surplus(struct fsdp_channel *channel)
{
	uint32_t limit = slots_limit(&channel->slots);
	struct fsdp_tensor *tensor;

	if (!limit || limit >= atomic_load_explicit(&channel->n_buffers,
						    memory_order_relaxed))
		return;
	while (take_surplus(channel, limit, &tensor))
		fsdp_free(tensor);
}
