/*
 * The requests on channels: open, close and end one, wait for memory or users,
 * and list them.
 */
#include "broker/tensor/channel.h"
#include "broker/base/clock.h"
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/tensor/channel_lag.h"
#include "broker/tensor/channel_resize.h"
#include "broker/tensor/grant.h"
#include "broker/verbs/places.h"
#include "broker/verbs/scratch.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/name.h"
#include <errno.h>
#include <string.h>

/* Park the request if its time-out allows it, or if it waits for memory that is
 * being made. */
static int park_room(struct verb_call *call, int outcome, int32_t timeout_ms,
		     const struct error *cause, struct error *err)
{
	call->wait_ms = timeout_ms;
	if (outcome == CHANNEL_WAIT_MADE || (timeout_ms && !call->is_timed_out))
		return VERB_PARK_ROOM;
	return error_set(err, cause->code, "%s", cause->msg);
}

static int park_name(struct verb_call *call, struct error *err)
{
	const struct channel_open_request *request =
		&call->request->channel_open;
	char *key;

	call->wait_ms = request->timeout_ms;
	if (!request->timeout_ms || call->is_timed_out)
		return error_set(err,
				 request->timeout_ms ? -ETIMEDOUT : -ENOENT,
				 "there is no channel '%s' yet; open it with a "
				 "capacity to make it",
				 request->name);
	key = verb_scratch(call, CHANNEL_KEY_SIZE);
	if (!key)
		return error_nomem(err, "the request");
	channel_key(request->name, key);
	call->wait_name = key;
	return VERB_PARK_NAME;
}

int verb_channel_open(struct verb_call *call, struct error *err)
{
	const struct channel_open_request *request =
		&call->request->channel_open;
	struct channel_reply *reply = &call->reply->channel;
	const struct channel_record *record;
	struct error cause = ERROR_NULL;
	struct channel_place place;
	int r = channel_open(&call->session->holdings, request, &place, &cause);

	if (r < 0)
		return error_set(err, r, "%s", cause.msg);
	if (r == CHANNEL_WAIT_OTHER)
		return park_name(call, err);
	if (r != CHANNEL_OK)
		return park_room(call, r, request->timeout_ms, &cause, err);
	record = catalog_channel(&call->broker->store.catalog, place.record);
	*reply = (struct channel_reply){
		.channel = record->id,
		.place = place.place,
		.capacity = record->capacity,
		.way = record->way,
		.lag_ms = record->lag_ms,
	};
	return VERB_DONE;
}

static int find(const struct verb_call *call, uint64_t id, uint32_t place,
		struct channel_place *ret, struct error *err)
{
	return channel_find(&call->session->holdings, id, place, ret, err);
}

int verb_channel_slots(struct verb_call *call, struct error *err)
{
	const struct channel_place_request *request =
		&call->request->channel_slots;
	struct channel_place place;
	int r = find(call, request->channel, request->place, &place, err);

	if (r < 0)
		return r;
	call->fds[call->n_fds++] =
		call->broker->store.channels.slots[place.record].fd;
	return VERB_DONE;
}

int verb_channel_buffer(struct verb_call *call, struct error *err)
{
	const struct channel_buffer_request *request =
		&call->request->channel_buffer;
	const struct catalog *catalog = &call->broker->store.catalog;
	struct channel_place place;
	uint32_t slot;
	int r = find(call, request->channel, request->place, &place, err);

	if (r < 0)
		return r;
	slot = catalog_channel(catalog, place.record)->slots[request->at];
	if (!slot)
		return error_set(
			err, -ESTALE,
			"slot %u of the channel has no buffer any more",
			request->at);
	r = grant_check_room(&call->session->holdings, 1, err);
	if (r < 0)
		return r;
	verb_reply_places(call, &slot, 1);
	return VERB_DONE;
}

int verb_channel_close(struct verb_call *call, struct error *err)
{
	const struct channel_close_request *request =
		&call->request->channel_close;
	struct channel_place place;
	int r = find(call, request->channel, request->place, &place, err);

	if (r < 0)
		return r;
	if (request->is_end &&
	    catalog_channel(&call->broker->store.catalog, place.record)
			    ->users[place.place]
			    .role != CHANNEL_PRODUCER)
		return error_set(err, -EINVAL,
				 "only a producer can end its part of a "
				 "channel; a consumer closes it");
	if (request->is_end)
		channel_end(&call->broker->store, place);
	else
		channel_close(&call->broker->store, place);
	return VERB_DONE;
}

