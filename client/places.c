/*
 * Makes handles of places. First all chunks are mapped, then the handles are
 * made.
 */
#include "client/places.h"
#include "client/cache.h"
#include "client/client.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

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
	/* Not connection_ring_anew(): the broker has just replied, so it knows
	 * this session. Also, the reply of an orphan is handled under the
	 * connection's lock. */
	if (must_ring)
		connection_ring(&client->connection);
}

void places_take_chunks(struct fsdp_client *client, struct received *received,
			const struct chunk_ref *chunks, uint32_t n_chunks,
			uint16_t first_fd)
{
	uint32_t at = first_fd;

	for (uint32_t i = 0; i < n_chunks; i++) {
		int fd = -1;

		if (!chunks[i].has_handle) {
			if (at >= received->n_fds)
				break;
			fd = received->fds[at];
			received->fds[at++] = -1;
		}
		(void)mappings_add(&client->mappings, &chunks[i], fd, NULL);
	}
}

/* Check that the reply contains the requested chunks, each with its descriptor
 * or its handle. */
static int check_chunks(const struct received *received, const uint32_t *chunks,
			uint32_t n_chunks, struct error *err)
{
	const struct chunks_reply *reply = &received->reply.chunks;
	uint32_t n_fds = 0;

	for (uint32_t i = 0; i < reply->n_chunks; i++)
		n_fds += !reply->chunks[i].has_handle;
	if (reply->n_chunks != n_chunks || received->n_fds != n_fds)
		return error_set(err, -EPROTO,
				 "fsdpd sent %u of %u chunks, and %u "
				 "descriptors",
				 reply->n_chunks, n_chunks, received->n_fds);
	for (uint32_t i = 0; i < n_chunks; i++)
		if (reply->chunks[i].chunk != chunks[i])
			return error_set(err, -EPROTO,
					 "fsdpd sent a wrong chunk");
	return 0;
}

int places_ask_chunks(struct fsdp_client *client, uint32_t *chunks,
		      uint32_t n_chunks, struct received *ret,
		      struct error *err)
{
	struct request request = {
		.kind = MESSAGE_CHUNK,
		.chunk = {.n_chunks = n_chunks, .chunks = chunks},
	};
	int r = connection_call(&client->connection, &request, -1, ret, err);

	if (r < 0)
		return r;
	r = check_chunks(ret, chunks, n_chunks, err);
	if (r < 0)
		received_deinit(ret);
	return r;
}

int places_fetch_chunks(struct fsdp_client *client, uint32_t *chunks,
			uint32_t n_chunks, struct error *err)
{
	struct received received;
	uint32_t at = 0;
	int r = places_ask_chunks(client, chunks, n_chunks, &received, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n_chunks && r == 0; i++) {
		const struct chunk_ref *chunk =
			&received.reply.chunks.chunks[i];
		int fd = chunk->has_handle ? -1 : received.fds[at];

		if (!chunk->has_handle)
			received.fds[at++] = -1;
		r = mappings_add(&client->mappings, chunk, fd, err);
	}
	received_deinit(&received);
	return r;
}

static bool has_memory(const struct tensor_place *place)
{
	return tensor_type_numel(&place->type) > 0;
}

/*
 * Find the address of a place. Returns MAPPING_MISSING if its chunk must be
 * requested. `range` is the chunk of the previous place, which is often that of
 * this one, too; it stays mapped because the place is granted to us.
 */
static int locate(struct fsdp_client *client, const struct tensor_place *place,
		  const struct places_use *use, struct range *range,
		  struct location *ret, struct error *err)
{
	int r;

	if (!is_slot(client, place->ref.slot))
		return error_set(err, -EPROTO, "fsdpd sent slot %u of %u",
				 place->ref.slot, client->n_slots);
	*ret = (struct location){.data = NULL};
	if (!has_memory(place))
		return MAPPING_OK;
	if (range->chunk != place->chunk) {
		r = mappings_find(&client->mappings, place->chunk,
				  use->is_writable, range, err);
		if (r != MAPPING_OK)
			return r;
	}
	if (place->offset > range->size ||
	    place->size > range->size - place->offset)
		return error_set(err, -EPROTO,
				 "a tensor reaches outside of chunk %u",
				 place->chunk);
	*ret = (struct location){range->address + place->offset, range->device,
				 range->is_legacy};
	return MAPPING_OK;
}

