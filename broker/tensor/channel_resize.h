/*
 * Changing the number of buffers of a channel in use.
 *
 * The broker writes the number to the record first, then to the channel's file
 * as a limit, and then admits new buffers. A buffer beyond a smaller number
 * leaves the channel when its slot becomes FREE. If it is not FREE yet, the
 * user that frees it rings the doorbell of its session. So no item that was
 * sent is lost.
 */
#pragma once
#include "broker/tensor/channel.h"

/*
 * Gives the channel `n_slots` buffers. Returns enum channel_outcome; unless it
 * is CHANNEL_OK, the number of buffers is unchanged. Commits. -EACCES: the
 * session may not write the channel's memory. -EOPNOTSUPP: the library of a
 * user of the channel does not support limits. -EDQUOT, -ENOMEM: they concern
 * the user who made the channel.
 */
int channel_resize(struct holdings *holdings, struct channel_place place,
		   uint32_t n_slots, struct error *err);

/* Takes the buffers beyond the limit that are not in use out of the channel. */
void channel_retire(struct store *store, uint32_t channel);
/* Does the same for all channels, if there are such buffers. Commits. */
void channels_retire(struct store *store);

/* Completes the change of size that an earlier broker began. Call it before
 * channels_retire(). */
void channel_adopt_size(struct store *store, uint32_t channel);
