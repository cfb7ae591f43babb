/*
 * list: lists the tensors that a session may read, or that its user pays for,
 * in pages.
 *
 * The cursor is a slot's number, so tensors may come and go between pages: each
 * tensor that exists throughout is listed once. One request visits a limited
 * number of slots and holders, and may therefore return an empty page that is
 * not the last.
 */
#include "broker/base/deadline.h"
#include "broker/broker.h"
#include "broker/session/session.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/place.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/name.h"
#include "shm/refs.h"
#include <string.h>

#define N_PEEKS       8
#define MAX_EXAMINED  4096
#define HOLDER_COST   2     /* cost of a visit, in slots */
#define MAX_PAGE_SIZE 56320 /* leaves space in a frame for the other fields */
#define MAX_NAME_ROOM ((size_t)MESSAGE_MAX_ITEMS * (NAME_MAX_SIZE + 1))
/* An upper bound of the size of one item without its name and without the
 * numbers of item_size(). */
#define ITEM_SIZE 128

/* The page that is being filled. */
struct page {
	struct list_item *items;
	uint32_t n;
	char *names; /* MAX_NAME_ROOM bytes */
	size_t names_size;
	size_t size; /* upper bound of the encoded size */
	uint32_t n_examined;
	uint64_t now_ms;
	/* The entries of ref-counter files that were read last. Most tensors
	 * have few holders, which also hold the neighbouring tensors. */
	struct refs_peek peeks[N_PEEKS]; /* by session */
};

/* Returns whether the tensor may be listed. Charged memory is listed to the
 * user that pays for it, readable or not. */
static bool may_see(const struct verb_call *call, uint32_t slot)
{
	const struct broker *broker = call->broker;
	struct access_class access = slot_access(&broker->store, slot);

	if (call->request->list.filter != LIST_CHARGED)
		return access_is_allowed(&call->session->holdings.credentials,
					 &access, ACCESS_READ);
	return session_is_admin(call->session) ||
	       session_record(call->session)->uid ==
		       slot_block_use(&broker->store, slot).uid;
}

static bool is_wanted(const struct verb_call *call, uint32_t slot)
{
	const struct list_request *request = &call->request->list;
	const struct broker *broker = call->broker;
	const struct slot_record *record =
		catalog_slot(&broker->store.catalog, slot);
	size_t prefix_size = strlen(request->prefix);
	char name[NAME_MAX_SIZE + 1];

	if (!record->block)
		return false;
	if (request->filter == LIST_NAMED && !index_shows(&broker->store, slot))
		return false;
	if (request->filter == LIST_LIMBO &&
	    !(record->flags & SLOT_FLAG_IN_LIMBO))
		return false;
	if (!may_see(call, slot))
		return false;
	if (prefix_size == 0)
		return true;
	slot_describe(&broker->store, slot, NULL, name);
	return strncmp(name, request->prefix, prefix_size) == 0;
}

static uint32_t count_holders(const struct broker *broker, uint32_t slot,
			      struct page *page)
{
	const struct catalog *catalog = &broker->store.catalog;
	uint32_t grant = catalog_slot(catalog, slot)->grants.first;
	uint32_t n = 0;

	while (grant) {
		const struct grant_record *record =
			catalog_grant(catalog, grant);

		page->n_examined += HOLDER_COST;
		n += grant_peek_is_held(
			&broker->store, grant,
			&page->peeks[record->session % N_PEEKS]);
		grant = record->slot_link.next;
	}
	return n;
}

/* Returns whether the process that made the memory may be listed: only to its
 * user, as with `who`, and to administrators. */
static bool may_see_maker(const struct verb_call *call,
			  const struct block_use *use)
{
	return access_is_owner(&call->session->holdings.credentials,
			       use->uid) ||
	       session_is_admin(call->session);
}

static void fill_block(const struct verb_call *call, uint32_t slot,
		       struct list_item *item)
{
	const struct broker *broker = call->broker;
	const struct catalog *catalog = &broker->store.catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	struct block_use use = slot_block_use(&broker->store, slot);

	item->block = use.id;
	item->block_bytes = use.size;
	item->block_slots = use.n_slots;
	item->payer_uid = use.uid;
	if (use.maker && may_see_maker(call, &use))
		item->maker_pid = catalog_session(catalog, use.maker)->pid;
	item->n_tickets = record->n_tickets;
	item->is_collective = record->group || record->n_pins;
}