/* Store the missing chunks in `ret`, at most FRAME_MAX_FDS. */
static int find_missing(struct fsdp_client *client,
			const struct places_reply *places,
			const struct places_use *use, uint32_t *ret,
			uint32_t *ret_n, struct error *err)
{
	struct range range = {0};
	uint32_t n = 0;

	for (uint32_t i = 0; i < places->n_places && n < FRAME_MAX_FDS; i++) {
		const struct tensor_place *place = &places->places[i];
		struct location location;
		uint32_t at = 0;
		int r;

		r = locate(client, place, use, &range, &location, err);
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

/*
 * Handles that will be made. They are made stripe by stripe: each lock is taken
 * once for all handles of its stripe, and memory that is not in the CPU's cache
 * is prefetched in parallel.
 */
struct plan {
	struct {
		struct cache_key key;
		struct location location;
		uint8_t stripe;
	} items[MESSAGE_MAX_ITEMS];
	/* indices of `items`, sorted by stripe */
	uint16_t order[MESSAGE_MAX_ITEMS];
	uint32_t n;
};

static int plan_item(struct fsdp_client *client,
		     const struct tensor_place *place, const char *name,
		     const struct places_use *use, struct range *range,
		     struct plan *plan, struct error *err)
{
	uint32_t i = plan->n;
	int r;

	r = locate(client, place, use, range, &plan->items[i].location, err);
	if (r != MAPPING_OK)
		return r;
	plan->items[i].key = (struct cache_key){.name = name};
	plan->items[i].stripe = (uint8_t)(place->ref.slot % STRIPES);
	if (use->is_named) {
		plan->items[i].key = cache_key(name, use->options);
		plan->items[i].stripe = cache_stripe(&plan->items[i].key);
	}
	plan->n++;
	return 0;
}

static void sort_by_stripe(struct plan *plan)
{
	uint32_t n[STRIPES] = {0}, at = 0;

	for (uint32_t i = 0; i < plan->n; i++)
		n[plan->items[i].stripe]++;
	for (uint32_t i = 0; i < STRIPES; i++) {
		at += n[i];
		n[i] = at - n[i];
	}
	for (uint32_t i = 0; i < plan->n; i++)
		plan->order[n[plan->items[i].stripe]++] = (uint16_t)i;
}

/* Make one handle. The lock of the stripe is held. */
static struct fsdp_tensor *make_handle(struct fsdp_client *client,
				       const struct tensor_place *place,
				       const struct places_use *use,
				       const struct plan *plan, uint32_t i)
{
	const struct cache_key *key = &plan->items[i].key;
	uint8_t index = plan->items[i].stripe;
	struct stripe *stripe = &client->stripes[index];
	struct fsdp_tensor *tensor;
	struct desc *desc;

	desc = desc_new(stripe, place, key->name, plan->items[i].location);
	if (!desc)
		return NULL;
	tensor = tensor_new(client, index, desc);
	if (!tensor) {
		desc_drop(stripe, desc);
		return NULL;
	}
	if (use->is_named)
		cache_put(client, key, desc);
	tensor->bundle = use->bundle;
	/* Relaxed: no other thread has the handle yet. */
	atomic_store_explicit(&tensor->is_writable, use->is_writable,
			      memory_order_relaxed);
	return tensor;
}

/* Make the handles of the stripe of order[first]. Returns their number. */
static uint32_t make_on_stripe(struct fsdp_client *client,
			       const struct places_reply *places,
			       const struct places_use *use,
			       const struct plan *plan, uint32_t first,
			       struct fsdp_tensor **ret)
{
	uint8_t index = plan->items[plan->order[first]].stripe;
	struct stripe *stripe = &client->stripes[index];
	uint32_t i, n;

	pthread_mutex_lock(&stripe->lock);
	for (n = first; n < plan->n; n++) {
		i = plan->order[n];
		if (plan->items[i].stripe != index)
			break;
		if (use->is_named)
			cache_expect(stripe, &plan->items[i].key);
	}
	for (uint32_t at = first; at < n; at++) {
		i = plan->order[at];
		ret[i] = make_handle(client, &places->places[i], use, plan, i);
	}
	pthread_mutex_unlock(&stripe->lock);
	return n - first;
}

/* Make all handles, or none on failure. */
static int make_planned(struct fsdp_client *client,
			const struct places_reply *places,
			const struct places_use *use, const struct plan *plan,
			struct fsdp_tensor **ret, struct error *err)
{
	bool is_complete = true;

	for (uint32_t at = 0; at < plan->n;)
		at += make_on_stripe(client, places, use, plan, at, ret);
	for (uint32_t i = 0; i < plan->n; i++)
		is_complete = is_complete && ret[i];
	if (is_complete)
		return 0;
	/* The caller returns the grants of all places. */
	for (uint32_t i = 0; i < plan->n; i++)
		if (ret[i])
			tensor_free(ret[i]);
	return error_nomem(err, "a handle");
}

/* Returns MAPPING_MISSING if a chunk must be requested. */
static int plan_all(struct fsdp_client *client,
		    const struct places_reply *places,
		    const struct places_use *use, struct plan *ret,
		    struct error *err)
{
	struct range range = {0};
	int r;

	/* Only this field is initialised, because the struct is large. */
	ret->n = 0;
	assert(places->n_places <= MESSAGE_MAX_ITEMS);
	for (uint32_t i = 0; i < places->n_places; i++) {
		const struct tensor_place *place = &places->places[i];
		const char *name = use->names ? use->names[i] : place->name;

		r = plan_item(client, place, name, use, &range, ret, err);
		if (r != MAPPING_OK)
			return r;
	}
	sort_by_stripe(ret);
	return MAPPING_OK;
}

static int make_handles(struct fsdp_client *client,
			const struct places_reply *places,
			const struct places_use *use, struct fsdp_tensor **ret,
			struct error *err)
{
	struct plan plan;
	int r = plan_all(client, places, use, &plan, err);

	if (r == MAPPING_MISSING) {
		r = map_all(client, places, use, err);
		if (r == 0)
			r = plan_all(client, places, use, &plan, err);
		if (r == MAPPING_MISSING)
			r = error_set(err, -EPROTO,
				      "fsdpd freed a chunk that was held");
	}
	if (r < 0)
		return r;
	return make_planned(client, places, use, &plan, ret, err);
}

/* Make handles with one hold each. On failure no handle is left, the grants are
 * returned, and the contents of `ret` are undefined. */
static int adopt(struct fsdp_client *client, const struct places_reply *places,
		 const struct places_use *use, struct fsdp_tensor **ret,
		 struct error *err)
{
	int r = 0;

	if (places->n_places != use->n)
		r = error_set(err, -EPROTO, "fsdpd sent %u of %zu tensors",
			      places->n_places, use->n);
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
	int r = adopt(client, places, use, made, err);

	if (r < 0)
		return r;
	memcpy(ret, made, use->n * sizeof(*ret));
	return 0;
}

int places_receive(struct fsdp_client *client, struct received *received,
		   const struct places_use *use, struct fsdp_tensor **ret,
		   struct error *err)
{
	const struct places_reply *places = &received->reply.places;
	int r;

	places_take_chunks(client, received, places->chunks, places->n_chunks,
			   0);
	r = places_adopt_batch(client, places, use, ret, err);
	received_deinit(received);
	return r;
}

/* --- manifests ----------------------------------------------------------- */

/* The number of places that are handled at a time, on the stack. */
#define PIECE 64

/* Check that the manifest has this size, and cannot change while it is read. */
static int check_manifest(int fd, uint64_t size, struct error *err)
{
	int r = memfd_check(fd, size, NULL, err);

	if (r == 0 && !(fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE))
		r = error_set(err, -EPROTO, "it is not sealed");
	return r;
}

int places_open_manifest(struct fsdp_client *client,
			 const struct bundle_get_reply *reply, int fd,
			 struct manifest **ret, struct error *err)
{
	struct manifest *manifest = NULL;
	void *bytes;
	int r;

	r = check_manifest(fd, reply->manifest_size, err);
	if (r < 0)
		return error_wrap(err, r, "cannot read a bundle's manifest");
	/* The file is mapped, because a copy would need new pages. */
	bytes = mmap(NULL, reply->manifest_size, PROT_READ, MAP_SHARED, fd, 0);
	if (bytes == MAP_FAILED)
		return error_errno(err, -errno,
				   "cannot map a bundle's manifest");
	r = manifest_open(bytes, reply->manifest_size, &manifest, err);
	(void)munmap(bytes, reply->manifest_size);
	if (r < 0)
		return r;
	if (manifest_n_places(manifest) == reply->n_members) {
		*ret = manifest;
		return 0;
	}
	r = error_set(err, -EPROTO, "fsdpd sent %u of %u tensors",
		      manifest_n_places(manifest), reply->n_members);
	places_give_back_manifest(client, manifest);
	manifest_close(manifest);
	return r;
}

void places_give_back_manifest(struct fsdp_client *client,
			       struct manifest *manifest)
{
	struct tensor_place places[PIECE];
	int n;

	while ((n = manifest_read(manifest, places, PIECE, NULL)) > 0) {
		struct places_reply reply = {.n_places = (uint32_t)n,
					     .places = places};

		places_give_back(client, &reply);
	}
}

int places_adopt_manifest(struct fsdp_client *client, struct manifest *manifest,
			  const struct places_use *use,
			  struct fsdp_tensor **ret, struct error *err)
{
	struct tensor_place places[PIECE];
	struct places_use part = *use;
	size_t done = 0;
	int r;

	for (;;) {
		struct places_reply reply = {.places = places};

		r = manifest_read(manifest, places, PIECE, err);
		if (r <= 0)
			break;
		reply.n_places = (uint32_t)r;
		part.n = (size_t)r;
		r = adopt(client, &reply, &part, ret + done, err);
		if (r < 0)
			break;
		done += part.n;
	}
	if (r == 0)
		return 0;
	while (done-- > 0)
		fsdp_free(ret[done]);
	places_give_back_manifest(client, manifest);
	return r;
}
