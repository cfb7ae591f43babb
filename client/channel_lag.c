/*
 * The limit of lag of a broadcast: a producer that has waited for longer than
 * this limit asks the broker to cut the consumers that it waits for. The
 * consumers learn this in their next call.
 */
#include "client/channel_impl.h"
#include <errno.h>
#include <inttypes.h>

/* --- producers ----------------------------------------------------------- */

void channel_reset_lag(struct fsdp_channel *channel)
{
	if (channel->lag_ms)
		atomic_store_explicit(&channel->waits_since_ns, 0,
				      memory_order_relaxed);
}

/* Calls with short time-outs, one after another, are one wait. But the time in
 * which the process does something else is not part of it. */
void channel_begin_wait(struct fsdp_channel *channel)
{
	int64_t gap_ns = channel->lag_ms * MS_NS / 4;

	if (channel->lag_ms && atomic_fetch_add(&channel->n_waiting, 1) == 0 &&
	    bell_now_ns() - channel->waited_ns > gap_ns)
		channel_reset_lag(channel);
}

void channel_end_wait(struct fsdp_channel *channel)
{
	if (!channel->lag_ms)
		return;
	channel->waited_ns = bell_now_ns();
	atomic_fetch_sub(&channel->n_waiting, 1);
}

/* If another thread waits on this channel already, the time counts from
 * then. */
int64_t channel_lag_ends(struct fsdp_channel *channel, int64_t until_ns)
{
	int64_t since_ns = 0, end_ns;

	if (!channel->lag_ms)
		return until_ns;
	end_ns = bell_now_ns();
	if (!atomic_compare_exchange_strong(&channel->waits_since_ns, &since_ns,
					    end_ns))
		end_ns = since_ns;
	end_ns += channel->lag_ms * MS_NS;
	return end_ns < until_ns ? end_ns : until_ns;
}

/* Only one of several threads asks. If it fails, nothing changes, and the next
 * thread tries again. */
int channel_report_lag(struct fsdp_channel *channel, struct error *err)
{
	const struct request request = {
		.kind = MESSAGE_CHANNEL_LAG,
		.channel_lag = {channel->id, channel->place},
	};
	int64_t since_ns = channel->lag_ms ? channel->waits_since_ns : 0;
	int64_t now_ns;

	if (!since_ns)
		return 0;
	now_ns = bell_now_ns();
	if (now_ns - since_ns < channel->lag_ms * MS_NS ||
	    !atomic_compare_exchange_strong(&channel->waits_since_ns, &since_ns,
					    now_ns))
		return 0;
	return channel_notify(channel, &request, err);
}

/* --- consumers ----------------------------------------------------------- */

bool channel_is_cut(const struct fsdp_channel *channel)
{
	return channel->lag_ms && channel->role == FSDP_CONSUMER &&
	       !(slots_consumers(&channel->slots) & slots_bit(channel->place));
}

static uint64_t newest(const struct fsdp_channel *channel)
{
	return atomic_load_explicit(&channel->slots.page->order,
				    memory_order_relaxed);
}

void channel_note_order(struct fsdp_channel *channel)
{
	channel->first_number = newest(channel);
}

int channel_refuse_cut(const struct fsdp_channel *channel, struct error *err)
{
	uint64_t last = channel->first_number, number;

	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		number = atomic_load_explicit(&channel->seen.numbers[i],
					      memory_order_relaxed);
		if (number > last)
			last = number;
	}
	number = newest(channel);
	return error_set(err, -EOVERFLOW,
			 "this consumer of channel '%s' was cut, because it "
			 "kept an item for more than %u ms while a producer "
			 "waited; it is %" PRIu64
			 " items behind; close the channel and open it again "
			 "to get new items",
			 channel->name, channel->lag_ms,
			 number > last ? number - last : 0);
}