/* Returns the encoded size of a number, with a tag of two bytes. A number that
 * is 0 is not encoded. */
static size_t number_size(uint64_t n)
{
	return n ? 3 + (size_t)(63 - __builtin_clzll(n)) / 7 : 0;
}

/* Returns an upper bound of the encoded size. It depends on the numbers, most
 * of which are small, so that a page gets full. */
static size_t item_size(const struct list_item *item)
{
	const struct tensor_type *type = &item->place.type;
	size_t size =
		ITEM_SIZE + strlen(item->place.name) +
		number_size(item->access.uid) + number_size(item->access.gid) +
		number_size(item->age_ms) + number_size(item->ttl_left_ms) +
		number_size(item->n_holders) + number_size(item->bundle) +
		number_size(item->block) + number_size(item->block_bytes) +
		number_size(item->block_slots) + number_size(item->payer_uid) +
		number_size(item->maker_pid) + number_size(item->n_tickets) +
		number_size(item->bundle_name_size);

	for (uint32_t i = 0; i < type->n_dims; i++)
		size += 2 + number_size((uint64_t)type->shape[i]) +
			number_size((uint64_t)type->strides[i]);
	return size;
}

/* A member ends with its bundle, so it is as the bundle was published. */
static void fill_publication(const struct verb_call *call,
			     const struct slot_record *record, uint64_t now_ms,
			     struct list_item *item)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	uint64_t deadline_ms = record->deadline_ms;
	uint32_t flags = record->flags;

	if (record->bundle) {
		const struct bundle_record *bundle =
			catalog_bundle(catalog, record->bundle);

		deadline_ms = bundle->deadline_ms;
		flags = bundle->flags;
		item->bundle = bundle->id;
		item->bundle_name_size = bundle->name_size;
	}
	/* A name that expires at this moment has not ended yet, and 0 means
	 * that it never expires. */
	if (deadline_ms)
		item->ttl_left_ms =
			deadline_ms > now_ms ? deadline_ms - now_ms : 1;
	item->flags = flags & (PUBLISH_REPLACE | PUBLISH_EVICTABLE |
			       PUBLISH_TIED | PUBLISH_MUST_EXIST);
}

static void fill_item(const struct verb_call *call, uint32_t slot,
		      struct page *page)
{
	const struct broker *broker = call->broker;
	const struct catalog *catalog = &broker->store.catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	struct list_item *item = &page->items[page->n++];
	char *name = page->names + page->names_size;
	const struct chunk_record *chunk;

	slot_place(&broker->store, slot, name, &item->place);
	page->names_size += strlen(name) + 1;
	item->access = slot_access(&broker->store, slot);
	chunk = catalog_chunk(catalog,
			      catalog_block(catalog, record->block)->chunk);
	item->device = chunk->device;
	item->shared = chunk->shared;
	item->state = slot_state(&broker->store, slot);
	item->age_ms = page->now_ms - record->born_ms;
	fill_publication(call, record, page->now_ms, item);
	item->n_holders = count_holders(broker, slot, page);
	item->digest = record->digest;
	fill_block(call, slot, item);
	page->size += item_size(item);
}

int verb_list(struct verb_call *call, struct error *err)
{
	const struct list_request *request = &call->request->list;
	uint32_t last =
		catalog_n_touched(&call->broker->store.catalog, SECTION_SLOT);
	struct page page = {.now_ms = now_ms()};
	uint64_t slot = request->cursor ? request->cursor : 1;

	page.items =
		verb_scratch(call, MESSAGE_MAX_ITEMS * sizeof(*page.items));
	page.names = verb_scratch(call, MAX_NAME_ROOM);
	if (!page.items || !page.names)
		return error_nomem(err, "a list");
	for (; slot <= last && page.n_examined < MAX_EXAMINED &&
	       page.n < MESSAGE_MAX_ITEMS && page.size < MAX_PAGE_SIZE;
	     slot++) {
		page.n_examined++;
		if (is_wanted(call, (uint32_t)slot))
			fill_item(call, (uint32_t)slot, &page);
	}
	call->reply->list = (struct list_reply){
		.n_items = page.n,
		.items = page.items,
		.next_cursor = slot <= last ? slot : 0,
	};
	return VERB_DONE;
}
