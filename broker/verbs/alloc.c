/*
 * alloc: new tensors, views of held tensors, members of a staged bundle.
 *
 * The order is: check every item, charge, ask the pool, and only then make
 * records. If there is not enough memory it collects limbo and retries, evicts
 * and retries, and parks the request if its time-out allows. Either all items
 * are made or none is.
 */
#include "broker/broker.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/order.h"
#include "broker/tensor/shared_chunk.h"
#include "broker/tensor/slot.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>

/* A request in progress. */
struct alloc_plan {
	const struct alloc_request *request;
	struct broker *broker;
	struct session *session;
	struct account *account;
	struct access_class access;
	struct device_uuid device; /* of the blocks to be made */
	uint32_t bundle;           /* bundle record; 0: none */
	uint32_t uid;
	uint32_t n_blocks;
	uint64_t charge;                     /* of all blocks, bytes */
	uint64_t spans[MESSAGE_MAX_ITEMS];   /* by item */
	uint64_t offsets[MESSAGE_MAX_ITEMS]; /* by item, in the item's block */
	/* By item; 0: a new block is needed. */
	uint32_t blocks[MESSAGE_MAX_ITEMS];
	uint64_t sizes[MESSAGE_MAX_ITEMS]; /* of the new blocks */
	uint32_t made[MESSAGE_MAX_ITEMS];  /* the new blocks */
	uint32_t slots[MESSAGE_MAX_ITEMS]; /* by item */
};

/* --- checks -------------------------------------------------------------- */

/* Blocks are aligned, except in memory that a process shared. */
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
				 "a bundle's member cannot view a tensor "
				 "outside of it");
	return error_set(err, -EINVAL,
			 "views of a bundle's member are made while it is "
			 "staged, as members; slice it without the broker");
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
	plan->sizes[plan->n_blocks++] = plan->spans[i];
	if (__builtin_add_overflow(
		    plan->charge,
		    pool_block_size(plan->spans[i], &plan->device),
		    &plan->charge))
		return error_set(err, -EOVERFLOW,
				 "%u tensors of together more than 2^64 bytes",
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
	const struct bundle_record *bundle;

	if (!plan->request->bundle && has_views_only(plan->request))
		return 0;
	plan->device = plan->request->device;
	if (!plan->request->bundle)
		return access_resolve(&plan->session->holdings.credentials,
				      &plan->request->access, &plan->access,
				      err);
	plan->bundle =
		bundle_find_staged(&broker->store, &plan->session->holdings,
				   plan->request->bundle, err);
	if (!plan->bundle)
		return -ENOENT;
	bundle = catalog_bundle(&broker->store.catalog, plan->bundle);
	plan->access = bundle->access;
	plan->device = bundle->device;
	if (bundle->members.n + plan->request->n_items <= BUNDLE_MAX_MEMBERS)
		return 0;
	return error_set(err, -E2BIG,
			 "a bundle can have %u tensors; use several bundles, "
			 "or fewer, larger tensors",
			 BUNDLE_MAX_MEMBERS);
}

static bool catalog_has_room(const struct alloc_plan *plan, struct error *err)
{
	const struct catalog *catalog =
		&plan->session->sessions->store->catalog;
	uint32_t n = plan->request->n_items;

	return catalog_check_room(catalog, SECTION_SLOT, n, "tensors", err) ==
		       0 &&
	       catalog_check_room(catalog, SECTION_BLOCK, plan->n_blocks,
				  "blocks", err) == 0 &&
	       grant_check_room(&plan->session->holdings, n, err) == 0;
}

static int make_plan(struct alloc_plan *plan, struct error *err)
{
	struct broker *broker = plan->broker;
	uint32_t i;
	int r;

	plan->uid = session_record(plan->session)->uid;
	plan->account = plan->session->holdings.account;
	r = check_class(plan, err);
	for (i = 0; r == 0 && i < plan->request->n_items; i++)
		r = check_item(plan, i, err);
	if (r < 0)
		return r;
	if (catalog_has_room(plan, err))
		return 0;
	limbo_collect_released(&broker->store);
	return catalog_has_room(plan, err) ? 0 : err->code;
}

/* --- charges ------------------------------------------------------------- */

