/*
 * The slots of ranks are made one after another. If memory runs out in between,
 * the next call continues there.
 */
#include "broker/comm/rank_memory.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/storage.h"
#include "broker/tensor/store.h"
#include "shm/chunk.h"

uint32_t rank_memory_count(const struct comm *comm)
{
	return comm->is_on_devices ? comm->n_ranks : 1;
}

uint32_t rank_memory_slot(const struct comm *comm,
			  const struct rank_memory *memory, uint32_t rank)
{
	return memory->slots[comm->is_on_devices ? rank : 0];
}

bool rank_memory_is_whole(const struct comm *comm,
			  const struct rank_memory *memory)
{
	uint32_t i = 0;

	while (i < rank_memory_count(comm) && memory->slots[i])
		i++;
	return i == rank_memory_count(comm);
}

static int make_at(struct comm *comm, const struct device_uuid *device,
		   uint64_t size, uint32_t *ret_slot, struct error *err)
{
	const struct comm_record *record =
		catalog_comm(&comm->comms->store->catalog, comm->record);
	struct storage_request request = {
		.access = record->access,
		.uid = record->uid,
		.size = size,
		.device = *device,
	};

	return storage_make(comm->comms->store, &request, ret_slot, err);
}

int rank_memory_make_one(struct comm *comm, uint32_t rank, uint64_t size,
			 uint32_t *ret_slot, struct error *err)
{
	return make_at(comm, &comm->ranks[rank].device, size, ret_slot, err);
}

/* Make enough memory that `size` bytes in whole pages fit at any offset. */
static int make_pages(struct comm *comm, uint64_t size, uint32_t *ret_slot,
		      struct error *err)
{
	const struct device_uuid host = {0};

	return make_at(comm, &host, chunk_page_up(size) + chunk_page_up(1),
		       ret_slot, err);
}

int rank_memory_make(struct comm *comm, uint64_t size,
		     struct rank_memory *memory, struct error *err)
{
	int r = POOL_OK;

	for (uint32_t i = 0; i < rank_memory_count(comm) && r == POOL_OK; i++) {
		uint32_t *slot = &memory->slots[i];

		if (*slot)
			continue;
		r = memory->is_offloaded
			    ? make_pages(comm, size, slot, err)
			    : rank_memory_make_one(comm, i, size, slot, err);
	}
	return r;
}

void rank_memory_pin(struct comm *comm, const struct rank_memory *memory)
{
	for (uint32_t i = 0; i < rank_memory_count(comm); i++)
		slot_pin(comm->comms->store, memory->slots[i]);
}

void rank_memory_unpin(struct comm *comm, struct rank_memory *memory)
{
	for (uint32_t i = 0; i < rank_memory_count(comm); i++) {
		if (memory->slots[i])
			(void)slot_unpin(comm->comms->store, memory->slots[i]);
		memory->slots[i] = 0;
	}
}
