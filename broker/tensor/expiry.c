#include "broker/tensor/expiry.h"
#include "broker/tensor/name.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"

static void on_deadline(void *data, uint32_t slot)
{
	struct store *store = data;

	slot_drop_name(store, slot, EVENT_EXPIRED);
	slot_update_state(store, slot);
	catalog_commit(&store->catalog);
}

int expiry_set(struct store *store, uint32_t slot, uint64_t at_ms,
	       struct error *err)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);
	struct deadline deadline = {
		.at_ms = at_ms,
		.fn = on_deadline,
		.data = store,
		.index = slot,
		.position = &record->heap_position,
	};

	return deadlines_add(&store->base->deadlines, &deadline, err);
}