/* Could it be charged if nothing else were? */
static int check_limits(const struct alloc_plan *plan, struct error *err)
{
	const struct accounts *accounts = &plan->broker->base.accounts;
	uint64_t budget = session_record(plan->session)->budget;
	uint64_t quota = account_limit(accounts, plan->account,
				       pool_account(&plan->device));
	uint64_t max_slots =
		account_limit(accounts, plan->account, ACCOUNT_SLOTS);

	if (budget && plan->charge > budget)
		return error_set(err, -EDQUOT,
				 "%llu bytes are more than the session's whole "
				 "budget of %llu",
				 (unsigned long long)plan->charge,
				 (unsigned long long)budget);
	if (plan->charge > quota)
		return error_set(err, -EDQUOT,
				 "%llu bytes are more than the whole quota of "
				 "uid %u, %llu",
				 (unsigned long long)plan->charge, plan->uid,
				 (unsigned long long)quota);
	if (plan->request->n_items > max_slots)
		return error_set(err, -EDQUOT,
				 "%u tensors are more than the whole quota of "
				 "uid %u, %llu",
				 plan->request->n_items, plan->uid,
				 (unsigned long long)max_slots);
	return 0;
}

/* False: a limit is exceeded at present; `err` has the message. */
static bool charge(const struct alloc_plan *plan, struct error *err)
{
	const struct accounts *accounts = &plan->broker->base.accounts;
	uint64_t budget = session_record(plan->session)->budget;
	uint64_t used = plan->session->holdings.n_bytes;
	enum account_kind kind = pool_account(&plan->device);

	if (budget && plan->charge > 0 &&
	    (used > budget || plan->charge > budget - used)) {
		error_set(err, -EDQUOT,
			  "the session has %llu of its budget of %llu bytes in "
			  "use; %llu more do not fit until some are released",
			  (unsigned long long)used, (unsigned long long)budget,
			  (unsigned long long)plan->charge);
		return false;
	}
	if (account_charge(accounts, plan->account, kind, plan->charge, err) <
	    0)
		return false;
	if (account_charge(accounts, plan->account, ACCOUNT_SLOTS,
			   plan->request->n_items, err) < 0) {
		account_refund(plan->account, kind, plan->charge);
		return false;
	}
	plan->session->holdings.n_bytes += plan->charge;
	return true;
}

static void refund(const struct alloc_plan *plan)
{
	account_refund(plan->account, pool_account(&plan->device),
		       plan->charge);
	account_refund(plan->account, ACCOUNT_SLOTS, plan->request->n_items);
	plan->session->holdings.n_bytes -= plan->charge;
}

/* --- memory -------------------------------------------------------------- */

enum room {
	/* Above budget or quota; an outcome beside enum pool_outcome. */
	ROOM_OVER_LIMIT = 3,
};

/* Charge and make the blocks, or do neither. Returns enum pool_outcome or enum
 * room, with the cause of a shortage in `err`, or a negative error. */
static int try_once(struct alloc_plan *plan, struct error *err)
{
	struct broker *broker = plan->broker;
	struct pool_request request = {
		.access = plan->access,
		.device = plan->device,
		.bundle = plan->bundle,
		.n = plan->n_blocks,
		.sizes = plan->sizes,
		.maker = plan->session->holdings.index,
		.uid = plan->uid,
	};
	int r = 0;

	if (plan->bundle)
		request.size_hint =
			bundle_size_left(&broker->store, plan->bundle);
	/* Comes first, since a request that can never fit should not wait for
	 * a quota. */
	if (plan->n_blocks)
		r = pool_could_fit(&broker->store.pools, &request, err);
	if (r != 0)
		return r;
	if (!charge(plan, err))
		return ROOM_OVER_LIMIT;
	if (!plan->n_blocks)
		return POOL_OK;
	r = pool_alloc(&broker->store.pools, &request, plan->made, err);
	if (r != POOL_OK)
		refund(plan);
	/* The quota of chunks: wait as for other quotas. */
	return r == -EDQUOT ? ROOM_OVER_LIMIT : r;
}

static bool is_short(int outcome)
{
	return outcome == POOL_FULL || outcome == ROOM_OVER_LIMIT;
}

/* 0: another limit is exceeded. */
static uint64_t bytes_over_quota(const struct alloc_plan *plan)
{
	uint64_t left =
		account_left(&plan->broker->base.accounts, plan->account,
			     pool_account(&plan->device));

	return plan->charge > left ? plan->charge - left : 0;
}

