#include "broker/tensor/channel_resize.h"
#include "broker/tensor/access.h"
#include "broker/tensor/channel_buffer.h"
#include "broker/tensor/holdings.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>

static struct channel_record *record_of(const struct store *store, uint32_t i)
{
	return catalog_channel(&store->catalog, i);
}

/* --- leaving -------------------------------------------------------------- */

void channel_retire(struct store *store, uint32_t channel)
{
	const struct channel_record *record = record_of(store, channel);
	struct slots *slots = &store->channels.slots[channel];

	for (uint32_t i = record->n_slots; i < SLOTS_MAX; i++) {
		if (!record->slots[i])
			continue;
		if (!slots_retire(slots, i)) {
			store->channels.has_surplus = true;
			continue;
		}
		failpoint("channel_resize.retired");
		channel_drop_buffer(store, channel, i);
	}
}

void channels_retire(struct store *store)
{
	uint32_t n = catalog_n_touched(&store->catalog, SECTION_CHANNEL);

	if (!store->channels.has_surplus)
		return;
	store->channels.has_surplus = false;
	for (uint32_t i = 1; i <= n; i++) {
		if (record_of(store, i)->id)
			channel_retire(store, i);
	}
	catalog_commit(&store->catalog);
}

void channel_adopt_size(struct store *store, uint32_t channel)
{
	struct slots *slots = &store->channels.slots[channel];

	if (!slots_limit(slots))
		return;
	slots_set_limit(slots, record_of(store, channel)->n_slots);
	store->channels.has_surplus = true;
}

/* --- resizing ------------------------------------------------------------- */

static int check_users(const struct store *store, uint32_t channel,
		       struct error *err)
{
	const struct channel_record *record = record_of(store, channel);
	const struct slots_page *page = store->channels.slots[channel].page;

	for (uint32_t i = 0; i < SLOTS_USERS; i++) {
		const struct session_record *session;

		if (!record->users[i].session || page->users[i].knows_limit)
			continue;
		session = catalog_session(&store->catalog,
					  record->users[i].session);
		return error_set(err, -EOPNOTSUPP,
				 "process %u (%s) has the channel open, and "
				 "its libfsdp, or the fsdpd that was running "
				 "when it opened the channel, is too old for "
				 "resizing; open the channel again there with "
				 "the libfsdp of this fsdpd's version",
				 session->pid, session->command);
	}
	return 0;
}

static int check(const struct holdings *holdings, uint32_t channel,
		 struct error *err)
{
	const struct channel_record *record =
		record_of(holdings->store, channel);

	if (access_is_allowed(&holdings->credentials, &record->access,
			      ACCESS_WRITE))
		return check_users(holdings->store, channel, err);
	return error_set(
		err, -EACCES,
		"the channel (uid %u, gid %u, mode %04o) is not writable for "
		"uid %u; resize it in a process that may write it",
		record->access.uid, record->access.gid, record->access.mode,
		holdings->credentials.uid);
}

/* Makes the buffers that the record lacks between its present number and the
 * new one, and writes them to the record. channel_refill() makes those that it
 * lacks below its present number. */
static int grow(struct store *store, uint32_t channel, uint32_t n_slots,
		struct error *err)
{
	const struct channel_record *record = record_of(store, channel);
	struct channel_batch batch = {.store = store,
				      .uid = record->uid,
				      .access = record->access,
				      .capacity = record->capacity};
	uint32_t n = 0;
	int r;

	for (uint32_t i = record->n_slots; i < n_slots; i++)
		n += !record->slots[i];
	r = channel_batch_make(&batch, n, err);
	for (uint32_t i = record->n_slots; r == CHANNEL_OK && i < n_slots;
	     i++) {
		if (!record->slots[i])
			channel_batch_use(&batch, channel, i);
	}
	return r;
}

static int prepare(const struct holdings *holdings, uint32_t channel,
		   uint32_t n_slots, struct error *err)
{
	struct store *store = holdings->store;
	const struct channel_record *record = record_of(store, channel);
	int r = check(holdings, channel, err);

	if (r == 0)
		r = grow(store, channel, n_slots, err);
	if (r != CHANNEL_OK && err->code)
		(void)error_wrap(err, err->code,
				 "cannot give channel '%.*s' %u slots",
				 (int)record->name_size,
				 (const char *)catalog_blob(&store->catalog,
							    record->name_blob),
				 n_slots);
	return r;
}

/* Admits the new buffers, which are in the record while their words are still
 * RETIRED. */
static void admit_new(struct store *store, uint32_t channel)
{
	const struct channel_record *record = record_of(store, channel);
	const struct slots *slots = &store->channels.slots[channel];

	for (uint32_t i = 0; i < record->n_slots; i++) {
		if (record->slots[i] &&
		    slots_state(slots_load(slots, i)) == SLOTS_RETIRED)
			channel_admit(store, channel, i);
	}
}

int channel_resize(struct holdings *holdings, struct channel_place place,
		   uint32_t n_slots, struct error *err)
{
	struct store *store = holdings->store;
	struct channel_record *record = record_of(store, place.record);
	struct slots *slots = &store->channels.slots[place.record];
	int r = prepare(holdings, place.record, n_slots, err);

	if (r != CHANNEL_OK)
		return r;
	/* A limit in the file tells the next broker to set it from the
	 * record. */
	if (!slots_limit(slots))
		slots_set_limit(slots, record->n_slots);
	catalog_set(&store->catalog, record->n_slots, n_slots);
	catalog_commit(&store->catalog);
	failpoint("channel_resize.recorded");
	slots_set_limit(slots, n_slots);
	admit_new(store, place.record);
	channel_retire(store, place.record);
	catalog_commit(&store->catalog);
	return CHANNEL_OK;
}
