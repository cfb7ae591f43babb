#include "broker/comm/gather_buffers.h"
#include "broker/comm/comm.h"
#include "broker/comm/full_memory.h"
#include "broker/comm/group.h"
#include "broker/comm/rank_memory.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/settle.h"
#include "broker/tensor/storage.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "shm/gathers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static int check_size(const struct group *group, uint32_t slot,
		      struct error *err)
{
	const struct catalog *catalog = &group->comm->comms->store->catalog;

	if (catalog_slot(catalog, slot)->size >= full_memory_size(group))
		return POOL_OK;
	return error_set(err, -EINVAL,
			 "the buffer is smaller than the parameters of '%s'",
			 group->name);
}

static void drop(struct comm *comm, struct gather_buffer *buffer)
{
	if (buffer->slot)
		(void)slot_unpin(comm->comms->store, buffer->slot);
	buffer->slot = 0;
}

/* Those that the ranks have given up on the board: it says no more here than
 * that they will ask for another version. */
static void drop_retired(struct comm *comm)
{
	for (uint32_t i = 0; comm->board.page && i < comm->n_gather_buffers;
	     i++) {
		struct gather_buffer *buffer = &comm->gather_buffers[i];

		if (buffer->slot &&
		    gathers_version(&comm->board, i) != buffer->version)
			drop(comm, buffer);
	}
}

static int make(const struct group *group, struct gather_buffer *buffer,
		struct error *err)
{
	struct comm *comm = group->comm;

	drop_retired(comm);
	/* What ranks have just let go of is room. */
	collect_released(comm->comms->store);
	return rank_memory_make_one(comm, 0, full_memory_size(group),
				    &buffer->slot, err);
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
	r = buffer->slot ? check_size(group, buffer->slot, err)
			 : make(group, buffer, err);
	if (r == POOL_OK)
		*ret_slot = buffer->slot;
	return r;
}

void gather_buffers_free(struct comm *comm)
{
	for (uint32_t i = 0; i < comm->n_gather_buffers; i++)
		drop(comm, &comm->gather_buffers[i]);
	free(comm->gather_buffers);
	comm->gather_buffers = NULL;
	comm->n_gather_buffers = 0;
}
