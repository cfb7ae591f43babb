/*
 * Storage: one block that no session makes, with a slot of bytes.
 */
#include "broker/tensor/storage.h"
#include "broker/tensor/room.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>

static int make_slot(const struct room *room, uint32_t block,
		     uint32_t *ret_slot, struct error *err)
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
	if (!slot) {
		room_refund(room);
		pool_release(&store->pools, block);
		catalog_commit(&store->catalog);
		return error_set(err, -ENOSPC,
				 "the catalog has no room for one more tensor");
	}
	slot_pin(store, slot);
	(void)slot_update_state(store, slot); /* pinned: it stays */
	failpoint("storage.made");
	catalog_commit(&store->catalog);
	*ret_slot = slot;
	return POOL_OK;
}

int storage_make(struct store *store, const struct storage_request *request,
		 uint32_t *ret_slot, struct error *err)
{
	uint64_t size = request->size ? request->size : 1;
	struct room room = {
		.store = store,
		.account = accounts_get(&store->base->accounts, request->uid),
		.charge = pool_block_size(size, &request->device),
		.n_slots = 1,
		.blocks =
			{
				.access = request->access,
				.device = request->device,
				.n = 1,
				.sizes = &size,
				.uid = request->uid,
			},
	};
	uint32_t block = 0;
	int r;

	if (!room.account)
		return error_nomem(err, "an account");
	r = room_take(&room, &block, err);
	if (r != POOL_OK)
		return r;
	return make_slot(&room, block, ret_slot, err);
}
