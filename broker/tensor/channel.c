/*
 * Channels: their records, files and buffers.
 */
#include "broker/tensor/channel.h"
#include "broker/tensor/access.h"
#include "broker/tensor/channel_buffer.h"
#include "broker/tensor/channel_resize.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/holdings.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/ending.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/name.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

_Static_assert(SLOTS_MAX == CATALOG_CHANNEL_SLOTS, "slots");
_Static_assert(SLOTS_USERS == CATALOG_CHANNEL_SLOTS, "users");
_Static_assert(CHANNEL_KEY_SIZE > NAME_MAX_SIZE + 12, "keys");

/* --- lookup -------------------------------------------------------------- */

static struct channel_record *record_of(const struct store *store, uint32_t i)
{
	return catalog_channel(&store->catalog, i);
}

static uint32_t n_touched(const struct store *store)
{
	return catalog_n_touched(&store->catalog, SECTION_CHANNEL);
}

static uint32_t find_name(const struct store *store, const char *name)
{
	size_t size = strlen(name);

	for (uint32_t i = 1; i <= n_touched(store); i++) {
		const struct channel_record *record = record_of(store, i);

		if (record->id && record->name_size == size &&
		    !memcmp(catalog_blob(&store->catalog, record->name_blob),
			    name, size))
			return i;
	}
	return 0;
}

void channel_key(const char *name, char ret[CHANNEL_KEY_SIZE])
{
	snprintf(ret, CHANNEL_KEY_SIZE, "//channel/%s", name);
}

int channel_find(const struct holdings *holdings, uint64_t id, uint32_t place,
		 struct channel_place *ret, struct error *err)
{
	const struct store *store = holdings->store;

	for (uint32_t i = 1; i <= n_touched(store); i++) {
		const struct channel_record *record = record_of(store, i);

		if (record->id != id)
			continue;
		if (record->users[place].session != holdings->index)
			break;
		*ret = (struct channel_place){i, place};
		return 0;
	}
	return error_set(err, -ENOENT,
			 "place %u of channel %" PRIu64
			 " does not belong to this process",
			 place, id);
}

static struct slots_form form_of(const struct channel_record *record)
{
	return (struct slots_form){.channel = record->id,
				   .mode = (enum slots_mode)record->way,
				   .has_lag = record->lag_ms,
				   .capacity = record->capacity};
}

struct slots_present channel_present(const struct channel_record *record)
{
	struct slots_present present = {0};

	for (uint32_t i = 0; i < SLOTS_USERS; i++) {
		const struct channel_user *user = &record->users[i];
		uint64_t bit = UINT64_C(1) << i;

		if (!user->session || user->is_ended)
			continue;
		if (user->role == CHANNEL_PRODUCER)
			present.producers |= bit;
		else
			present.consumers |= bit;
	}
	return present;
}

/* The cursor counts the places of all channels, one channel after another. */
bool channel_next_user(const struct store *store, uint64_t *cursor,
		       struct channel_place *ret)
{
	for (; *cursor / SLOTS_USERS <= n_touched(store); ++*cursor) {
		uint32_t channel = (uint32_t)(*cursor / SLOTS_USERS);
		uint32_t place = (uint32_t)(*cursor % SLOTS_USERS);

		if (channel == 0 ||
		    !record_of(store, channel)->users[place].session)
			continue;
		*ret = (struct channel_place){channel, place};
		++*cursor;
		return true;
	}
	*cursor = 0;
	return false;
}

/* --- files --------------------------------------------------------------- */

static void name_file(uint64_t id, char ret[FDSTORE_NAME_SIZE])
{
	snprintf(ret, FDSTORE_NAME_SIZE, "channel%" PRIu64, id);
}

/* Makes the file and stores it in the fd store. FDSTORE_WAIT: the fd store is
 * busy. */
static int make_file(struct store *store, const struct slots_form *form,
		     struct slots *ret, struct error *err)
{
	struct slots slots = SLOTS_NULL;
	char name[FDSTORE_NAME_SIZE];
	int r = slots_create(&slots, form, err);

