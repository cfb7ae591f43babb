/*
 * chunk: sends the descriptors of chunks that a client knows only by id,
 * because they did not fit into the reply that named them, or because a chunk
 * that the client had mapped writable was sealed with its bundle.
 */
#include "broker/broker.h"
#include "broker/memory/pool.h"
#include "broker/session/session.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include <errno.h>

_Static_assert(VERB_MAX_FDS == FRAME_MAX_FDS, "every chunk asked for fits");

/* Returns whether the session may map the chunk at all. Before a bundle is
 * committed only its loader may. */
static bool may_map(const struct verb_call *call, uint32_t index)
{
	const struct catalog *catalog = &call->broker->store.catalog;
	const struct chunk_record *chunk = catalog_chunk(catalog, index);

	if (!access_is_allowed(&call->session->holdings.credentials,
			       &chunk->access, ACCESS_READ))
		return false;
	if (!chunk->bundle || chunk->is_sealed)
		return true;
	return catalog_bundle(catalog, chunk->bundle)->loader ==
	       call->session->holdings.index;
}

static int find(const struct verb_call *call, uint32_t chunk,
		uint32_t *ret_index, struct error *err)
{
	uint32_t index = pool_find_chunk(&call->broker->store.pools, chunk);

	if (!index)
		return error_set(err, -ESTALE,
				 "chunk %u was freed with every tensor in it; "
				 "get the tensor again",
				 chunk);
	if (!may_map(call, index))
		return error_set(err, -EACCES,
				 "chunk %u may not be read by uid %u", chunk,
				 session_record(call->session)->uid);
	*ret_index = index;
	return 0;
}

int verb_chunk(struct verb_call *call, struct error *err)
{
	const struct chunk_request *request = &call->request->chunk;
	uint32_t indices[VERB_MAX_FDS];
	int r;

	for (uint32_t i = 0; i < request->n_chunks; i++) {
		r = find(call, request->chunks[i], &indices[i], err);
		if (r < 0)
			return r;
	}
	for (uint32_t i = 0; i < request->n_chunks; i++) {
		/* The client requests the chunk because it has no descriptor of
		 * it, or only a writable one. */
		call->session->sent_chunks[indices[i]] = 0;
		r = verb_attach_chunk(call, indices[i], err);
		if (r < 0)
			return r;
	}
	return VERB_DONE;
}
