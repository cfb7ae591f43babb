#include "broker/tensor/slot_adopt.h"
#include "broker/tensor/evictable.h"
#include "broker/tensor/expiry.h"
#include "broker/tensor/index.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/message.h"
#include <errno.h>

static int adopt_charge(struct store *store, uint32_t slot, struct error *err)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	struct block_record *block = catalog_block(catalog, record->block);
	struct account *payer =
		accounts_get(&store->base->accounts, record->uid);
	struct account *owner =
		accounts_get(&store->base->accounts, block->uid);
	const struct device_uuid *device =
		pool_block_device(&store->pools, block);
	uint64_t charge = pool_block_charge(&store->pools, block);

	if (!payer || !owner)
		return error_nomem(err, "accounts");
	account_charge_adopted(payer, ACCOUNT_SLOTS, 1);
	if (block->slots.first != slot)
		return 0;
	account_charge_adopted(owner, pool_account(device), charge);
	if (store->holdings[block->maker])
		store->holdings[block->maker]->n_bytes += charge;
	return 0;
}

static int adopt(struct store *store, uint32_t slot, struct error *err)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);
	enum slot_state state = slot_state(store, slot);

	slot_reset_word(store, slot, state);
	if (state == SLOT_FREE)
		return 0;
	record->heap_position = 0;
	record->is_fenced = 0;
	if (record->deadline_ms &&
	    expiry_set(store, slot, record->deadline_ms, err) < 0)
		return -ENOMEM;
	if (adopt_charge(store, slot, err) < 0)
		return -ENOMEM;
	if (index_shows(store, slot) && !record->bundle &&
	    (record->flags & PUBLISH_EVICTABLE))
		evictable_add(store, slot);
	return 0;
}

/* Clears words beyond the last record ever used, which were set by a request
 * that was undone. */
static void forget_words(struct store *store, uint32_t from)
{
	uint32_t slot;

	for (slot = from; slot < TABLE_SLOTS; slot++) {
		if (slot >= from + MESSAGE_MAX_ITEMS)
			return;
		table_store(&store->table, slot, table_word(0, SLOT_FREE));
	}
}

void slot_forget_pins(struct store *store)
{
	uint32_t n = catalog_n_touched(&store->catalog, SECTION_SLOT);

	for (uint32_t slot = 1; slot <= n; slot++)
		catalog_slot(&store->catalog, slot)->n_pins = 0;
}

int slot_adopt_all(struct store *store, struct error *err)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_SLOT);
	uint32_t slot;
	int r;

	for (slot = 1; slot <= n; slot++) {
		r = adopt(store, slot, err);
		if (r < 0)
			return r;
	}
	forget_words(store, n + 1);
	/* Now all accounts are charged, so slot_update_state() can refund. */
	for (slot = 1; slot <= n; slot++) {
		slot_update_state(store, slot);
		catalog_commit(catalog);
	}
	return 0;
}