	if (r < 0)
		return r;
	name_file(form->channel, name);
	r = fdstore_put(&store->base->fdstore, slots.fd, name, err);
	if (r != FDSTORE_OK) {
		slots_close(&slots);
		return r;
	}
	failpoint("channel.stored");
	*ret = slots;
	return FDSTORE_OK;
}

static void drop_file(struct store *store, uint64_t id)
{
	char name[FDSTORE_NAME_SIZE];

	name_file(id, name);
	fdstore_remove(&store->base->fdstore, name);
}

void channels_drop_strays(struct store *store)
{
	fdstore_drop_rest(&store->base->fdstore, "channel");
}

/* --- making -------------------------------------------------------------- */

struct making {
	struct store *store;
	const struct channel_open_request *request;
	struct account *account;
	struct channel_batch batch;
};

static void fill_record(struct making *making, uint32_t channel, uint64_t blob)
{
	struct catalog *catalog = &making->store->catalog;
	const struct channel_open_request *request = making->request;
	struct channel_record *record = catalog_channel(catalog, channel);

	record->id = catalog->header->next_channel_id + 1;
	catalog_set(catalog, catalog->header->next_channel_id, record->id);
	record->name_blob = blob;
	record->name_size = (uint32_t)strlen(request->name);
	memcpy(catalog_blob(catalog, blob), request->name, record->name_size);
	record->capacity = request->capacity;
	record->uid = making->batch.uid;
	record->access = making->batch.access;
	record->way = request->way;
	record->n_slots = request->n_slots;
	record->lag_ms = request->lag_ms;
}

static int make_record(struct making *making, uint32_t *ret, struct error *err)
{
	struct catalog *catalog = &making->store->catalog;
	size_t size = strlen(making->request->name);
	uint64_t blob = catalog_blob_alloc(catalog, size);
	uint32_t channel = blob ? catalog_alloc(catalog, SECTION_CHANNEL) : 0;

	if (channel) {
		fill_record(making, channel, blob);
		*ret = channel;
		return 0;
	}
	if (blob)
		catalog_blob_release(catalog, blob, size);
	return error_set(err, -ENFILE,
			 "this node has %u channels already, which is the "
			 "limit; close some",
			 CATALOG_CHANNELS - 1);
}

static void free_record(struct store *store, uint32_t channel)
{
	struct catalog *catalog = &store->catalog;
	struct channel_record *record = catalog_channel(catalog, channel);

	accounts_refund(&store->base->accounts, record->uid, ACCOUNT_GROUPS, 1);
	catalog_blob_release(catalog, record->name_blob, record->name_size);
	catalog_release(catalog, SECTION_CHANNEL, channel);
}

static int make_charged(struct making *making, uint32_t *ret, struct error *err)
{
	const struct channel_open_request *request = making->request;
	struct store *store = making->store;
	const struct channel_record *record;
	struct slots_form form;
	uint32_t channel = 0;
	int r = make_record(making, &channel, err);

	if (r < 0)
		return r;
	record = record_of(store, channel);
	form = form_of(record);
	r = make_file(store, &form, &store->channels.slots[channel], err);
	if (r != FDSTORE_OK) {
		catalog_blob_release(&store->catalog, record->name_blob,
				     record->name_size);
		catalog_release(&store->catalog, SECTION_CHANNEL, channel);
		return r < 0 ? r : CHANNEL_WAIT_MADE;
	}
	store->pools.n_channels++;
	for (uint32_t i = 0; i < request->n_slots; i++)
		channel_batch_use(&making->batch, channel, i);
	*ret = channel;
	return CHANNEL_OK;
}

