/*
 * Channels that get another number of buffers while they are used.
 *
 * The broker writes the number to the record first, then to the channel's file
 * as a limit, and then admits new buffers. A buffer beyond a smaller number
 * leaves the channel when its slot becomes FREE. If it is not FREE yet, the
 * user who frees it rings the doorbell of its session. So nothing that was sent
 * is lost.
 */
#pragma once
#include "broker/tensor/channel.h"

/*
 * Give the channel `n_slots` buffers. Returns enum channel_outcome; the channel
 * has as many as before, unless that is CHANNEL_OK. Commits. -EACCES: the
 * session may not write the channel's memory. -EOPNOTSUPP: a user of the
 * channel does not know of limits. -EDQUOT, -ENOMEM: of the user who made the
 * channel.
 */
int channel_resize(struct holdings *holdings, struct channel_place place,
		   uint32_t n_slots, struct error *err);

/* Take the buffers out of the channel that can leave it now. */
void channel_retire(struct store *store, uint32_t channel);
/* Do the same for all channels, if there are such buffers. Commits. */
void channels_retire(struct store *store);

/* After a restart, do what the broker that died may not have done. Call it
 * before channels_retire(). */
void channel_adopt_size(struct store *store, uint32_t channel);
