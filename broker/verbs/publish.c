/*
 * publish: gives names to tensors, or ends the writing of tensors without a
 * name.
 *
 * All items are checked, and everything that can fail is reserved (space for
 * names, deadlines, owners of first components), before the first name changes.
 * Then each item's old tensor goes to LIMBO before the new one becomes
 * PUBLISHED.
 */
#include "broker/broker.h"
#include "broker/tensor/expiry.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/name.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/verbs.h"
#include "cuda/handle.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>

struct publication {
	const struct publish_item *item;
	uint32_t slot;
	uint64_t room;   /* reserved for the name; 0: not yet */
	uint64_t event;  /* space for the handle; 0: no event, or not yet */
	uint64_t number; /* of the event */
	uint64_t deadline_ms;
	bool is_claimed; /* the first component was claimed just now */
};

/* --- checks -------------------------------------------------------------- */

static bool holds(const struct verb_call *call, uint32_t slot)
{
	uint32_t grant = grant_find(&call->broker->store,
				    call->session->holdings.index, slot);

	return grant && grant_holds(&call->broker->store, grant) > 0;
}

/* Check that the session is the writer, or that the slot is anonymous and
 * belongs to the same user. */
static int check_slot(const struct verb_call *call, uint32_t slot,
		      struct error *err)
{
	const struct slot_record *record =
		catalog_slot(&call->broker->store.catalog, slot);
	uint32_t uid = slot_access(&call->broker->store, slot).uid;

	if (record->bundle)
		return error_set(err, -EINVAL,
				 "a bundle's tensor is published with its "
				 "bundle");
	if (record->channel)
		return error_set(err, -EINVAL,
				 "the tensor is a buffer of a channel; keep "
				 "the item first, or publish a copy");
	if (record->writer == call->session->holdings.index)
		return 0;
	if (record->writer)
		return error_set(err, -EPERM,
				 "another session is writing the tensor");
	if (record->name_size)
		return error_set(
			err, -EINVAL,
			"the tensor has or had the name \"%.*s\", and a tensor "
			"can have only one; make a view of it",
			record->name_size,
			(const char *)catalog_blob(&call->broker->store.catalog,
						   record->blob));
	if (!holds(call, slot))
		return error_set(err, -EINVAL,
				 "this session does not hold the tensor");
	if (!access_is_owner(&call->session->holdings.credentials, uid))
		return error_set(err, -EPERM,
				 "the tensor's memory belongs to uid %u", uid);
	return 0;
}

static int check_bundle(const struct broker *broker, const char *name,
			struct error *err)
{
	const struct bundle_record *record;
	uint32_t bundle = index_enclosing_bundle(&broker->store, name);

	if (!bundle)
		return 0;
	record = catalog_bundle(&broker->store.catalog, bundle);
	return error_set(
		err, -EEXIST,
		"the name is in the bundle \"%.*s\"; replace the whole bundle",
		(int)record->name_size,
		(const char *)catalog_blob(&broker->store.catalog,
					   record->name_blob));
}

/* Check the tensor that the name shows now, if there is one. */
static int check_old(const struct verb_call *call,
		     const struct publish_item *item, struct error *err)
{
	uint32_t old = index_find(&call->broker->store, item->name);
	uint32_t uid;

	if (!old) {
		if (!(item->flags & PUBLISH_MUST_EXIST))
			return 0;
		return error_set(err, -ENOENT,
				 "there is no such name to replace");
	}
	uid = slot_access(&call->broker->store, old).uid;
	if (!access_is_owner(&call->session->holdings.credentials, uid))
		return error_set(
			err, item->flags & PUBLISH_REPLACE ? -EPERM : -EEXIST,
			"the tensor that has the name belongs to uid %u; use "
			"another name",
			uid);
	if (item->flags & PUBLISH_REPLACE)
		return 0;
	return error_set(err, -EEXIST,
			 "the name exists; to replace it, pass FSDP_REPLACE "
			 "(fsdpctl: --replace; Python: replace=True)");
}

static int check_name(const struct verb_call *call,
		      const struct publish_item *item, struct error *err)
{
	uint32_t uid = session_record(call->session)->uid;
	int r;

	if (!*item->name)
		return 0;
	r = prefix_check(&call->broker->store, item->name, uid, err);
	if (r == 0)
		r = check_bundle(call->broker, item->name, err);
	if (r == 0)
		r = check_old(call, item, err);
	return r;
}

/* Check the event. The handle is for waiting readers, and its number identifies
 * the event. */