static int make_whole(struct making *making, uint32_t *ret, struct error *err)
{
	struct store *store = making->store;
	int r = account_charge(&store->base->accounts, making->account,
			       ACCOUNT_GROUPS, 1, err);

	if (r < 0)
		return r;
	r = channel_batch_make(&making->batch, making->request->n_slots, err);
	if (r == CHANNEL_OK) {
		r = make_charged(making, ret, err);
		if (r != CHANNEL_OK)
			channel_batch_drop(&making->batch);
	}
	if (r != CHANNEL_OK)
		account_refund(making->account, ACCOUNT_GROUPS, 1);
	return r;
}

static int make(struct holdings *holdings,
		const struct channel_open_request *request, uint32_t *ret,
		struct error *err)
{
	struct making making = {
		.store = holdings->store,
		.request = request,
		.account = holdings->account,
		.batch = {.store = holdings->store,
			  .uid = holdings->credentials.uid,
			  .capacity = request->capacity},
	};
	int r;

	if (!request->capacity)
		return CHANNEL_WAIT_OTHER;
	r = prefix_check_owner(making.store, request->name, making.batch.uid,
			       err);
	if (r == 0)
		r = access_resolve(&holdings->credentials, &request->access,
				   &making.batch.access, err);
	if (r == 0)
		r = make_whole(&making, ret, err);
	if (r != CHANNEL_OK && err->code)
		(void)error_wrap(err, err->code, "cannot make channel '%s'",
				 request->name);
	return r;
}

/* --- opening ------------------------------------------------------------- */

static const char *way_name(uint32_t way)
{
	return way == SLOTS_BROADCAST ? "broadcast" : "share (Python: queue)";
}

/* A process that opens a resized channel need not give its present number of
 * slots. */
static int check_form(const struct channel_record *record, bool is_resized,
		      const struct channel_open_request *request,
		      struct error *err)
{
	uint32_t mode = request->access.mode ? request->access.mode : 0600;

	if (is_resized && !request->knows_limit)
		return error_set(err, -EOPNOTSUPP,
				 "channel '%s' was resized, and the libfsdp of "
				 "this process is too old to use it; install "
				 "the version that fsdpd has",
				 request->name);
	if (!request->capacity)
		return 0;
	if (request->capacity != record->capacity ||
	    (request->n_slots != record->n_slots && !is_resized) ||
	    request->way != record->way)
		return error_set(err, -EINVAL,
				 "channel '%s' has %u slots of %" PRIu64
				 " bytes in mode %s, not %u of %" PRIu64
				 " in mode %s; open it with these values, or "
				 "with a capacity of 0",
				 request->name, record->n_slots,
				 record->capacity, way_name(record->way),
				 request->n_slots, request->capacity,
				 way_name(request->way));
	if (request->lag_ms != record->lag_ms)
		return error_set(
			err, -EINVAL,
			"channel '%s' has a lag_ms of %u, not %u; open it with "
			"this value, or with a capacity of 0",
			request->name, record->lag_ms, request->lag_ms);
	if (mode == record->access.mode &&
	    (request->access.gid == GID_DEFAULT ||
	     request->access.gid == record->access.gid))
		return 0;
	return error_set(err, -EINVAL,
			 "channel '%s' has the group %u and mode %04o; open it "
			 "with these, or with a capacity of 0",
			 request->name, record->access.gid,
			 record->access.mode);
}

static int check_user(const struct holdings *holdings,
		      const struct channel_record *record,
		      const struct channel_open_request *request,
		      struct error *err)
{
	int r = access_check_reader(holdings, &record->access, request->name,
				    NULL, err);

	if (r < 0 || (request->role != CHANNEL_PRODUCER && !request->writes) ||
	    access_is_allowed(&holdings->credentials, &record->access,
			      ACCESS_WRITE))
		return r;
	return error_set(
		err, -EACCES,
		"channel '%s' (uid %u, gid %u, mode %04o) is not writable for "
		"uid %u; open it as a consumer that only reads",
		request->name, record->access.uid, record->access.gid,
		record->access.mode, holdings->credentials.uid);
}

