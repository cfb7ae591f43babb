/*
 * Handles out of places: first all chunks are mapped, then the handles made.
 */
#include "client/places.h"
#include "client/cache.h"
#include "client/client.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_slot(const struct fsdp_client *client, uint32_t slot)
{
	return slot > 0 && slot < client->n_slots;
}

void places_give_back(struct fsdp_client *client,
		      const struct places_reply *places)
{
	bool must_ring = false;

	for (uint32_t i = 0; i < places->n_places; i++) {
		uint32_t slot = places->places[i].ref.slot;

		if (is_slot(client, slot) &&
		    refs_release(&client->refs, &client->table, slot))
			must_ring = true;
	}
	/* Not client_ring(): the broker has just answered, so it knows us; and
	 * an orphan's answer is handled under the connection's lock. */
	if (must_ring)
		connection_ring(&client->connection);
}

void places_take_chunks(struct fsdp_client *client, struct answer *answer,
			const struct chunk_ref *chunks, uint32_t n_chunks,
			uint16_t first_fd)
{
	for (uint32_t i = 0; i < n_chunks; i++) {
		uint32_t fd = first_fd + i;

		if (fd >= answer->n_fds)
			break;
		(void)mappings_add(&client->mappings, &chunks[i],
				   answer->fds[fd], NULL);
		answer->fds[fd] = -1;
	}
}

int places_fetch_chunks(struct fsdp_client *client, uint32_t *chunks,
			uint32_t n_chunks, struct error *err)
{
	struct request request = {
		.kind = MESSAGE_CHUNK,
		.chunk = {.n_chunks = n_chunks, .chunks = chunks},
	};
	struct answer answer;
	int r;

	r = connection_call(&client->connection, &request, &answer, err);
	if (r < 0)
		return r;
	if (answer.reply.chunks.n_chunks != n_chunks ||
	    answer.n_fds != n_chunks)
		r = error_set(err, -EPROTO,
			      "fsdpd sent %u of %u chunks, and %u descriptors",
			      answer.reply.chunks.n_chunks, n_chunks,
			      answer.n_fds);
	for (uint32_t i = 0; i < n_chunks && r == 0; i++) {
		const struct chunk_ref *chunk = &answer.reply.chunks.chunks[i];

		if (chunk->chunk != chunks[i]) {
			r = error_set(err, -EPROTO, "fsdpd sent a wrong chunk");
			break;
		}
		r = mappings_add(&client->mappings, chunk, answer.fds[i], err);
		answer.fds[i] = -1;
	}
	answer_deinit(&answer);
	return r;
}

static bool has_memory(const struct tensor_place *place)
{
	return tensor_type_numel(&place->type) > 0;
}

/* Address of a place; MAPPING_MISSING if its chunk must be fetched. */
static int locate(struct fsdp_client *client, const struct tensor_place *place,
		  const struct places_use *use, uint8_t **ret,
		  struct error *err)
{
	if (!is_slot(client, place->ref.slot))
		return error_set(err, -EPROTO, "fsdpd sent slot %u of %u",
				 place->ref.slot, client->n_slots);
	if (!has_memory(place)) {
		*ret = NULL;
		return MAPPING_OK;
	}
	return mappings_locate(&client->mappings, place->chunk, place->offset,
			       place->size, use->is_writable, ret, err);
}

/* Put into `ret` what chunks are missing, up to FRAME_MAX_FDS. */
static int find_missing(struct fsdp_client *client,
			const struct places_reply *places,
			const struct places_use *use, uint32_t *ret,
			uint32_t *ret_n, struct error *err)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < places->n_places && n < FRAME_MAX_FDS; i++) {
		const struct tensor_place *place = &places->places[i];
		uint8_t *data;
		uint32_t at = 0;
		int r;

		r = locate(client, place, use, &data, err);
		if (r < 0)
			return r;
		if (r == MAPPING_OK)
			continue;
		while (at < n && ret[at] != place->chunk)
			at++;
		ret[at] = place->chunk;
		if (at == n)
			n++;
	}
	*ret_n = n;
	return 0;
}

static int map_all(struct fsdp_client *client,
		   const struct places_reply *places,
		   const struct places_use *use, struct error *err)
{
	uint32_t missing[FRAME_MAX_FDS], n;
	int r;

	for (;;) {
		r = find_missing(client, places, use, missing, &n, err);
		if (r < 0 || n == 0)
			return r;
		r = places_fetch_chunks(client, missing, n, err);
		if (r < 0)
			return r;
	}
}