static int check_event(struct publication *one, struct error *err)
{
	struct handle handle;
	int r = handle_decode(one->item->event, MESSAGE_HANDLE_SIZE,
			      HANDLE_EVENT, &handle, err);

	if (r < 0)
		return error_wrap(err, -EINVAL, "cannot use the event");
	if (handle.generation == 0 || handle.generation >= INT64_MAX)
		return error_set(err, -EINVAL,
				 "%llu is not the number of an event",
				 (unsigned long long)handle.generation);
	one->number = handle.generation;
	return 0;
}

/* Check the ready fence, if the contents are not complete yet. */
static int check_fence(const struct verb_call *call, struct publication *one,
		       struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	const struct publish_item *item = one->item;
	const struct block_record *block =
		catalog_block(catalog, catalog_slot(catalog, one->slot)->block);

	if (!item->value && !item->event)
		return 0;
	if (device_uuid_is_host(
		    pool_block_device(&call->broker->store.pools, block)))
		return error_set(
			err, -EINVAL,
			"the tensor is in host memory, and its readers do not "
			"wait for streams: synchronise the stream, and publish "
			"the tensor without it");
	if (item->event)
		return check_event(one, err);
	if (call->session->holdings.timelines.pages)
		return 0;
	return error_set(err, -EINVAL,
			 "this session has no timelines; create them first");
}

/* Refuse duplicates, because a batch may name each slot and each name only
 * once. */
static int check_duplicates(const struct publication *all, uint32_t i,
			    struct error *err)
{
	uint32_t j;

	for (j = 0; j < i; j++) {
		if (all[j].slot == all[i].slot)
			return error_set(err, -EINVAL,
					 "the tensor is in the batch twice");
		if (*all[i].item->name &&
		    !strcmp(all[j].item->name, all[i].item->name))
			return error_set(err, -EINVAL,
					 "the name is in the batch twice");
	}
	return 0;
}

/* A new fence replaces those of the views that were made before. */
static int check_views(const struct store *store, const struct publication *one,
		       uint32_t *n_views, struct error *err)
{
	if (one->item->value || one->item->event)
		*n_views += ready_fence_n_copies(store, one->slot);
	if (*n_views <= 2 * FENCE_MAX_COPIES)
		return 0;
	return error_set(err, -EBUSY,
			 "%u views wait for the device to finish writing these "
			 "tensors; publish them again when it has done so",
			 *n_views);
}

static int check(const struct verb_call *call, struct publication *all,
		 uint32_t n, struct error *err)
{
	const struct publish_item *item;
	uint32_t i, n_views = 0;
	int r;

	for (i = 0; i < n; i++) {
		item = &call->request->publish.items[i];
		all[i].item = item;
		all[i].slot = slot_find(&call->broker->store, &item->ref, err);
		r = all[i].slot ? check_slot(call, all[i].slot, err) : -ESTALE;
		if (r == 0)
			r = check_name(call, item, err);
		if (r == 0)
			r = check_fence(call, &all[i], err);
		if (r == 0)
			r = check_views(&call->broker->store, &all[i], &n_views,
					err);
		if (r == 0)
			r = check_duplicates(all, i, err);
		if (r < 0)
			return error_wrap(err, r, "cannot publish \"%s\"",
					  item->name);
	}
	return 0;
}

/* --- reservations -------------------------------------------------------- */

static void unreserve(struct broker *broker, struct publication *all,
		      uint32_t n)
{
	struct slot_record *record;

	for (uint32_t i = 0; i < n; i++) {
		record = catalog_slot(&broker->store.catalog, all[i].slot);
		deadlines_remove(&broker->base.deadlines,
				 &record->heap_position);
		if (all[i].event)
			catalog_blob_release(&broker->store.catalog,
					     all[i].event, FENCE_EVENT_SIZE);
		if (all[i].is_claimed)
			prefix_unclaim(&broker->store, all[i].item->name);
		if (all[i].room)
			slot_unreserve_name(&broker->store, all[i].slot,
					    all[i].item->name, all[i].room);
	}
}

static int reserve_event(struct broker *broker, struct publication *one,
			 struct error *err)
{
	if (!one->item->event)
		return 0;
	one->event =
		catalog_blob_alloc(&broker->store.catalog, FENCE_EVENT_SIZE);
	if (!one->event)
		return error_set(err, -ENOSPC,
				 "the catalog has no room for the event's "
				 "handle; remove some tensors");
	memcpy(catalog_blob(&broker->store.catalog, one->event),
	       one->item->event, FENCE_EVENT_SIZE);
	return 0;
}

