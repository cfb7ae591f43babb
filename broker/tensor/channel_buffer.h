/*
 * The buffers of channels: slots like any other, of the channel's capacity,
 * which the channel keeps. Each is charged to the user who made the channel.
 *
 * A buffer that has left its channel is replaced as soon as there is memory;
 * the record contains the number of buffers that the channel should have.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stdint.h>

struct error;
struct store;

/* New buffers for one channel, which are pinned until the channel has them. */
struct channel_batch {
	struct store *store;
	uint32_t uid; /* the user to charge */
	struct access_class access;
	uint64_t capacity;
	uint32_t slots[CATALOG_CHANNEL_SLOTS];
	uint32_t n;
};

/* Makes all `n` buffers or none of them, so that two batches never wait for
 * each other's memory. Returns enum channel_outcome; commits. */
int channel_batch_make(struct channel_batch *batch, uint32_t n,
		       struct error *err);
/* Writes one of the buffers to the channel's record, so that the channel keeps
 * it. channel_admit() then shows it to the users. */
void channel_batch_use(struct channel_batch *batch, uint32_t channel,
		       uint32_t at);
/* Frees the buffers that were not used. Commits. */
void channel_batch_drop(struct channel_batch *batch);

/* Shows the buffer in the record at this place to the users. Call it after the
 * commit. */
void channel_admit(struct store *store, uint32_t channel, uint32_t at);

/* Takes the buffer at this place, if there is one, out of the record. The
 * channel's word already shows that it has left. */
void channel_drop_buffer(struct store *store, uint32_t channel, uint32_t at);

/* Begins to make the buffers that the channel lacks. If there is no memory, it
 * waits for channels_on_room(), or for a second if an attempt to make memory
 * failed; other channels are refilled meanwhile. */
void channel_refill(struct store *store, uint32_t channel);

/* Retries the refills that wait for memory. It is called by wake.on_room. */
void channels_on_room(struct store *store);
