/*
 * Broadcasts with a limit of lag: a consumer that keeps the oldest item while a
 * producer waits is cut, so that the others go on.
 *
 * The producer that waits asks, and the broker judges by the words of the
 * channel. So the broker has no timer, and a channel in which nobody waits cuts
 * nobody.
 */
#pragma once
#include "broker/tensor/channel.h"

/*
 * Cut the consumers that keep the oldest item for too long, if there is no free
 * slot for this producer. Commits. A buffer that only those have in their hands
 * is replaced, and lives until they release it. -EINVAL: it is no producer of a
 * channel with a limit.
 */
int channel_cut_late(struct store *store, struct channel_place place,
		     struct error *err);

/* After channels_adopt(): what the broker that cut them may not have done. */
void channels_adopt_cuts(struct store *store);