static int reserve_one(const struct verb_call *call, struct publication *one,
		       struct error *err)
{
	struct broker *broker = call->broker;
	const struct publish_item *item = one->item;
	uint32_t uid = session_record(call->session)->uid;
	uint32_t n_owned =
		catalog_n_live(&broker->store.catalog, SECTION_PREFIX);
	int r;

	if (!*item->name)
		return 0;
	one->room = slot_reserve_name(&broker->store, one->slot, item->name);
	if (!one->room)
		return error_set(err, -ENOSPC,
				 "the catalog has no room for the name \"%s\"; "
				 "remove some names",
				 item->name);
	r = prefix_claim(&broker->store, item->name, uid, err);
	if (r < 0)
		return r;
	one->is_claimed = catalog_n_live(&broker->store.catalog,
					 SECTION_PREFIX) != n_owned;
	if (!item->ttl_ms)
		return 0;
	one->deadline_ms = now_ms() + item->ttl_ms;
	return expiry_set(&broker->store, one->slot, one->deadline_ms, err);
}

static int reserve(const struct verb_call *call, struct publication *all,
		   uint32_t n, struct error *err)
{
	uint32_t i;
	int r;

	for (i = 0; i < n; i++) {
		r = reserve_event(call->broker, &all[i], err);
		if (r == 0)
			r = reserve_one(call, &all[i], err);
		if (r < 0) {
			unreserve(call->broker, all, n);
			return r;
		}
	}
	return 0;
}

/* --- changes ------------------------------------------------------------- */

/* End the name of the old tensor. Returns the version that the name had. */
static uint64_t end_old_name(struct broker *broker, const char *name)
{
	uint32_t old = index_find(&broker->store, name);
	uint64_t version;

	if (!old)
		return 0;
	version = catalog_slot(&broker->store.catalog, old)->version;
	slot_end_name(&broker->store, old);
	slot_update_state(&broker->store, old);
	failpoint("publish.replaced");
	return version;
}

static void show(const struct verb_call *call, const struct publication *one,
		 uint64_t version)
{
	struct broker *broker = call->broker;
	struct catalog *catalog = &broker->store.catalog;
	struct slot_record *record = catalog_slot(catalog, one->slot);
	uint32_t flags = record->flags | one->item->flags | SLOT_FLAG_NAMED;

	slot_set_name(&broker->store, one->slot, one->item->name, one->room);
	catalog_set(catalog, record->version, version);
	catalog_set(catalog, record->deadline_ms, one->deadline_ms);
	catalog_set(catalog, record->flags, (uint16_t)flags);
	if (flags & PUBLISH_TIED) {
		catalog_set(catalog, record->tied,
			    call->session->holdings.index);
		catalog_list_append(
			catalog, &session_record(call->session)->own,
			SECTION_SLOT,
			offsetof(struct slot_record, session_link), one->slot);
	}
	slot_begin_name(&broker->store, one->slot);
	broker->store.n_published++;
	failpoint("publish.indexed");
}

/* Publish one tensor. Returns the version of its name, 0 without a name. */
static uint64_t publish(const struct verb_call *call,
			const struct publication *one)
{
	struct broker *broker = call->broker;
	uint64_t version = 0;

	slot_end_writer(&broker->store, one->slot);
	if (one->item->value)
		ready_fence_set(&broker->store, one->slot,
				call->session->holdings.index,
				one->item->timeline, one->item->value);
	if (one->event)
		ready_fence_set_event(&broker->store, one->slot,
				      call->session->holdings.index,
				      one->number, one->event);
	if (*one->item->name) {
		version = end_old_name(broker, one->item->name) + 1;
		show(call, one, version);
	}
	slot_update_state(&broker->store, one->slot);
	failpoint("publish.shown");
	if (version) {
		events_note_slot(&broker->store, one->slot, EVENT_PUBLISHED);
		wake_name(&broker->base.wake, one->item->name);
	}
	return version;
}

int verb_publish(struct verb_call *call, struct error *err)
{
	uint32_t n = call->request->publish.n_items;
	struct versions_reply *reply = &call->reply->versions;
	struct publication *all = verb_scratch(call, n * sizeof(*all));
	uint64_t *versions = verb_scratch(call, n * sizeof(*versions));
	uint32_t i;
	int r;

	if (!all || !versions)
		return error_nomem(err, "the request");
	r = check(call, all, n, err);
	if (r < 0)
		return r;
	r = reserve(call, all, n, err);
	if (r < 0)
		return r;
	for (i = 0; i < n; i++)
		versions[i] = publish(call, &all[i]);
	reply->versions = versions;
	reply->n_versions = n;
	return VERB_DONE;
}
