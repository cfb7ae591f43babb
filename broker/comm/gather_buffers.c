#include "broker/comm/gather_buffers.h"
#include "broker/comm/comm.h"
#include "broker/comm/full_memory.h"
#include "broker/comm/group.h"
#include "broker/comm/rank_memory.h"
#include "broker/comm/run_record.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/storage.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "shm/gathers.h"
#include <errno.h>

#define RECALL_EVERY_MS 1000

/* Check that the memory of the buffer exists and is large enough. Its contents
 * are lost when the last rank has released it. */
static int check_memory(const struct group *group,
			const struct run_buffer *buffer, struct error *err)
{
	struct store *store = group->comm->comms->store;
	struct slot_ref ref = {buffer->slot, buffer->generation};
	uint32_t slot = slot_find(store, &ref, err);

	if (!slot)
		return error_wrap(err, -ESTALE,
				  "cannot gather into the buffer");
	if (catalog_slot(&store->catalog, slot)->size >=
	    full_memory_size(group))
		return POOL_OK;
	return error_set(err, -EINVAL,
			 "the buffer is smaller than the parameters of '%s'",
			 group->name);
}

static void unpin(struct comm *comm, struct run_buffer *buffer)
{
	if (!buffer->is_pinned)
		return;
	catalog_set(&comm->comms->store->catalog, buffer->is_pinned, false);
	(void)slot_unpin(comm->comms->store, buffer->slot);
}

static void drop(struct comm *comm, struct run_buffer *buffer)
{
	unpin(comm, buffer);
	if (buffer->slot)
		catalog_set(&comm->comms->store->catalog, buffer->slot, 0);
}

/* Drop the buffers that the ranks have given up. The board then shows another
 * version, which a rank will request. */
static void drop_retired(struct comm *comm)
{
	for (uint32_t i = 0; comm->board.page && i < GATHERS_BUFFERS; i++) {
		struct run_buffer *buffer = &run_record_of(comm)->buffers[i];

		if (buffer->slot &&
		    gathers_version(&comm->board, i) != buffer->version)
			drop(comm, buffer);
	}
}

static int make(const struct group *group, struct run_buffer *buffer,
		struct error *err)
{
	struct comm *comm = group->comm;
	struct store *store = comm->comms->store;
	uint32_t slot;
	int r;

	drop_retired(comm);
	/* Memory that ranks have just released may be used for the buffer. */
	collect_released(store);
	r = rank_memory_make_one(comm, 0, full_memory_size(group), &slot, err);
	if (r != POOL_OK)
		return r;
	catalog_save(&store->catalog, buffer, sizeof(*buffer));
	buffer->slot = slot;
	buffer->generation = catalog_slot(&store->catalog, slot)->generation;
	buffer->is_pinned = true;
	return POOL_OK;
}

int gather_buffer_make(struct group *group, uint32_t i, uint32_t version,
		       uint32_t *ret_slot, struct error *err)
{
	struct comm *comm = group->comm;
	struct run_buffer *buffer;
	int r;

	if (i >= GATHERS_BUFFERS || !full_memory_size(group))
		return error_set(err, -EINVAL,
				 "group '%s' has no buffer %u to gather into",
				 group->name, i);
	buffer = &run_record_of(comm)->buffers[i];
	if ((int32_t)(version - buffer->version) < 0)
		return error_set(err, -ESTALE,
				 "buffer %u has version %u, not %u", i,
				 buffer->version, version);
	if (version != buffer->version)
		drop(comm, buffer);
	catalog_set(&comm->comms->store->catalog, buffer->version, version);
	r = buffer->slot ? check_memory(group, buffer, err)
			 : make(group, buffer, err);
	if (r == POOL_OK)
		*ret_slot = buffer->slot;
	return r;
}

static void recall(struct comm *comm)
{
	comm->recalled_ms = now_ms();
	for (uint32_t i = 0; comm->run && i < GATHERS_BUFFERS; i++)
		unpin(comm, &run_record_of(comm)->buffers[i]);
	catalog_commit(&comm->comms->store->catalog);
	if (comm->board.page)
		board_recall(&comm->board);
}

static void on_recall(void *data, uint32_t index)
{
	(void)index;
	recall(data);
}

static void recall_soon(struct comm *comm)
{
	struct deadline deadline = {
		.at_ms = comm->recalled_ms + RECALL_EVERY_MS,
		.fn = on_recall,
		.data = comm,
		.position = &comm->recall_position,
	};

	if (now_ms() >= deadline.at_ms)
		recall(comm);
	else if (!comm->recall_position)
		/* If there is no memory for the deadline, the next waiting
		 * request tries it again. */
		(void)deadlines_add(&comm->comms->store->base->deadlines,
				    &deadline, NULL);
}

void gather_buffers_recall(struct comms *comms, const uint32_t *uid)
{
	for (struct comm *comm = comms->first; comm; comm = comm->next) {
		if (!uid || comm->uid == *uid)
			recall_soon(comm);
	}
}

void gather_buffers_free(struct comm *comm)
{
	for (uint32_t i = 0; comm->run && i < GATHERS_BUFFERS; i++)
		drop(comm, &run_record_of(comm)->buffers[i]);
	deadlines_remove(&comm->comms->store->base->deadlines,
			 &comm->recall_position);
}
