#include "broker/comm/gather_buffers.h"
#include "broker/comm/comm.h"
#include "broker/comm/full_memory.h"
#include "broker/comm/group.h"
#include "broker/comm/rank_memory.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/storage.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "shm/gathers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RECALL_EVERY_MS 1000

/* Have an entry for it. */
static int reserve(struct comm *comm, uint32_t buffer, struct error *err)
{
	struct gather_buffer *buffers;

	if (buffer < comm->n_gather_buffers)
		return 0;
	buffers =
		realloc(comm->gather_buffers, (buffer + 1) * sizeof(*buffers));
	if (!buffers)
		return error_nomem(err, "a buffer of communicator '%s'",
				   comm->name);
	memset(buffers + comm->n_gather_buffers, 0,
	       (buffer + 1 - comm->n_gather_buffers) * sizeof(*buffers));
	comm->gather_buffers = buffers;
	comm->n_gather_buffers = buffer + 1;
	return 0;
}

/* What was gathered is lost with the last rank that has it. */
static int check_memory(const struct group *group,
			const struct gather_buffer *buffer, struct error *err)
{
	struct store *store = group->comm->comms->store;
	uint32_t slot = slot_find(store, &buffer->ref, err);

	if (!slot)
		return error_wrap(err, -ESTALE,
				  "cannot gather into that memory");
	if (catalog_slot(&store->catalog, slot)->size >=
	    full_memory_size(group))
		return POOL_OK;
	return error_set(err, -EINVAL,
			 "the buffer is smaller than the parameters of '%s'",
			 group->name);
}

static void unpin(struct comm *comm, struct gather_buffer *buffer)
{
	if (buffer->is_pinned)
		(void)slot_unpin(comm->comms->store, buffer->ref.slot);
	buffer->is_pinned = false;
}

static void drop(struct comm *comm, struct gather_buffer *buffer)
{
	unpin(comm, buffer);
	buffer->ref.slot = 0;
}

/* Those that the ranks have given up on the board: it says no more here than
 * that they will ask for another version. */
static void drop_retired(struct comm *comm)
{
	for (uint32_t i = 0; comm->board.page && i < comm->n_gather_buffers;
	     i++) {
		struct gather_buffer *buffer = &comm->gather_buffers[i];

		if (buffer->ref.slot &&
		    gathers_version(&comm->board, i) != buffer->version)
			drop(comm, buffer);
	}
}

static int make(const struct group *group, struct gather_buffer *buffer,
		struct error *err)
{
	struct comm *comm = group->comm;
	struct store *store = comm->comms->store;
	uint32_t slot;
	int r;

	drop_retired(comm);
	/* What ranks have just let go of is room. */
	collect_released(store);
	r = rank_memory_make_one(comm, 0, full_memory_size(group), &slot, err);
	if (r != POOL_OK)
		return r;
	buffer->ref = (struct slot_ref){
		slot, catalog_slot(&store->catalog, slot)->generation};
	buffer->is_pinned = true;
	return POOL_OK;
}

int gather_buffer_make(struct group *group, uint32_t i, uint32_t version,
		       uint32_t *ret_slot, struct error *err)
{
	struct comm *comm = group->comm;
	struct gather_buffer *buffer;
	int r;

	if (i >= GATHERS_BUFFERS || !full_memory_size(group))
		return error_set(err, -EINVAL,
				 "group '%s' has no buffer %u to gather into",
				 group->name, i);
	r = reserve(comm, i, err);
	if (r < 0)
		return r;
	buffer = &comm->gather_buffers[i];
	if ((int32_t)(version - buffer->version) < 0)
		return error_set(err, -ESTALE,
				 "buffer %u has version %u, not %u", i,
				 buffer->version, version);
	if (version != buffer->version)
		drop(comm, buffer);
	buffer->version = version;
	r = buffer->ref.slot ? check_memory(group, buffer, err)
			     : make(group, buffer, err);
	if (r == POOL_OK)
		*ret_slot = buffer->ref.slot;
	return r;
}

static void recall(struct comm *comm)
{
	comm->recalled_ms = now_ms();
	for (uint32_t i = 0; i < comm->n_gather_buffers; i++)
		unpin(comm, &comm->gather_buffers[i]);
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
		/* If there is no memory for it, the next waiter asks. */
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
	for (uint32_t i = 0; i < comm->n_gather_buffers; i++)
		drop(comm, &comm->gather_buffers[i]);
	deadlines_remove(&comm->comms->store->base->deadlines,
			 &comm->recall_position);
	free(comm->gather_buffers);
	comm->gather_buffers = NULL;
	comm->n_gather_buffers = 0;
}
