/*
 * Broadcasts with a limit of lag: a consumer that keeps the oldest item too
 * long while a producer waits is cut, so that the other users can continue.
 *
 * The waiting producer sends a request, and the broker decides by the words of
 * the channel. So the broker needs no timer, and no consumer is cut from a
 * channel in which no producer waits.
 */
#pragma once
#include "broker/tensor/channel.h"

/*
 * Cuts the consumers that have kept the oldest item for too long, if there is
 * no free slot for this producer. Commits. A buffer that only these consumers
 * use is replaced, and lives until they release it. -EINVAL: the place is not
 * that of a producer, or the channel has no limit.
 */
int channel_cut_late(struct store *store, struct channel_place place,
		     struct error *err);
