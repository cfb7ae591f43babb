#include "broker/tensor/place.h"
#include "broker/tensor/ready_fence.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"

void slot_place(const struct store *store, uint32_t slot, char *name_buffer,
		struct tensor_place *ret)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	const struct block_record *block =
		catalog_block(catalog, record->block);

	*ret = (struct tensor_place){
		.ref = {slot, record->generation},
		.chunk = catalog_chunk(catalog, block->chunk)->id,
		.offset = block->offset + record->offset,
		.size = record->size,
		.version = slot_version(store, slot),
		.name = name_buffer ? name_buffer : "",
		.is_tainted = record->flags & SLOT_FLAG_TAINTED,
	};
	if (record->ready_fence)
		ready_fence_describe(store, slot, &ret->fence);
	slot_describe(store, slot, &ret->type, name_buffer);
}
