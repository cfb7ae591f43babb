/*
 * The buffers that are to leave a channel which has fewer slots now: the broker
 * is told when such a slot is free. A buffer that has left lives as long as
 * processes hold it, so that each drops those that it knows.
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

/* One that has left. What a consumer that was cut has in its hands has left,
 * too: the broker cuts before it takes away, so that is looked at last. */
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