int verb_channel_keep(struct verb_call *call, struct error *err)
{
	const struct channel_keep_request *request =
		&call->request->channel_keep;
	struct channel_place place;
	int r = find(call, request->channel, request->place, &place, err);

	if (r < 0)
		return r;
	return channel_keep(&call->session->holdings, place, request->at,
			    &request->ref, err);
}

int verb_channel_lag(struct verb_call *call, struct error *err)
{
	const struct channel_place_request *request =
		&call->request->channel_lag;
	struct channel_place place;
	int r = find(call, request->channel, request->place, &place, err);

	return r < 0 ? r : channel_cut_late(&call->broker->store, place, err);
}

int verb_channel_look(struct verb_call *call, struct error *err)
{
	const struct channel_look_request *request =
		&call->request->channel_look;
	struct channel_place place;
	int r = find(call, request->channel, request->place, &place, err);

	if (r < 0)
		return r;
	place.place = request->user;
	channel_look(&call->broker->store, place);
	return VERB_DONE;
}

int verb_channel_resize(struct verb_call *call, struct error *err)
{
	const struct channel_resize_request *request =
		&call->request->channel_resize;
	struct error cause = ERROR_NULL;
	struct channel_place place;
	int r = find(call, request->channel, request->place, &place, err);

	if (r < 0)
		return r;
	r = channel_resize(&call->session->holdings, place, request->n_slots,
			   &cause);
	if (r < 0)
		return error_set(err, r, "%s", cause.msg);
	return r == CHANNEL_OK
		       ? VERB_DONE
		       : park_room(call, r, request->timeout_ms, &cause, err);
}

/* --- channels ------------------------------------------------------------- */

/* A page of this many channels fits into a frame, even with names of full
 * length. */
#define PAGE_CHANNELS 128

static bool may_see(const struct verb_call *call,
		    const struct channel_record *record)
{
	return access_is_allowed(&call->session->holdings.credentials,
				 &record->access, ACCESS_READ) ||
	       session_is_admin(call->session);
}

/* Values in shared memory are read once, and are only displayed. */
static void fill_user(const struct verb_call *call, struct channel_place place,
		      char *name, struct channel_item *ret)
{
	const struct store *store = &call->broker->store;
	const struct catalog *catalog = &store->catalog;
	const struct channel_record *record =
		catalog_channel(catalog, place.record);
	const struct channel_user *user = &record->users[place.place];
	const struct session_record *session =
		catalog_session(catalog, user->session);
	const struct slots *slots = &store->channels.slots[place.record];
	struct slots_status status;
	uint32_t n_free, n_held;

	memcpy(name, catalog_blob(catalog, record->name_blob),
	       record->name_size);
	name[record->name_size] = '\0';
	*ret = (struct channel_item){
		.name = name,
		.uid = record->uid,
		.way = record->way,
		.capacity = record->capacity,
		.pid = session->pid,
		.command = session->command,
		.role = user->role,
		.is_ended = user->is_ended,
		.age_ms = now_ms() - user->born_ms,
	};
	slots_count(slots, &ret->n_queued, &n_free, &n_held);
	ret->n_slots = ret->n_queued + n_free + n_held;
	slots_look(slots, place.place, &status);
	ret->n_items = status.n_items;
	ret->n_waits = status.n_waits;
	ret->want = (uint32_t)status.want;
	ret->wait_ms = status.wait_ns / 1000000;
}

int verb_channels(struct verb_call *call, struct error *err)
{
	const struct store *store = &call->broker->store;
	struct channels_reply *reply = &call->reply->channels;
	uint64_t cursor = call->request->channels.cursor;
	struct channel_place place;
	char *names =
		verb_scratch(call, (size_t)PAGE_CHANNELS * (NAME_MAX_SIZE + 1));

	reply->items =
		verb_scratch(call, PAGE_CHANNELS * sizeof(*reply->items));
	if (!reply->items || !names)
		return error_nomem(err, "the channels");
	while (reply->n_items < PAGE_CHANNELS &&
	       channel_next_user(store, &cursor, &place)) {
		if (!may_see(call,
			     catalog_channel(&store->catalog, place.record)))
			continue;
		fill_user(call, place,
			  names + (size_t)reply->n_items * (NAME_MAX_SIZE + 1),
			  &reply->items[reply->n_items]);
		reply->n_items++;
	}
	reply->next_cursor = cursor;
	return VERB_DONE;
}