/* Retry with the memory that eviction frees, if any. */
static int try_evicting(struct alloc_plan *plan, uint64_t bytes,
			const uint32_t *uid, int outcome, struct error *err)
{
	struct broker *broker = plan->broker;

	switch (evict(&broker->store, bytes, &plan->device, uid)) {
	case EVICT_SOME:
		return try_once(plan, err);
	case EVICT_MORE:
		return POOL_WAIT;
	default:
		return outcome;
	}
}

/* Try; then retry after collecting released memory, and after eviction. */
static int try_hard(struct alloc_plan *plan, struct error *err)
{
	struct broker *broker = plan->broker;
	int r;

	r = try_once(plan, err);
	if (is_short(r) && limbo_collect_released(&broker->store))
		r = try_once(plan, err);
	/* A quota is relieved only by what is charged to it. */
	if (r == ROOM_OVER_LIMIT)
		r = try_evicting(plan, bytes_over_quota(plan), &plan->uid, r,
				 err);
	if (r == POOL_FULL)
		r = try_evicting(plan, plan->charge, NULL, r, err);
	return r;
}

/* VERB_DONE: charged, and the blocks are made. */
static int find_room(struct verb_call *call, struct alloc_plan *plan,
		     struct error *err)
{
	struct error cause = ERROR_NULL;
	int r;

	call->wait_ms = plan->request->timeout_ms;
	r = check_limits(plan, err);
	if (r < 0)
		return r;
	r = try_hard(plan, &cause);
	if (r == POOL_OK)
		return VERB_DONE;
	if (r == POOL_WAIT)
		return VERB_PARK_ROOM;
	/* The memory of a large bundle is being freed. */
	if (is_short(r) && plan->account->n_going)
		return VERB_PARK_ROOM;
	if (is_short(r) && call->wait_ms && !call->is_timed_out)
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

	plan->slots[i] = slot_new(
		&broker->store, plan->blocks[i], plan->offsets[i],
		plan->spans[i], &item->type, name,
		has_writer ? plan->session->holdings.index : 0, plan->uid);
	if (!plan->slots[i])
		return false;
	if (item->is_view)
		order_copy(&broker->store, item->base.slot, plan->slots[i]);
	return true;
}

/* The catalog was full after all: undo everything, as if the slots had
 * been released. */
static void undo(struct alloc_plan *plan, uint32_t n_slots)
{
	struct broker *broker = plan->broker;
	uint64_t charge;
	uint32_t i;

	for (i = n_slots; i < plan->request->n_items; i++) {
		account_refund(plan->account, ACCOUNT_SLOTS, 1);
		if (plan->request->items[i].is_view)
			continue;
		charge = pool_block_size(plan->spans[i], &plan->device);
		account_refund(plan->account, pool_account(&plan->device),
			       charge);
		plan->session->holdings.n_bytes -= charge;
		pool_release(&broker->store.pools, plan->blocks[i]);
	}
	for (i = 0; i < n_slots; i++) {
		slot_end_writer(&broker->store, plan->slots[i]);
		slot_settle(&broker->store, plan->slots[i]);
	}
}

/* Making memory may have freed a base whose holders have released it. */
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
	assert(n_made == plan->n_blocks);
	r = check_bases(plan, err);
	if (r < 0) {
		undo(plan, 0);
		return r;
	}
	point("alloc.blocks");
	for (i = 0; i < n; i++) {
		if (make_slot(plan, i))
			continue;
		undo(plan, i);
		return error_set(err, -ENOSPC,
				 "the catalog has no room for shapes and names "
				 "of %u more tensors",
				 n);
	}
	return 0;
}

static void grant_slots(const struct alloc_plan *plan)
{
	struct broker *broker = plan->broker;
	bool is_granted;
	uint32_t i;

	for (i = 0; i < plan->request->n_items; i++) {
		is_granted =
			grant_add(&broker->store, plan->session->holdings.index,
				  plan->slots[i], 1);
		assert(is_granted); /* capacity was checked */
		if (plan->bundle)
			bundle_add_member(&broker->store, plan->bundle,
					  plan->slots[i]);
	}
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
	grant_slots(plan);
	verb_fill_places(call, plan->slots, plan->request->n_items);
	/* Last, since a client with invalid counts may lose the slots here. */
	for (uint32_t i = 0; i < plan->request->n_items; i++)
		slot_settle(&call->broker->store, plan->slots[i]);
	return VERB_DONE;
}