static void note_place(struct holdings *holdings, uint32_t channel)
{
	holdings->channels[channel / 64] |= UINT64_C(1) << channel % 64;
}

static bool may_have_place(const struct holdings *holdings, uint32_t channel)
{
	return holdings->channels[channel / 64] >> channel % 64 & 1;
}

static int take_place(struct holdings *holdings, uint32_t channel,
		      uint32_t role, uint32_t *ret, struct error *err)
{
	struct store *store = holdings->store;
	struct channel_record *record = record_of(store, channel);
	uint32_t place = 0;

	while (place < SLOTS_USERS && record->users[place].session)
		place++;
	if (place == SLOTS_USERS)
		return error_set(err, -EUSERS,
				 "%d processes have the channel open already, "
				 "which is the limit; close it in one of them",
				 SLOTS_USERS);
	catalog_save(&store->catalog, &record->users[place],
		     sizeof(record->users[place]));
	record->users[place] = (struct channel_user){
		.session = holdings->index,
		.role = (uint16_t)role,
		.born_ms = now_ms(),
	};
	note_place(holdings, channel);
	*ret = place;
	return 0;
}

static void add_user(struct holdings *holdings, struct channel_place place,
		     bool knows_limit)
{
	struct store *store = holdings->store;
	const struct session_record *session = holdings_record(holdings);
	struct slots_present present =
		channel_present(record_of(store, place.record));
	const struct slots_newcomer newcomer = {place.place, session->pid,
						session->command, knows_limit};

	slots_add_user(&store->channels.slots[place.record], &present,
		       &newcomer);
}

/* Makes the slots usable. No other process has the file before the catalog
 * names the channel and its first user, which it does in one transaction: if
 * the broker dies, the user asks again and must not get a second place. */
static void admit_all(struct store *store, uint32_t channel)
{
	for (uint32_t i = 0; i < record_of(store, channel)->n_slots; i++)
		channel_admit(store, channel, i);
}

int channel_open(struct holdings *holdings,
		 const struct channel_open_request *request,
		 struct channel_place *ret, struct error *err)
{
	struct store *store = holdings->store;
	uint32_t channel = find_name(store, request->name);
	bool is_new = !channel;
	char key[CHANNEL_KEY_SIZE];
	int r;

	if (is_new)
		r = make(holdings, request, &channel, err);
	else
		r = check_form(record_of(store, channel),
			       slots_limit(&store->channels.slots[channel]),
			       request, err);
	if (r != CHANNEL_OK)
		return r;
	r = check_user(holdings, record_of(store, channel), request, err);
	if (r == 0)
		r = take_place(holdings, channel, request->role, &ret->place,
			       err);
	assert(r == 0 || !is_new); /* the maker of a channel may use it */
	if (r < 0)
		return r;
	ret->record = channel;
	if (is_new)
		admit_all(store, channel);
	add_user(holdings, *ret, request->knows_limit);
	failpoint("channel.opened");
	channel_key(request->name, key);
	wake_name(&store->base->wake, key);
	return CHANNEL_OK;
}

/* --- closing ------------------------------------------------------------- */

static void free_channel(struct store *store, uint32_t channel)
{
	drop_file(store, record_of(store, channel)->id);
	slots_close(&store->channels.slots[channel]);
	store->pools.n_channels--;
	for (uint32_t i = 0; i < SLOTS_MAX; i++)
		channel_drop_buffer(store, channel, i);
	free_record(store, channel);
	failpoint("channel.freed");
}

static bool is_used(const struct channel_record *record)
{
	uint32_t place = 0;

	while (place < SLOTS_USERS && !record->users[place].session)
		place++;
	return place < SLOTS_USERS;
}

static void remove_user(struct store *store, struct channel_place place,
			bool died)
{
	struct slots_present present =
		channel_present(record_of(store, place.record));

	slots_remove_user(&store->channels.slots[place.record], &present,
			  place.place, died);
	channel_retire(store, place.record);
}

