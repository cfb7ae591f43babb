/*
 * Handles and descriptors of a stripe. Both are cut from slabs, which are not
 * freed before the connection is closed. So closing can free what the caller
 * did not free, and a process that has just connected touches few pages.
 */
#include "client/tensor.h"
#include "client/client.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LINE         64
#define SLAB_HANDLES 63
#define SLAB_LINES   63

struct slab {
	_Alignas(LINE) struct slab *next;
	size_t n_used; /* number of handles that were ever used */
	struct fsdp_tensor handles[SLAB_HANDLES];
};

struct free_desc {
	struct free_desc *next;
};

struct desc_slab {
	_Alignas(LINE) struct desc_slab *next;
	size_t n_used; /* number of lines that were cut */
	_Alignas(LINE) uint8_t lines[SLAB_LINES][LINE];
};

_Static_assert(sizeof(struct fsdp_tensor) == LINE,
	       "a handle is one cache line: the hot calls touch no other");
_Static_assert(TENSOR_MAX_DIMS < 16 && DTYPE_MAX < 256, "fields of known");

void stripe_init(struct stripe *stripe)
{
	*stripe = (struct stripe){.slabs = NULL};
	pthread_mutex_init(&stripe->lock, NULL);
}

void stripe_deinit(struct stripe *stripe)
{
	while (stripe->slabs) {
		struct slab *slab = stripe->slabs;

		for (size_t i = 0; i < slab->n_used; i++)
			if (slab->handles[i].is_live)
				desc_drop(stripe,
					  tensor_desc(&slab->handles[i]));
		stripe->slabs = slab->next;
		free(slab);
	}
	stripe->first_free = NULL;
	while (stripe->desc_slabs) {
		struct desc_slab *slab = stripe->desc_slabs;

		stripe->desc_slabs = slab->next;
		free(slab);
	}
	memset(stripe->free_descs, 0, sizeof(stripe->free_descs));
}

/* --- descriptors --------------------------------------------------------- */

/* The size of the dims at the end of struct desc_rest, in bytes. */
static size_t dims_size(size_t n_dims, bool is_contiguous)
{
	return n_dims * (is_contiguous ? 1 : 2) * sizeof(int64_t);
}

/* The size of a descriptor in cache lines. Its fields must be set. */
static size_t desc_lines(const struct desc *desc)
{
	size_t size = offsetof(struct desc, name) + desc->name_size + 1;

	size = (size + 7) & ~(size_t)7;
	size += sizeof(struct desc_rest) +
		dims_size(desc->n_dims, desc->is_contiguous);
	if (desc->is_on_device)
		size += sizeof(struct desc_device);
	return (size + LINE - 1) / LINE;
}

/* Cut lines from the newest slab. If they do not fit, the rest of this slab
 * stays unused. */
static void *cut(struct stripe *stripe, size_t n_lines)
{
	struct desc_slab *slab = stripe->desc_slabs;
	void *lines;

	if (!slab || SLAB_LINES - slab->n_used < n_lines) {
		slab = aligned_alloc(LINE, sizeof(*slab));
		if (!slab)
			return NULL;
		slab->n_used = 0;
		slab->next = stripe->desc_slabs;
		stripe->desc_slabs = slab;
	}
	lines = slab->lines[slab->n_used];
	slab->n_used += n_lines;
	return lines;
}

/* Long names and shapes are rare; their descriptors come from the heap. */
static struct desc *desc_alloc(struct stripe *stripe, size_t n_lines)
{
	struct free_desc *first;

	if (n_lines > DESC_CLASSES)
		return aligned_alloc(LINE, n_lines * LINE);
	first = stripe->free_descs[n_lines - 1];
	if (!first)
		return cut(stripe, n_lines);
	stripe->free_descs[n_lines - 1] = first->next;
	return (void *)first;
}

