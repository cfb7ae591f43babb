/*
 * The buffers of channels: slots like any other, of the channel's capacity,
 * which the channel keeps. Each is charged to the user who made the channel.
 *
 * A buffer that has left its channel is replaced as soon as there is memory;
 * the record says how many buffers the channel should have.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct store;

/* New buffers for one channel, which are pinned until it has them. */
struct channel_batch {
	struct store *store;
	uint32_t uid; /* charged */
	struct access_class access;
	uint64_t capacity;
	uint32_t slots[CATALOG_CHANNEL_SLOTS];
	uint32_t n;
};

/* Make all of them or none, so that two that wait for memory do not wait for
 * each other's. Returns enum channel_outcome; commits. */
int channel_batch_make(struct channel_batch *batch, uint32_t n,
		       struct error *err);
/* The channel keeps one of them, in its record; see channel_admit(). */
void channel_batch_use(struct channel_batch *batch, uint32_t channel,
		       uint32_t at);
/* Free those that were not used. Commits. */
void channel_batch_drop(struct channel_batch *batch);

/* The users see the buffer that the record has there, after the commit. */
void channel_admit(struct store *store, uint32_t channel, uint32_t at);

/* The buffer, if there is one, leaves the channel, whose word says so. */
void channel_drop_buffer(struct store *store, uint32_t channel, uint32_t at);

/* Begin to make the buffers that the channel lacks. If there is no memory, wait
 * for channels_on_room(), or for a second if none could be made; other
 * channels are refilled meanwhile. */
void channel_refill(struct store *store, uint32_t channel);

/* For wake.on_room: buffers that wait for memory may fit now. */
void channels_on_room(struct store *store);