static void leave(struct store *store, struct channel_place place, bool died)
{
	struct channel_record *record = record_of(store, place.record);
	struct channel_user *user = &record->users[place.place];

	catalog_save(&store->catalog, user, sizeof(*user));
	*user = (struct channel_user){.session = 0};
	remove_user(store, place, died);
	if (!is_used(record))
		free_channel(store, place.record);
}

void channel_close(struct store *store, struct channel_place place)
{
	leave(store, place, false);
}

void channel_end(struct store *store, struct channel_place place)
{
	struct channel_record *record = record_of(store, place.record);

	catalog_set(&store->catalog, record->users[place.place].is_ended, 1);
	remove_user(store, place, false);
}

/* Returns whether the user's process is ending. It may have left already. */
static bool look_at(struct store *store, struct channel_place place)
{
	uint32_t index =
		record_of(store, place.record)->users[place.place].session;

	if (!index ||
	    !process_is_ending(
		    (pid_t)catalog_session(&store->catalog, index)->pid))
		return false;
	slots_note_ending(&store->channels.slots[place.record], place.place);
	return true;
}

/* Where one user is ending, others may be, too. */
void channel_look(struct store *store, struct channel_place place)
{
	if (!look_at(store, place))
		return;
	for (uint32_t i = 0; i < SLOTS_USERS; i++)
		(void)look_at(store,
			      (struct channel_place){.record = place.record,
						     .place = i});
}

static void leave_all_places(const struct holdings *holdings, uint32_t channel,
			     bool died)
{
	const struct channel_record *record =
		record_of(holdings->store, channel);

	for (uint32_t i = 0; record->id && i < SLOTS_USERS; i++) {
		if (record->users[i].session == holdings->index)
			leave(holdings->store,
			      (struct channel_place){channel, i}, died);
	}
}

void channels_end_session(const struct holdings *holdings, bool died)
{
	for (uint32_t i = 1; i <= n_touched(holdings->store); i++) {
		if (may_have_place(holdings, i))
			leave_all_places(holdings, i, died);
	}
}

/* --- keeping ------------------------------------------------------------- */

/* Returns whether the buffer has left already. A client sends a request again
 * that a restart undid, and adopt_buffers() may have taken the buffer out
 * meanwhile. */
static bool has_left(const struct holdings *holdings,
		     const struct slot_ref *ref)
{
	const struct store *store = holdings->store;
	uint32_t slot = slot_find(store, ref, NULL);

	return slot && !catalog_slot(&store->catalog, slot)->channel &&
	       grant_find(store, holdings->index, slot);
}

int channel_keep(struct holdings *holdings, struct channel_place place,
		 uint32_t at, const struct slot_ref *ref, struct error *err)
{
	struct store *store = holdings->store;
	const struct channel_record *record = record_of(store, place.record);
	struct slots *slots = &store->channels.slots[place.record];

	if (has_left(holdings, ref))
		return 0;
	if (record->way == SLOTS_BROADCAST)
		return error_set(
			err, -EOPNOTSUPP,
			"cannot keep the item: the channel is a broadcast, so "
			"other consumers may still read it; copy it");
	if (record->slots[at] != ref->slot || !slot_find(store, ref, NULL) ||
	    !slots_take_out(slots, at, place.place))
		return error_set(err, -EINVAL,
				 "this process does not hold slot %u of the "
				 "channel",
				 at);
	failpoint("channel.taken_out");
	channel_drop_buffer(store, place.record, at);
	channel_refill(store, place.record);
	return 0;
}

/* --- life ---------------------------------------------------------------- */

void channels_init(struct store *store)
{
	for (uint32_t i = 0; i < CATALOG_CHANNELS; i++)
		store->channels.slots[i] = SLOTS_NULL;
}

void channels_deinit(struct store *store)
{
	for (uint32_t i = 0; i < CATALOG_CHANNELS; i++) {
		if (store->channels.slots[i].page)
			slots_close(&store->channels.slots[i]);
	}
}