static void desc_free(struct stripe *stripe, struct desc *desc)
{
	size_t n_lines = desc_lines(desc);
	struct free_desc *freed = (void *)desc;

	if (n_lines > DESC_CLASSES) {
		free(desc);
		return;
	}
	freed->next = stripe->free_descs[n_lines - 1];
	stripe->free_descs[n_lines - 1] = freed;
}

static void fill_rest(struct desc *desc, const struct tensor_place *place)
{
	struct desc_rest *rest = desc_rest(desc);
	size_t size = dims_size(desc->n_dims, true);

	*rest = (struct desc_rest){
		.size = place->size,
		.version = place->version,
		.chunk = desc->data ? place->chunk : 0,
	};
	memcpy(rest->dims, place->type.shape, size);
	if (!desc->is_contiguous)
		memcpy(rest->dims + desc->n_dims, place->type.strides, size);
}

void desc_set_fence(struct desc *desc, const struct fence *fence)
{
	struct desc_device *it = desc_device(desc);

	if (!it)
		return;
	it->fence = *fence;
	/* Relaxed: no other thread has the descriptor yet. */
	atomic_store_explicit(&it->written,
			      fence->session ? WRITTEN_PENDING : WRITTEN_YES,
			      memory_order_relaxed);
}

static void fill_device(struct desc *desc, const struct tensor_place *place,
			struct location location)
{
	struct desc_device *it = desc_device(desc);

	if (!it)
		return;
	it->device = location.device;
	it->is_legacy = location.is_legacy;
	desc_set_fence(desc, &place->fence);
	if (place->is_tainted)
		atomic_store_explicit(&it->written, WRITTEN_NEVER,
				      memory_order_relaxed);
}

struct desc *desc_new(struct stripe *stripe, const struct tensor_place *place,
		      const char *name, struct location location)
{
	struct desc sketch = {
		.generation = place->ref.generation,
		.slot = place->ref.slot,
		.data = location.data,
		.n_users = 1,
		.name_size = (uint32_t)strlen(name),
		.dtype = (uint8_t)place->type.dtype,
		.n_dims = place->type.n_dims & 15,
		.is_contiguous = tensor_type_is_contiguous(&place->type),
		.is_on_device = location.device != NULL,
	};
	struct desc *desc = desc_alloc(stripe, desc_lines(&sketch));

	if (!desc)
		return NULL;
	*desc = sketch;
	memcpy(desc->name, name, desc->name_size + 1u);
	fill_rest(desc, place);
	fill_device(desc, place, location);
	return desc;
}

void desc_drop(struct stripe *stripe, struct desc *desc)
{
	while (desc && --desc->n_users == 0) {
		struct desc *older = desc_rest(desc)->older;

		desc_free(stripe, desc);
		desc = older;
	}
}

void desc_type(const struct desc *desc, struct tensor_type *ret)
{
	const int64_t *dims = desc_rest(desc)->dims;
	size_t size = dims_size(desc->n_dims, true);

	*ret = (struct tensor_type){
		.dtype = desc->dtype,
		.n_dims = desc->n_dims,
	};
	memcpy(ret->shape, dims, size);
	if (desc->is_contiguous)
		tensor_type_contiguous(ret);
	else
		memcpy(ret->strides, dims + desc->n_dims, size);
}

/* --- handles ------------------------------------------------------------- */

static struct fsdp_tensor *handle_alloc(struct stripe *stripe)
{
	struct fsdp_tensor *tensor = stripe->first_free;
	struct slab *slab = stripe->slabs;

	if (tensor) {
		stripe->first_free = tensor->next_free;
		/* The next handle_alloc() first reads the link in that
		 * handle. */
		__builtin_prefetch(stripe->first_free, 1);
		return tensor;
	}
	if (!slab || slab->n_used == SLAB_HANDLES) {
		slab = aligned_alloc(LINE, sizeof(*slab));
		if (!slab)
			return NULL;
		slab->n_used = 0;
		slab->next = stripe->slabs;
		stripe->slabs = slab;
	}
	return &slab->handles[slab->n_used++];
}

