/*
 * alloc: makes tensors, views of held tensors, and members of a staged bundle.
 *
 * First every item is checked, then memory and capacity for all of them are
 * taken (tensor/room.h), and only then are records made. If they cannot be
 * taken, the request is parked, if its time-out allows it. Either all items are
 * made or none is.
 */
#include "broker/broker.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/room.h"
#include "broker/tensor/shared_chunk.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>

/* A request in progress. */
struct alloc_plan {
	const struct alloc_request *request;
	struct broker *broker;
	struct session *session;
	struct room room;                    /* for the new blocks */
	uint32_t bundle;                     /* bundle record; 0: none */
	uint64_t spans[MESSAGE_MAX_ITEMS];   /* by item */
	uint64_t offsets[MESSAGE_MAX_ITEMS]; /* by item, in the item's block */
	/* By item; 0: a new block is needed. */
	uint32_t blocks[MESSAGE_MAX_ITEMS];
	uint64_t sizes[MESSAGE_MAX_ITEMS]; /* of the new blocks */
	uint32_t made[MESSAGE_MAX_ITEMS];  /* the new blocks */
	uint32_t slots[MESSAGE_MAX_ITEMS]; /* by item */
};

/* --- checks -------------------------------------------------------------- */

/* Check the offset and the range of a view. Its alignment needs a check because
 * memory that a process shared may be aligned less than blocks are. */
static int check_range(const struct slot_record *base, uint64_t block_offset,
		       const struct alloc_item *item, uint64_t span,
		       struct error *err)
{
	uint32_t align = dtype_size(item->type.dtype);

	if (item->base_offset > base->size ||
	    span > base->size - item->base_offset)
		return error_set(err, -ERANGE,
				 "%llu bytes at offset %llu reach outside of "
				 "the tensor, which has %llu bytes",
				 (unsigned long long)span,
				 (unsigned long long)item->base_offset,
				 (unsigned long long)base->size);
	if ((block_offset + base->offset + item->base_offset) % align)
		return error_set(err, -EINVAL,
				 "offset %llu is not aligned to the %u bytes "
				 "of %s",
				 (unsigned long long)item->base_offset, align,
				 dtype_name(item->type.dtype));
	return 0;
}

/* A view outside the bundle would keep memory of a version that
 * was replaced. */
static int check_view_bundle(const struct alloc_plan *plan,
			     const struct slot_record *base, struct error *err)
{
	if (base->bundle == plan->bundle)
		return 0;
	if (!base->bundle)
		return error_set(err, -EINVAL,
				 "a member of a bundle can only be a view of "
				 "another member");
	return error_set(err, -EINVAL,
			 "a view of a bundle's member can only be allocated "
			 "while the bundle is staged, as a member of it; slice "
			 "the tensor without the broker");
}

/* A report that the contents are complete changes all views at once. */
static int check_view_fence(const struct store *store, uint32_t base,
			    struct error *err)
{
	if (ready_fence_n_copies(store, base) < FENCE_MAX_COPIES)
		return 0;
	return error_set(err, -EBUSY,
			 "%u views wait already for the device to finish "
			 "writing the tensor; make more when it has done so",
			 FENCE_MAX_COPIES);
}

static int check_view(struct alloc_plan *plan, uint32_t i, struct error *err)
{
	const struct alloc_item *item = &plan->request->items[i];
	struct broker *broker = plan->broker;
	const struct slot_record *base;
	uint32_t slot, grant;
	int r;

	slot = slot_find(&broker->store, &item->base, err);
	if (!slot)
		return -ESTALE;
	grant = grant_find(&broker->store, plan->session->holdings.index, slot);
	if (!grant || grant_holds(&broker->store, grant) <= 0)
		return error_set(err, -EINVAL,
				 "the tensor to be viewed is not held by this "
				 "session");
	base = catalog_slot(&broker->store.catalog, slot);
	r = check_view_bundle(plan, base, err);
	if (r < 0)
		return r;
	r = check_range(
		base,
		catalog_block(&broker->store.catalog, base->block)->offset,
		item, plan->spans[i], err);
	if (r == 0)
		r = shared_chunk_check(&broker->store, slot, err);
	if (r == 0)
		r = check_view_fence(&broker->store, slot, err);
	if (r < 0)
		return r;
	plan->blocks[i] = base->block;
	plan->offsets[i] = base->offset + item->base_offset;
	return 0;
}

