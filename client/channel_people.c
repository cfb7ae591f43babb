/*
 * Reads from the shared page of a channel which processes have it open, and how
 * many have died. A process that is ending counts as one that has left, but the
 * broker frees what it had only when it has exited (ending.h).
 */
#include "client/channel_impl.h"
#include <errno.h>

uint32_t channel_n_died(const struct fsdp_channel *channel)
{
	return atomic_load_explicit(&channel->slots.page->people.n_died,
				    memory_order_seq_cst);
}

bool channel_has_ended(const struct fsdp_channel *channel)
{
	const struct slots *slots = &channel->slots;

	return !slots_living(slots, slots_producers(slots)) &&
	       atomic_load_explicit(&slots->page->people.n_producers,
				    memory_order_seq_cst) > 0;
}

static bool is_deserted(const struct fsdp_channel *channel)
{
	const struct slots *slots = &channel->slots;

	return !slots_living(slots, slots_consumers(slots)) &&
	       atomic_load_explicit(&slots->page->people.n_consumers,
				    memory_order_seq_cst) > 0;
}

bool channel_has_news(const void *data)
{
	const struct fsdp_channel *channel = data;

	if (channel->role == FSDP_PRODUCER)
		return is_deserted(channel);
	return channel_has_ended(channel) || channel_is_cut(channel) ||
	       channel_n_died(channel) !=
		       atomic_load_explicit(&channel->n_died,
					    memory_order_relaxed);
}

int channel_report_ending(struct fsdp_channel *channel, uint32_t place,
			  struct error *err)
{
	struct fsdp_client *client = channel->client;
	const struct request request = {
		.kind = MESSAGE_CHANNEL_LOOK,
		.channel_look = {channel->id, channel->place, place},
	};
	struct slots *slots = &channel->slots;
	int r;

	if (place == LIVENESS_NONE || connection_is_down(&client->connection))
		return 0;
	r = channel_notify(channel, &request, err);
	if (slots_living(slots,
			 slots_producers(slots) | slots_consumers(slots)) &
	    slots_bit(place))
		liveness_pause(&slots->liveness);
	return r;
}
