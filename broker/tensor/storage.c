/*
 * Memory that the broker makes itself: blocks, each with one slot of bytes.
 */
#include "broker/tensor/storage.h"
#include "broker/tensor/room.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>

/* Makes a pinned slot. Returns 0 if the catalog has no room. */
static uint32_t make_slot(const struct room *room, uint32_t block)
{
	struct store *store = room->store;
	uint64_t size = room->blocks.sizes[0];
	struct tensor_type type = {
		.dtype = DTYPE_U8,
		.n_dims = 1,
		.shape = {(int64_t)size},
	};
	uint32_t slot;

	tensor_type_contiguous(&type);
	slot = slot_new(store, block, 0, size, &type, "", 0,
			room->account->uid);
	if (!slot)
		return 0;
	slot_pin(store, slot);
	(void)slot_update_state(store, slot); /* a pinned slot is not freed */
	failpoint("storage.made");
	return slot;
}

/* Frees all slots, blocks and charges after a failure; `n_made` blocks have
 * slots. */
static int drop(const struct room *room, const uint32_t *slots, uint32_t n_made,
		const uint32_t *blocks, struct error *err)
{
	struct store *store = room->store;
	struct room rest = *room;

	for (uint32_t i = 0; i < n_made; i++)
		(void)slot_unpin(store, slots[i]);
	rest.n_slots = room->n_slots - n_made;
	rest.charge = room->charge / room->n_slots * rest.n_slots;
	room_refund(&rest);
	for (uint32_t i = n_made; i < room->n_slots; i++)
		pool_release(&store->pools, blocks[i]);
	catalog_commit(&store->catalog);
	return error_set(
		err, -ENOSPC,
		"the catalog has no room for one more tensor; remove some");
}

static int make_slots(const struct room *room, const uint32_t *blocks,
		      uint32_t *ret_slots, struct error *err)
{
	for (uint32_t i = 0; i < room->n_slots; i++) {
		ret_slots[i] = make_slot(room, blocks[i]);
		if (!ret_slots[i])
			return drop(room, ret_slots, i, blocks, err);
	}
	catalog_commit(&room->store->catalog);
	return POOL_OK;
}

int storage_make_all(struct store *store, const struct storage_request *request,
		     uint32_t n, uint32_t *ret_slots, struct error *err)
{
	uint64_t sizes[MESSAGE_MAX_ITEMS];
	uint32_t blocks[MESSAGE_MAX_ITEMS];
	struct room room = {
		.store = store,
		.account = accounts_get(&store->base->accounts, request->uid),
		.n_slots = n,
		.blocks =
			{
				.access = request->access,
				.device = request->device,
				.n = n,
				.sizes = sizes,
				.uid = request->uid,
			},
	};
	int r;

	assert(n <= MESSAGE_MAX_ITEMS);
	if (!room.account)
		return error_nomem(err, "an account");
	for (uint32_t i = 0; i < n; i++) {
		sizes[i] = request->size ? request->size : 1;
		room.charge += pool_block_size(sizes[i], &request->device);
	}
	r = room_take(&room, blocks, err);
	return r == POOL_OK ? make_slots(&room, blocks, ret_slots, err) : r;
}

int storage_make(struct store *store, const struct storage_request *request,
		 uint32_t *ret_slot, struct error *err)
{
	return storage_make_all(store, request, 1, ret_slot, err);
}