static int check_member_name(const struct alloc_plan *plan, uint32_t i,
			     struct error *err)
{
	const struct broker *broker = plan->broker;
	const struct bundle_record *bundle =
		catalog_bundle(&broker->store.catalog, plan->bundle);
	const char *prefix =
		catalog_blob(&broker->store.catalog, bundle->name_blob);
	const struct alloc_item *items = plan->request->items;
	const char *name = items[i].name;
	uint32_t j;

	if (strlen(name) <= bundle->name_size ||
	    memcmp(name, prefix, bundle->name_size))
		return error_set(err, -EINVAL,
				 "\"%s\" does not begin with the name of its "
				 "bundle, \"%.*s\"",
				 name, (int)bundle->name_size, prefix);
	for (j = 0; j < i && strcmp(items[j].name, name); j++)
		;
	if (j < i || index_find_member(&broker->store, name, plan->bundle))
		return error_set(err, -EEXIST,
				 "the bundle has a tensor \"%s\" already",
				 name);
	return bundle_check_name(&broker->store, plan->bundle, name, err);
}

static int check_item(struct alloc_plan *plan, uint32_t i, struct error *err)
{
	const struct alloc_item *item = &plan->request->items[i];
	struct room *room = &plan->room;
	int r;

	r = tensor_type_check(&item->type, &plan->spans[i], err);
	if (r == 0 && plan->bundle)
		r = check_member_name(plan, i, err);
	if (r == 0 && item->is_view)
		r = check_view(plan, i, err);
	if (r < 0)
		return error_wrap(err, r, "specs[%u]", i);
	if (item->is_view)
		return 0;
	plan->sizes[room->blocks.n++] = plan->spans[i];
	if (__builtin_add_overflow(
		    room->charge,
		    pool_block_size(plan->spans[i], &room->blocks.device),
		    &room->charge))
		return error_set(err, -EOVERFLOW,
				 "%u tensors have more than 2^64 bytes "
				 "together; allocate fewer in one call",
				 plan->request->n_items);
	return 0;
}

static bool has_views_only(const struct alloc_request *request)
{
	uint32_t i;

	for (i = 0; i < request->n_items; i++) {
		if (!request->items[i].is_view)
			return false;
	}
	return true;
}

static int check_class(struct alloc_plan *plan, struct error *err)
{
	struct broker *broker = plan->broker;
	struct pool_request *blocks = &plan->room.blocks;
	const struct bundle_record *bundle;

	if (!plan->request->bundle && has_views_only(plan->request))
		return 0;
	blocks->device = plan->request->device;
	if (!plan->request->bundle)
		return access_resolve(&plan->session->holdings.credentials,
				      &plan->request->access, &blocks->access,
				      err);
	plan->bundle =
		bundle_find_staged(&broker->store, &plan->session->holdings,
				   plan->request->bundle, err);
	if (!plan->bundle)
		return -ENOENT;
	bundle = catalog_bundle(&broker->store.catalog, plan->bundle);
	blocks->access = bundle->access;
	blocks->device = bundle->device;
	blocks->bundle = plan->bundle;
	blocks->size_hint = bundle_size_left(&broker->store, plan->bundle);
	if (bundle->members.n + plan->request->n_items <= BUNDLE_MAX_MEMBERS)
		return 0;
	return error_set(err, -E2BIG,
			 "a bundle can have %u tensors; use several bundles, "
			 "or fewer, larger tensors",
			 BUNDLE_MAX_MEMBERS);
}

static int make_plan(struct alloc_plan *plan, struct error *err)
{
	struct store *store = &plan->broker->store;
	struct holdings *holdings = &plan->session->holdings;
	uint32_t n = plan->request->n_items;
	uint32_t i;
	int r;

	plan->room = (struct room){
		.store = store,
		.account = holdings->account,
		.holdings = holdings,
		.n_slots = n,
		.blocks =
			{
				.sizes = plan->sizes,
				.maker = holdings->index,
				.uid = holdings->account->uid,
			},
	};
	r = check_class(plan, err);
	for (i = 0; r == 0 && i < n; i++)
		r = check_item(plan, i, err);
	if (r < 0 || grant_check_room(holdings, n, err) == 0)
		return r;
	collect_released(store);
	return grant_check_room(holdings, n, err);
}

/* --- memory -------------------------------------------------------------- */

/* Charge the account and make the blocks. Returns VERB_DONE if that succeeded,
 * another enum verb_outcome if the request must wait, or a negative errno. */
static int find_room(struct verb_call *call, struct alloc_plan *plan,
		     struct error *err)
{
	struct error cause = ERROR_NULL;
	int r;

