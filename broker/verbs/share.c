/*
 * share and unshare: make tensors of device memory that the session had
 * already, and end the sharing.
 *
 * A share request waits only for operations that end by themselves: loading the
 * driver, its verification of a descriptor, and freeing of memory. Unlike other
 * requests, unshare changes state before it waits or gives up: the tensor is in
 * limbo from then on.
 */
#include "broker/broker.h"
#include "broker/memory/donation.h"
#include "broker/memory/pool.h"
#include "broker/session/session.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/shared_chunk.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/unshare.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "cuda/handle.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <inttypes.h>

/* --- checks -------------------------------------------------------------- */

static int check_handle(const struct share_request *request, struct error *err)
{
	struct handle handle;
	int r = handle_decode(request->handle, sizeof(request->handle),
			      HANDLE_MEMORY, &handle, err);

	/* -EPROTO would mean that the connection is closed. */
	if (r == -EPROTO)
		err->code = r = -EBADMSG;
	if (r < 0)
		return r;
	if (handle.size == request->size)
		return 0;
	return error_set(err, -EINVAL,
			 "the handle is of an allocation of %" PRIu64
			 " bytes, not %" PRIu64,
			 handle.size, request->size);
}

/* Check that there is either a handle or a descriptor. */
static int check_form(const struct verb_call *call, struct error *err)
{
	const struct share_request *request = &call->request->share;

	if (!call->donation && !request->has_handle)
		return error_set(err, -EINVAL,
				 "the request has no memory: neither a handle "
				 "nor a descriptor");
	if (call->donation && request->has_handle)
		return error_set(err, -EINVAL,
				 "the request has both a handle and a "
				 "descriptor; send one of them");
	return request->has_handle ? check_handle(request, err) : 0;
}

static int check_room(const struct verb_call *call, struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	uint32_t n = call->request->share.n_items;
	int r = catalog_check_room(catalog, SECTION_SLOT, n, "tensors", err);

	if (r == 0)
		r = catalog_check_room(catalog, SECTION_BLOCK, n, "blocks",
				       err);
	if (r == 0)
		r = grant_check_room(&call->session->holdings, n, err);
	return r;
}

/* Find the device and check the memory. Returns an enum pool_outcome or a
 * negative errno. */
static int check_memory(const struct verb_call *call, struct share *share,
			struct error *err)
{
	const struct share_request *request = &call->request->share;
	int r = devices_find(&call->broker->store.devices, &request->device,
			     &share->device, err);

	if (r != DEVICES_OK)
		return r < 0 ? r : POOL_WAIT;
	if (request->size > share->device->memory)
		return error_set(err, -EINVAL,
				 "an allocation cannot have %" PRIu64
				 " bytes on a device that has %" PRIu64,
				 request->size, share->device->memory);
	if (request->has_handle) {
		share->handle = request->handle;
		return POOL_OK;
	}
	share->fd = donation_fd(call->donation);
	return donation_check(call->donation, share->device, request->size,
			      err);
}

/* --- sharing ------------------------------------------------------------- */

/* Undo the first `n` tensors, and the chunk if it has no block. */
static void undo(const struct verb_call *call, const uint32_t *slots,
		 uint32_t n, uint32_t chunk)
{
	struct broker *broker = call->broker;

	account_refund(call->session->holdings.account, ACCOUNT_SLOTS,
		       call->request->share.n_items - n);
	for (uint32_t i = 0; i < n; i++) {
		slot_end_writer(&broker->store, slots[i]);
		slot_update_state(&broker->store, slots[i]);
	}
	shared_chunk_give_up(&broker->store.pools, chunk);
}

/* Make the slot of one tensor. Returns false if the catalog is full. */
static bool make_slot(const struct verb_call *call, uint32_t chunk,
		      const struct share_item *item, uint32_t *ret)
{
	struct broker *broker = call->broker;
	uint32_t session = call->session->holdings.index;
	uint32_t uid = session_record(call->session)->uid;
	struct slot_record *record;
	uint64_t span = 0;
	uint32_t block;

	/* The type was checked when the request was decoded. */
	(void)tensor_type_check(&item->type, &span, NULL);
	block = shared_chunk_block(&broker->store.pools, chunk, item->offset,
				   span, uid);
	*ret = slot_new(&broker->store, block, 0, span, &item->type, "",
			session, uid);
	if (!*ret) {
		pool_release(&broker->store.pools, block);
		return false;
	}
	record = catalog_slot(&broker->store.catalog, *ret);
	catalog_set(&broker->store.catalog, record->flags,
		    (uint16_t)(record->flags | SLOT_FLAG_SHARED));
	return true;
}