struct fsdp_tensor *tensor_new(struct fsdp_client *client, uint8_t stripe_index,
			       struct desc *desc)
{
	struct stripe *stripe = &client->stripes[stripe_index];
	struct fsdp_tensor *tensor = handle_alloc(stripe);

	if (!tensor)
		return NULL;
	tensor->client = client;
	tensor->generation = desc->generation;
	tensor->slot = desc->slot;
	tensor->data = desc->data;
	tensor->bundle = 0;
	tensor->stripe = stripe_index;
	tensor->is_live = true;
	/* Relaxed: no other thread has the handle yet. */
	atomic_store_explicit(&tensor->is_writable, false,
			      memory_order_relaxed);
	atomic_store_explicit(&tensor->is_in_doubt, false,
			      memory_order_relaxed);
	atomic_store_explicit(&tensor->holds, 1, memory_order_relaxed);
	atomic_store_explicit(&tensor->desc, desc, memory_order_relaxed);
	return tensor;
}

void tensor_free(struct fsdp_tensor *tensor)
{
	struct stripe *stripe = &tensor->client->stripes[tensor->stripe];

	pthread_mutex_lock(&stripe->lock);
	/* A handle that is freed a second time must not be in the list twice,
	 * since two tensors would get it. */
	if (tensor->is_live) {
		desc_drop(stripe, tensor_desc(tensor));
		tensor->is_live = false;
		/* no slot has it, so fsdp_acquire() fails */
		tensor->generation = 0;
		tensor->next_free = stripe->first_free;
		stripe->first_free = tensor;
	}
	pthread_mutex_unlock(&stripe->lock);
}

bool tensor_give_back_unrung(struct fsdp_client *client, uint32_t slot,
			     uint32_t n)
{
	/* Only the last hold needs a look at the state, since it is dropped
	 * after the others. seq_cst like every write of delta (shm/refs.h). */
	if (n > 1)
		atomic_fetch_sub_explicit(&client->refs.entries[slot].delta,
					  (int32_t)(n - 1),
					  memory_order_seq_cst);
	return refs_release(&client->refs, &client->table, slot);
}

void tensor_give_back(struct fsdp_client *client, uint32_t slot, uint32_t n)
{
	if (tensor_give_back_unrung(client, slot, n))
		connection_ring_anew(&client->connection);
}

bool tensor_take_hold(struct fsdp_tensor *tensor)
{
	/* Relaxed: the count orders no other access; delta does, and it is
	 * lowered later, seq_cst. It is a compare and swap, so that the count
	 * never falls below 0. */
	uint32_t n = atomic_load_explicit(&tensor->holds, memory_order_relaxed);

	while (n)
		if (atomic_compare_exchange_weak_explicit(
			    &tensor->holds, &n, n - 1, memory_order_relaxed,
			    memory_order_relaxed))
			return true;
	return false;
}

static struct fsdp_tensor *find_on(const struct stripe *stripe,
				   tensor_is_fn *fn, void *data)
{
	for (struct slab *slab = stripe->slabs; slab; slab = slab->next)
		for (size_t i = 0; i < slab->n_used; i++)
			if (slab->handles[i].is_live &&
			    fn(&slab->handles[i], data))
				return &slab->handles[i];
	return NULL;
}

struct fsdp_tensor *tensor_find(struct fsdp_client *client, tensor_is_fn *fn,
				void *data)
{
	struct fsdp_tensor *found = NULL;

	for (size_t i = 0; i < STRIPES && !found; i++) {
		struct stripe *stripe = &client->stripes[i];

		pthread_mutex_lock(&stripe->lock);
		found = find_on(stripe, fn, data);
		pthread_mutex_unlock(&stripe->lock);
	}
	return found;
}
