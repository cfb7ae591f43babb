#include "broker/tensor/channel_buffer.h"
#include "broker/tensor/channel.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/storage.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"

#define RETRY_MS 1000

_Static_assert((int)POOL_OK == (int)CHANNEL_OK, "outcomes");

static struct channel_record *record_of(const struct store *store, uint32_t i)
{
	return catalog_channel(&store->catalog, i);
}

/* --- new ones ------------------------------------------------------------- */

int channel_batch_make(struct channel_batch *batch, uint32_t n,
		       struct error *err)
{
	const struct storage_request request = {
		.access = batch->access,
		.uid = batch->uid,
		.size = batch->capacity,
	};
	int r = storage_make_all(batch->store, &request, n, batch->slots, err);

	if (r == POOL_OK)
		batch->n = n;
	if (r <= 0)
		return r;
	return r == POOL_WAIT ? CHANNEL_WAIT_MADE : CHANNEL_WAIT_ROOM;
}

/* The slot is unpinned, since the channel keeps it now. */
void channel_batch_use(struct channel_batch *batch, uint32_t channel,
		       uint32_t at)
{
	struct store *store = batch->store;
	struct channel_record *record = record_of(store, channel);
	uint32_t slot = batch->slots[--batch->n];

	catalog_set(&store->catalog, record->slots[at], slot);
	slot_set_channel(store, slot, channel);
	(void)slot_unpin(store, slot);
}

void channel_batch_drop(struct channel_batch *batch)
{
	while (batch->n > 0)
		(void)slot_unpin(batch->store, batch->slots[--batch->n]);
	catalog_commit(&batch->store->catalog);
}

void channel_admit(struct store *store, uint32_t channel, uint32_t at)
{
	uint32_t slot = record_of(store, channel)->slots[at];

	slots_admit(&store->channels.slots[channel], at, slot,
		    catalog_slot(&store->catalog, slot)->generation);
}

/* --- those that leave ----------------------------------------------------- */

void channel_drop_buffer(struct store *store, uint32_t channel, uint32_t at)
{
	struct channel_record *record = record_of(store, channel);
	uint32_t slot = record->slots[at];

	if (!slot)
		return;
	catalog_set(&store->catalog, record->slots[at], 0);
	slot_set_channel(store, slot, 0);
	(void)slot_update_state(store, slot);
}

/* Returns the first slot without a buffer; SLOTS_MAX: every slot has one. */
static uint32_t find_missing(const struct store *store, uint32_t channel)
{
	const struct channel_record *record = record_of(store, channel);
	uint32_t at = 0;

	if (!record->id)
		return SLOTS_MAX;
	while (at < record->n_slots && record->slots[at])
		at++;
	return at < record->n_slots ? at : SLOTS_MAX;
}

static int refill_one(struct store *store, uint32_t channel, uint32_t at)
{
	const struct channel_record *record = record_of(store, channel);
	struct channel_batch batch = {.store = store,
				      .uid = record->uid,
				      .access = record->access,
				      .capacity = record->capacity};
	int r = channel_batch_make(&batch, 1, NULL);

	if (r != CHANNEL_OK)
		return r;
	channel_batch_use(&batch, channel, at);
	failpoint("channel.refilled");
	catalog_commit(&store->catalog);
	channel_admit(store, channel, at);
	return CHANNEL_OK;
}

static void retry(void *data, uint32_t channel)
{
	channel_refill(data, channel);
}

/* Plans the next attempt after the broker has failed to make memory. That
 * failure wakes the requests that wait for room, so a refill that waited for
 * room would try again without a pause. */
static bool retry_later(struct store *store, uint32_t channel)
{
	struct deadline deadline = {
		.at_ms = now_ms() + RETRY_MS,
		.fn = retry,
		.data = store,
		.index = channel,
		.position = &store->channels.refills[channel].position,
	};

	return *deadline.position ||
	       deadlines_add(&store->base->deadlines, &deadline, NULL) == 0;
}

/* A chore that makes one of the buffers that the channel lacks. */
static bool refill(void *data, uint32_t channel)
{
	struct store *store = data;
	struct channels *channels = &store->channels;
	struct channel_refill *refill = &channels->refills[channel];
	uint32_t at = find_missing(store, channel);
	bool was_made = refill->is_made;
	int r;

	if (at == SLOTS_MAX)
		return false;
	r = refill_one(store, channel, at);
	refill->is_made = r == CHANNEL_WAIT_MADE;
	if (r == CHANNEL_OK)
		return true;
	if (was_made && !refill->is_made && retry_later(store, channel))
		return false;
	refill->waits_room = true;
	channels->has_waiting = true;
	return false;
}

void channel_refill(struct store *store, uint32_t channel)
{
	struct chore *chore = &store->channels.refills[channel].chore;

	chore->step = refill;
	chore->data = store;
	chore->index = channel;
	chore_begin(store, chore);
}

void channels_on_room(struct store *store)
{
	struct channels *channels = &store->channels;

	if (!channels->has_waiting)
		return;
	channels->has_waiting = false;
	for (uint32_t i = 1; i < CATALOG_CHANNELS; i++) {
		if (channels->refills[i].waits_room)
			channel_refill(store, i);
		channels->refills[i].waits_room = false;
	}
}