	call->wait_ms = plan->request->timeout_ms;
	r = room_take(&plan->room, plan->made, &cause);
	if (r == POOL_OK)
		return VERB_DONE;
	if (r == POOL_WAIT)
		return VERB_PARK_ROOM;
	if (r == POOL_FULL && call->wait_ms && !call->is_timed_out)
		return VERB_PARK_ROOM;
	return error_set(err, cause.code, "%s", cause.msg);
}

/* --- creation ------------------------------------------------------------ */

static bool make_slot(struct alloc_plan *plan, uint32_t i)
{
	const struct alloc_item *item = &plan->request->items[i];
	struct broker *broker = plan->broker;
	/* a view starts in limbo; a member's writer is its bundle */
	bool has_writer = !item->is_view && !plan->bundle;
	const char *name = plan->bundle ? item->name : "";

	plan->slots[i] =
		slot_new(&broker->store, plan->blocks[i], plan->offsets[i],
			 plan->spans[i], &item->type, name,
			 has_writer ? plan->session->holdings.index : 0,
			 plan->room.account->uid);
	if (!plan->slots[i])
		return false;
	if (item->is_view)
		ready_fence_copy(&broker->store, item->base.slot,
				 plan->slots[i]);
	return true;
}

/* Undo everything, because the catalog was full. This is as if the slots had
 * been released. */
static void undo(struct alloc_plan *plan, uint32_t n_slots)
{
	struct store *store = &plan->broker->store;
	const struct device_uuid *device = &plan->room.blocks.device;
	struct room rest = plan->room;

	for (uint32_t i = 0; i < n_slots; i++) {
		if (!plan->request->items[i].is_view)
			rest.charge -= pool_block_size(plan->spans[i], device);
	}
	rest.n_slots -= n_slots;
	room_refund(&rest);
	for (uint32_t i = n_slots; i < plan->request->n_items; i++) {
		if (!plan->request->items[i].is_view)
			pool_release(&store->pools, plan->blocks[i]);
	}
	for (uint32_t i = 0; i < n_slots; i++) {
		slot_end_writer(store, plan->slots[i]);
		slot_update_state(store, plan->slots[i]);
	}
}

/* Check that the bases of views still exist. Making memory may have freed one
 * that its holders had released. */
static int check_bases(const struct alloc_plan *plan, struct error *err)
{
	const struct broker *broker = plan->broker;
	const struct alloc_item *item;

	for (uint32_t i = 0; i < plan->request->n_items; i++) {
		item = &plan->request->items[i];
		if (item->is_view &&
		    !slot_find(&broker->store, &item->base, err))
			return -ESTALE;
	}
	return 0;
}

static int make_slots(struct alloc_plan *plan, struct error *err)
{
	uint32_t n = plan->request->n_items;
	uint32_t n_made = 0;
	uint32_t i;
	int r;

	for (i = 0; i < n; i++) {
		if (!plan->request->items[i].is_view)
			plan->blocks[i] = plan->made[n_made++];
	}
	assert(n_made == plan->room.blocks.n);
	r = check_bases(plan, err);
	if (r < 0) {
		undo(plan, 0);
		return r;
	}
	failpoint("alloc.blocks");
	for (i = 0; i < n; i++) {
		if (make_slot(plan, i))
			continue;
		undo(plan, i);
		return error_set(err, -ENOSPC,
				 "the catalog has no room for shapes and names "
				 "of %u more tensors; remove some",
				 n);
	}
	return 0;
}

int verb_alloc(struct verb_call *call, struct error *err)
{
	struct alloc_plan *plan = verb_scratch(call, sizeof(*plan));
	int r;

	if (!plan)
		return error_nomem(err, "the request");
	plan->request = &call->request->alloc;
	plan->broker = call->broker;
	plan->session = call->session;
	r = make_plan(plan, err);
	if (r < 0)
		return r;
	r = find_room(call, plan, err);
	if (r != VERB_DONE)
		return r;
	r = make_slots(plan, err);
	if (r < 0)
		return r;
	verb_reply_places(call, plan->slots, plan->request->n_items);
	for (uint32_t i = 0; plan->bundle && i < plan->request->n_items; i++)
		bundle_add_member(&call->broker->store, plan->bundle,
				  plan->slots[i]);
	/* This comes last, since a client with invalid counts may lose the
	 * slots here. */
	for (uint32_t i = 0; i < plan->request->n_items; i++)
		slot_update_state(&call->broker->store, plan->slots[i]);
	return VERB_DONE;
}
