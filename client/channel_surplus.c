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

/* Find a buffer from index `limit` on that has left the channel, and take its
 * tensor from the list. If this consumer was cut, items that it still reads
 * have left as well, and are not taken: the broker cuts a consumer before it
 * takes away its buffers, so channel_is_cut() is called last. */
static struct fsdp_tensor *take_surplus(struct fsdp_channel *channel,
					uint32_t limit)
{
	struct fsdp_tensor *taken = NULL;
	uint32_t n = limit;

	pthread_mutex_lock(&channel->lock);
	for (uint32_t i = limit; i < SLOTS_MAX && !taken; i++) {
		struct buffer *buffer = &channel->buffers[i];

		if (!buffer->tensor)
			continue;
		n = SLOTS_MAX;
		if (channel_has_buffer(channel, i) || channel_is_cut(channel))
			continue;
		taken = buffer->tensor;
		buffer->tensor = NULL;
	}
	atomic_store_explicit(&channel->n_buffers, n, memory_order_relaxed);
	pthread_mutex_unlock(&channel->lock);
	return taken;
}

void channel_forget_surplus(struct fsdp_channel *channel)
{
	uint32_t limit = slots_limit(&channel->slots);
	struct fsdp_tensor *tensor;

	if (!limit || limit >= atomic_load_explicit(&channel->n_buffers,
						    memory_order_relaxed))
		return;
	while ((tensor = take_surplus(channel, limit)))
		fsdp_free(tensor);
}