static int adopt_file(struct store *store, uint32_t channel, struct error *err)
{
	const struct channel_record *record = record_of(store, channel);
	const struct slots_form form = form_of(record);
	char name[FDSTORE_NAME_SIZE];
	int fd;

	name_file(record->id, name);
	fd = fdstore_take(&store->base->fdstore, name);
	if (fd < 0)
		return error_set(err, -ENOENT, "it was not kept");
	return slots_open(&store->channels.slots[channel], fd, &form,
			  SLOTS_BROKER, err);
}

/*
 * Adopts the buffers. A buffer is usable if both the record and its word say
 * so. If they differ, the broker died between the two changes: a buffer whose
 * word is RETIRED was being kept, or had not been shown to a user yet.
 */
static void adopt_buffers(struct store *store, uint32_t channel)
{
	struct channel_record *record = record_of(store, channel);
	struct slots *slots = &store->channels.slots[channel];

	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		uint32_t slot = record->slots[i];

		if (!slot)
			slots_force_out(slots, i);
		else if (slots_state(slots_load(slots, i)) == SLOTS_RETIRED) {
			catalog_set(&store->catalog, record->slots[i], 0);
			slot_set_channel(store, slot, 0);
		}
	}
}

/* Drops a channel whose file is lost. slot_adopt_all() frees the slots that
 * have no keeper any more. */
static void drop_lost(struct store *store, uint32_t channel,
		      const struct error *why)
{
	struct channel_record *record = record_of(store, channel);

	log_line(LOG_LEVEL_WARNING, "channel %" PRIu64 ": %s; dropped",
		 record->id, why->msg);
	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		if (record->slots[i])
			slot_set_channel(store, record->slots[i], 0);
	}
	drop_file(store, record->id);
	free_record(store, channel);
}

/* Completes the cuts of consumers that an earlier broker began. */
static void adopt_cuts(struct store *store, uint32_t channel,
		       const struct slots_present *present)
{
	const struct channel_record *record = record_of(store, channel);
	uint64_t late = 0;

	for (uint32_t i = 0; i < SLOTS_USERS; i++) {
		const struct channel_user *user = &record->users[i];

		if (user->session && user->is_ended &&
		    user->role == CHANNEL_CONSUMER)
			late |= slots_bit(i);
	}
	if (late)
		slots_cut(&store->channels.slots[channel], present, late);
}

static void adopt_places(struct store *store, uint32_t channel)
{
	const struct channel_record *record = record_of(store, channel);

	for (uint32_t i = 0; i < SLOTS_USERS; i++) {
		if (record->users[i].session)
			note_place(store->holdings[record->users[i].session],
				   channel);
	}
}

static int adopt(struct store *store, uint32_t channel, struct error *err)
{
	const struct channel_record *record = record_of(store, channel);
	struct slots *slots = &store->channels.slots[channel];
	struct error why = ERROR_NULL;
	struct slots_present present;
	int r = accounts_charge_adopted(&store->base->accounts, record->uid,
					ACCOUNT_GROUPS, 1, err);

	if (r < 0)
		return r;
	r = adopt_file(store, channel, &why);
	if (error_is_short(r)) {
		*err = why;
		return r;
	}
	if (r < 0) {
		drop_lost(store, channel, &why);
		return 0;
	}
	store->pools.n_channels++;
	adopt_places(store, channel);
	channel_adopt_size(store, channel);
	adopt_buffers(store, channel);
	channel_refill(store, channel);
	present = channel_present(record);
	slots_set_users(slots, &present);
	if (record->lag_ms)
		adopt_cuts(store, channel, &present);
	return 0;
}

int channels_adopt(struct store *store, struct error *err)
{
	int r = 0;

	for (uint32_t i = 1; i <= n_touched(store) && r == 0; i++) {
		if (record_of(store, i)->id)
			r = adopt(store, i, err);
	}
	if (r < 0)
		return r;
	channels_drop_strays(store);
	return 0;
}
