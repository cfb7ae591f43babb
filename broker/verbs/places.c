#include "broker/verbs/places.h"
#include "broker/broker.h"
#include "broker/memory/pool.h"
#include "broker/session/session.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/place.h"
#include "broker/tensor/shared_chunk.h"
#include "broker/verbs/scratch.h"
#include <assert.h>

static bool may_write_chunk(const struct verb_call *call, uint32_t index)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	const struct chunk_record *chunk = catalog_chunk(catalog, index);

	/* Shared memory has no arena, and only its sharer writes to it. */
	if (chunk->shared)
		return chunk->sharer == call->session->holdings.index;
	if (!access_is_allowed(&call->session->holdings.credentials,
			       &chunk->access, ACCESS_WRITE))
		return false;
	if (!chunk->bundle)
		return true;
	return !chunk->is_sealed &&
	       catalog_bundle(catalog, chunk->bundle)->loader ==
		       call->session->holdings.index;
}

/* Fill in the reference. `*ret_fd` is its fd, or -1 if it has a handle. */
static int fill_memory(struct verb_call *call, uint32_t index,
		       struct chunk_ref *ref, int *ret_fd, struct error *err)
{
	const struct chunk_record *chunk =
		catalog_chunk(&call->broker->store.catalog, index);

	*ret_fd = -1;
	if (chunk->shared != SHARE_LEGACY)
		return pool_chunk_fd(&call->broker->store.pools, index,
				     ref->is_writable, ret_fd, err);
	ref->has_handle = true;
	return shared_chunk_handle(&call->broker->store.pools, index,
				   ref->handle, err);
}

int verb_attach_chunk(struct verb_call *call, uint32_t chunk_index,
		      struct error *err)
{
	const struct chunk_record *chunk =
		catalog_chunk(&call->broker->store.catalog, chunk_index);
	uint32_t *sent = &call->session->sent_chunks[chunk_index];
	struct chunk_ref ref = {
		.chunk = chunk->id,
		.index = chunk_index,
		.size = chunk->size,
		.is_writable = may_write_chunk(call, chunk_index),
		.device = chunk->device,
	};
	struct chunk_ref **chunks;
	uint32_t *n;
	int fd, r;

	if (*sent == chunk->id || call->n_fds >= VERB_MAX_FDS)
		return 0;
	if (!reply_chunks(call->reply, &chunks, &n) || *n >= VERB_MAX_FDS)
		return 0;
	r = fill_memory(call, chunk_index, &ref, &fd, err);
	if (r < 0)
		return r;
	*chunks = call->scratch->chunks;
	(*chunks)[(*n)++] = ref;
	if (fd >= 0)
		call->fds[call->n_fds++] = fd;
	*sent = chunk->id;
	if (!device_uuid_is_host(&chunk->device))
		call->session->has_device_memory = true;
	return 0;
}

void verb_detach_chunks(struct verb_call *call)
{
	struct chunk_ref **chunks;
	uint32_t *n;

	if (!reply_chunks(call->reply, &chunks, &n))
		return;
	for (uint32_t i = 0; i < *n; i++) {
		call->session->sent_chunks[(*chunks)[i].index] = 0;
		if ((*chunks)[i].has_handle)
			continue;
		assert(call->n_fds > 0);
		call->n_fds--;
	}
	*n = 0;
}

static void fill_place(struct verb_call *call, uint32_t slot,
		       struct tensor_place *ret)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	uint32_t block = catalog_slot(catalog, slot)->block;

	slot_place(&call->broker->store, slot, NULL, ret);
	/* The client requests chunks that cannot be sent now. */
	(void)verb_attach_chunk(call, catalog_block(catalog, block)->chunk,
				NULL);
}

void verb_grant_places(struct verb_call *call, const uint32_t *slots,
		       uint32_t n, struct tensor_place *ret_places)
{
	struct broker *broker = call->broker;
	bool is_granted;

	for (uint32_t i = 0; i < n; i++) {
		is_granted =
			grant_add(&broker->store, call->session->holdings.index,
				  slots[i], 1);
		assert(is_granted); /* the caller has checked it */
		fill_place(call, slots[i], &ret_places[i]);
	}
}

void verb_reply_places(struct verb_call *call, const uint32_t *slots,
		       uint32_t n)
{
	struct tensor_place *places = call->scratch->places;

	assert(n <= MESSAGE_MAX_ITEMS);
	verb_grant_places(call, slots, n, places);
	call->reply->places.places = places;
	call->reply->places.n_places = n;
}