static int make_slots(const struct verb_call *call, uint32_t chunk,
		      uint32_t *slots, struct error *err)
{
	const struct share_request *request = &call->request->share;

	for (uint32_t i = 0; i < request->n_items; i++) {
		if (make_slot(call, chunk, &request->items[i], &slots[i]))
			continue;
		undo(call, slots, i, chunk);
		return error_set(
			err, -ENOSPC,
			"the catalog has no room for the shapes of %" PRIu32
			" more tensors; remove some",
			request->n_items);
	}
	failpoint("share.slots");
	return 0;
}

/* Get the chunk; if that fails, retry after collecting released memory. */
static int get_chunk(const struct verb_call *call, const struct share *share,
		     uint32_t *ret_chunk, struct error *err)
{
	struct pools *pools = &call->broker->store.pools;
	int r = shared_chunk_get(pools, share, ret_chunk, err);

	if ((r == POOL_FULL || r == -EDQUOT) &&
	    collect_released(&call->broker->store))
		r = shared_chunk_get(pools, share, ret_chunk, err);
	return r == POOL_FULL ? err->code : r;
}

/* Charge and get a chunk, or do neither. Returns an enum pool_outcome or a
 * negative errno. */
static int find_room(const struct verb_call *call, const struct share *share,
		     uint32_t *ret_chunk, struct error *err)
{
	struct account *account = call->session->holdings.account;
	uint32_t n = call->request->share.n_items;
	int r = account_charge(&call->broker->base.accounts, account,
			       ACCOUNT_SLOTS, n, err);

	if (r < 0)
		return r;
	r = get_chunk(call, share, ret_chunk, err);
	if (r != POOL_OK)
		account_refund(account, ACCOUNT_SLOTS, n);
	return r;
}

int verb_share(struct verb_call *call, struct error *err)
{
	const struct share_request *request = &call->request->share;
	struct share share = {.holdings = &call->session->holdings,
			      .size = request->size,
			      .fd = -1};
	uint32_t slots[MESSAGE_MAX_ITEMS];
	uint32_t chunk = 0;
	int r;

	r = access_resolve(&call->session->holdings.credentials,
			   &request->access, &share.access, err);
	if (r == 0)
		r = check_form(call, err);
	if (r == 0)
		r = check_room(call, err);
	if (r == 0)
		r = check_memory(call, &share, err);
	if (r == POOL_OK)
		r = find_room(call, &share, &chunk, err);
	if (r == POOL_WAIT) {
		call->wait_ms = -1;
		return VERB_PARK_ROOM;
	}
	if (r == 0)
		r = make_slots(call, chunk, slots, err);
	if (r < 0)
		return r;
	verb_reply_places(call, slots, request->n_items);
	/* This comes last, since a client with invalid counts may lose the
	 * slots here. */
	for (uint32_t i = 0; i < request->n_items; i++)
		slot_update_state(&call->broker->store, slots[i]);
	return VERB_DONE;
}

/* --- unsharing ----------------------------------------------------------- */

static int check_sharer(const struct verb_call *call, uint32_t slot,
			struct error *err)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t chunk = catalog_block(catalog, record->block)->chunk;

	if (record->flags & SLOT_FLAG_SHARED &&
	    catalog_chunk(catalog, chunk)->sharer ==
		    call->session->holdings.index)
		return 0;
	return error_set(err, -EPERM,
			 "this session did not share the tensor; a holder can "
			 "only release it");
}

/* Drop the hold of the sharer, which is the last one. */
static void drop_last_hold(const struct verb_call *call, uint32_t slot)
{
	uint32_t session = call->session->holdings.index;
	uint32_t grant = grant_find(&call->broker->store, session, slot);

	if (grant && grant_holds(&call->broker->store, grant) > 0)
		(void)grant_add(&call->broker->store, session, slot, -1);
	failpoint("unshare.ready");
	slot_update_state(&call->broker->store, slot);
}

static int wait_for_users(struct verb_call *call, uint32_t slot,
			  struct error *err)
{
	char *key;

	call->wait_ms = call->request->unshare.timeout_ms;
	if (call->wait_ms == 0 || call->is_timed_out)
		return unshare_explain(&call->broker->store, slot, err);
	key = verb_scratch(call, UNSHARE_KEY_SIZE);
	if (!key)
		return error_nomem(err, "a waiting request");
	unshare_key(slot, key);
	call->wait_name = key;
	return VERB_PARK_NAME;
}

int verb_unshare(struct verb_call *call, struct error *err)
{
	struct broker *broker = call->broker;
	uint32_t slot =
		slot_find(&broker->store, &call->request->unshare.ref, NULL);
	int r;

	if (!slot)
		return VERB_DONE;
	r = check_sharer(call, slot, err);
	if (r < 0)
		return r;
	unshare_begin(&broker->store, slot);
	if (slot_update_state(&broker->store, slot))
		return VERB_DONE;
	if (!unshare_is_ready(&broker->store, slot))
		return wait_for_users(call, slot, err);
	drop_last_hold(call, slot);
	return VERB_DONE;
}
