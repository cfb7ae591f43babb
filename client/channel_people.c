/* Reads from the shared page of a channel which processes have it open, and how
 * many have died. */
#include "client/channel_impl.h"

uint32_t channel_n_died(const struct fsdp_channel *channel)
{
	return atomic_load_explicit(&channel->slots.page->people.n_died,
				    memory_order_seq_cst);
}

bool channel_has_ended(const struct fsdp_channel *channel)
{
	const struct slots_people *people = &channel->slots.page->people;

	return !atomic_load_explicit(&people->producers,
				     memory_order_seq_cst) &&
	       atomic_load_explicit(&people->n_producers,
				    memory_order_seq_cst) > 0;
}

static bool is_deserted(const struct fsdp_channel *channel)
{
	const struct slots_people *people = &channel->slots.page->people;

	return !atomic_load_explicit(&people->consumers,
				     memory_order_seq_cst) &&
	       atomic_load_explicit(&people->n_consumers,
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
