/*
 * The update of a slot's state, and the freeing of slots.
 *
 * Reclaiming is the broker's half of the protocol in shm/refs.h: first the word
 * becomes LIMBO, with a seq_cst store, and then the counts are read. A client
 * that acquired before that store is counted; a client that acquires after it
 * sees LIMBO and backs out. A device may still be working on a slot that no
 * session holds: for the writer until its ready fence is reached
 * (ready_fence.h), for a reader until the fence that the release recorded.
 */
#include "broker/tensor/slot_state.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/limbo.h"
#include "broker/tensor/name.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "broker/tensor/unshare.h"
#include "proto/failpoint.h"
#include "proto/message.h"
#include <assert.h>

/* --- state ---------------------------------------------------------------- */

enum slot_state slot_state(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);

	if (!record->block)
		return SLOT_FREE;
	if (record->writer || record->channel)
		return SLOT_WRITING;
	if (record->bundle &&
	    catalog_bundle(catalog, record->bundle)->state == BUNDLE_STAGED)
		return SLOT_WRITING;
	return index_shows(store, slot) ? SLOT_PUBLISHED : SLOT_LIMBO;
}

enum slot_use slot_use(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t grant = record->grants.first;
	enum slot_use use = SLOT_UNUSED;

	if (record->ready_fence && ready_fence_is_pending(store, slot))
		use = SLOT_FENCED;
	for (; grant; grant = catalog_grant(catalog, grant)->slot_link.next) {
		if (grant_holds(store, grant) > 0)
			return SLOT_HELD;
		if (grant_is_fenced(store, grant))
			use = SLOT_FENCED;
	}
	return use;
}

bool slot_is_held(const struct store *store, uint32_t slot)
{
	return slot_use(store, slot) == SLOT_HELD;
}

bool slot_unpin(struct store *store, uint32_t slot)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);

	assert(record->n_pins > 0);
	record->n_pins--;
	return slot_update_state(store, slot);
}

/* --- freeing ------------------------------------------------------------- */

/* Frees a block whose last slot was freed. */
static void free_block(struct store *store, uint32_t index)
{
	struct block_record *block = catalog_block(&store->catalog, index);
	const struct device_uuid *device =
		pool_block_device(&store->pools, block);
	uint64_t charge = pool_block_charge(&store->pools, block);
	struct holdings *maker = store->holdings[block->maker];

	accounts_refund(&store->base->accounts, block->uid,
			pool_account(device), charge);
	if (maker) {
		assert(maker->n_bytes >= charge);
		maker->n_bytes -= charge;
	}
	pool_release(&store->pools, index);
}

/* Returns whether the slot has a keeper that the word does not show. */
static bool is_kept(const struct store *store, const struct slot_record *record)
{
	return record->n_tickets || record->group || record->n_pins ||
	       (record->bundle && bundle_keeps(store, record->bundle));
}

static void free_slot(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	const struct list *siblings =
		&catalog_block(catalog, record->block)->slots;
	uint32_t block = record->block;

	assert(!record->writer && !record->tied && !is_kept(store, record));
	unshare_end(store, slot);
	limbo_leave(store, slot);
	ready_fence_end(store, slot);
	grant_drop_slot(store, slot);
	slot_end_name(store, slot); /* a bundle member may still have one */
	if (record->bundle)
		bundle_forget_member(store, slot);
	accounts_refund(&store->base->accounts, record->uid, ACCOUNT_SLOTS, 1);
	slot_free(store, slot);
	failpoint("slot.freed");
	if (!siblings->n)
		free_block(store, block);
	else
		unshare_look(store, siblings->first);
	store->n_freed_slots++;
	wake_room(&store->base->wake);
}

bool slot_update_state(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	enum slot_state state = slot_state(store, slot);
	enum slot_use use;

	if (state == SLOT_FREE)
		return false;
	/* A writer that has released its last hold cannot reach an unpublished
	 * slot again, so it no longer counts as a writer. */
	if (catalog_slot(catalog, slot)->writer && !slot_is_held(store, slot)) {
		slot_end_writer(store, slot);
		state = slot_state(store, slot);
	}
	slot_set_word(store, slot, state);
	if (state != SLOT_LIMBO ||
	    is_kept(store, catalog_slot(catalog, slot))) {
		limbo_leave(store, slot);
		return false;
	}
	failpoint("slot.limbo");
	use = slot_use(store, slot);
	if (use != SLOT_UNUSED) {
		limbo_enter(store, slot);
		if (use == SLOT_FENCED)
			limbo_watch(store, slot);
		else
			unshare_look(store, slot);
		return false;
	}
	if (catalog_journal_room(catalog) < SLOT_UPDATE_ROOM) {
		limbo_enter(store, slot);
		limbo_collect_later(store);
		return false;
	}
	free_slot(store, slot);
	return true;
}