static int make_handle(struct fsdp_client *client,
		       const struct tensor_place *place, const char *name,
		       const struct places_use *use, struct fsdp_tensor **ret,
		       struct error *err)
{
	struct cache_key key = cache_key(name, use->options);
	uint8_t index = use->is_named ? cache_shelf(&key)
				      : (uint8_t)(place->ref.slot % SHELVES);
	struct shelf *shelf = &client->shelves[index];
	struct fsdp_tensor *tensor = NULL;
	struct known *known;
	uint8_t *data;
	int r;

	r = locate(client, place, use, &data, err);
	if (r == MAPPING_MISSING)
		r = error_set(err, -EPROTO, "chunk %u went while it was held",
			      place->chunk);
	if (r < 0)
		return r;
	known = known_new(place, name, data);
	if (known) {
		pthread_mutex_lock(&shelf->lock);
		tensor = tensor_new(client, index, known);
		if (tensor && use->is_named)
			cache_put(client, &key, known);
		if (!tensor)
			known_drop(known);
		pthread_mutex_unlock(&shelf->lock);
	}
	if (!tensor)
		return error_set(err, -ENOMEM, "no memory for a handle");
	tensor->bundle = use->bundle;
	/* Relaxed: nobody else has the handle yet. */
	atomic_store_explicit(&tensor->is_writable, use->is_writable,
			      memory_order_relaxed);
	*ret = tensor;
	return 0;
}

static int make_handles(struct fsdp_client *client,
			const struct places_reply *places,
			const struct places_use *use, struct fsdp_tensor **ret,
			struct error *err)
{
	for (uint32_t i = 0; i < places->n_places; i++) {
		const struct tensor_place *place = &places->places[i];
		const char *name = use->names ? use->names[i] : place->name;
		int r = make_handle(client, place, name, use, &ret[i], err);

		if (r == 0)
			continue;
		/* Their grants go back with all the others. */
		while (i-- > 0)
			tensor_free(ret[i]);
		return r;
	}
	return 0;
}

int places_adopt(struct fsdp_client *client, const struct places_reply *places,
		 const struct places_use *use, struct fsdp_tensor **ret,
		 struct error *err)
{
	int r = 0;

	if (places->n_places != use->n)
		r = error_set(err, -EPROTO, "fsdpd sent %u of %zu tensors",
			      places->n_places, use->n);
	if (r == 0)
		r = map_all(client, places, use, err);
	if (r == 0)
		r = make_handles(client, places, use, ret, err);
	if (r < 0)
		places_give_back(client, places);
	return r;
}

int places_adopt_batch(struct fsdp_client *client,
		       const struct places_reply *places,
		       const struct places_use *use, struct fsdp_tensor **ret,
		       struct error *err)
{
	struct fsdp_tensor *made[FSDP_MAX_BATCH];
	int r = places_adopt(client, places, use, made, err);

	if (r < 0)
		return r;
	memcpy(ret, made, use->n * sizeof(*ret));
	return 0;
}

/* Reading, not mapping: it is read once, and no seal has to be believed. */
static int read_all(int fd, uint8_t *bytes, uint64_t size, struct error *err)
{
	uint64_t done = 0;

	while (done < size) {
		ssize_t n = pread(fd, bytes + done, size - done, (off_t)done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return error_set(err, n < 0 ? -errno : -EPROTO,
					 "cannot read a bundle's manifest");
		done += (uint64_t)n;
	}
	return 0;
}

int places_read_manifest(const struct bundle_get_reply *reply, int fd,
			 struct places_reply *ret, void **ret_mem,
			 struct error *err)
{
	uint8_t *bytes;
	int r;

	/* It was made by the broker in this size: no limit to check but that
	 * there is something. */
	bytes = reply->manifest_size ? malloc(reply->manifest_size) : NULL;
	if (!bytes)
		return error_set(err, -ENOMEM,
				 "no memory for a bundle's manifest");
	r = read_all(fd, bytes, reply->manifest_size, err);
	if (r == 0)
		r = places_decode(bytes, reply->manifest_size, ret, ret_mem,
				  err);
	free(bytes);
	return r;
}
