/*
 * Shelves of handles, and of what is known. Both are cut from slabs and never
 * go back to the heap before the connection is closed: so closing can end what
 * the caller forgot, and a process that has just connected touches few pages.
 */
#include "client/tensor.h"
#include "client/cache.h"
#include "client/client.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LINE         64
#define SLAB_HANDLES 63
#define SLAB_LINES   63

struct slab {
	_Alignas(LINE) struct slab *next;
	size_t n_used; /* handles that were ever live */
	struct fsdp_tensor handles[SLAB_HANDLES];
};

struct free_known {
	struct free_known *next;
};

struct known_slab {
	_Alignas(LINE) struct known_slab *next;
	size_t n_used; /* lines */
	_Alignas(LINE) uint8_t lines[SLAB_LINES][LINE];
};

_Static_assert(sizeof(struct fsdp_tensor) == LINE,
	       "a handle is one cache line: the hot calls touch no other");
_Static_assert(TENSOR_MAX_DIMS < 16 && DTYPE_MAX < 256, "fields of known");

void shelf_init(struct shelf *shelf)
{
	*shelf = (struct shelf){.slabs = NULL};
	pthread_mutex_init(&shelf->lock, NULL);
}

void shelf_deinit(struct shelf *shelf)
{
	cache_drop_all(shelf);
	while (shelf->slabs) {
		struct slab *slab = shelf->slabs;

		for (size_t i = 0; i < slab->n_used; i++)
			if (slab->handles[i].is_live)
				known_drop(shelf,
					   tensor_known(&slab->handles[i]));
		shelf->slabs = slab->next;
		free(slab);
	}
	shelf->first_free = NULL;
	while (shelf->known_slabs) {
		struct known_slab *slab = shelf->known_slabs;

		shelf->known_slabs = slab->next;
		free(slab);
	}
	memset(shelf->free_knowns, 0, sizeof(shelf->free_knowns));
}

/* --- what is known ------------------------------------------------------- */

/* Bytes of dims behind the rest. */
static size_t dims_size(size_t n_dims, bool is_contiguous)
{
	return n_dims * (is_contiguous ? 1 : 2) * sizeof(int64_t);
}

/* Of one whose sizes are filled in. */
static size_t known_lines(const struct known *known)
{
	size_t size = offsetof(struct known, name) + known->name_size + 1;

	size = (size + 7) & ~(size_t)7;
	size += sizeof(struct known_rest) +
		dims_size(known->n_dims, known->is_contiguous);
	if (known->is_on_device)
		size += sizeof(struct known_device);
	return (size + LINE - 1) / LINE;
}

/* Cut from the newest slab; what is left of a full one is lost. */
static void *cut(struct shelf *shelf, size_t n_lines)
{
	struct known_slab *slab = shelf->known_slabs;
	void *lines;

	if (!slab || SLAB_LINES - slab->n_used < n_lines) {
		slab = aligned_alloc(LINE, sizeof(*slab));
		if (!slab)
			return NULL;
		slab->n_used = 0;
		slab->next = shelf->known_slabs;
		shelf->known_slabs = slab;
	}
	lines = slab->lines[slab->n_used];
	slab->n_used += n_lines;
	return lines;
}

/* Long names and shapes are rare, and the heap's. */
static struct known *known_alloc(struct shelf *shelf, size_t n_lines)
{
	struct free_known *first;

	if (n_lines > KNOWN_CLASSES)
		return aligned_alloc(LINE, n_lines * LINE);
	first = shelf->free_knowns[n_lines - 1];
	if (!first)
		return cut(shelf, n_lines);
	shelf->free_knowns[n_lines - 1] = first->next;
	return (void *)first;
}

static void known_free(struct shelf *shelf, struct known *known)
{
	size_t n_lines = known_lines(known);
	struct free_known *freed = (void *)known;

	if (n_lines > KNOWN_CLASSES) {
		free(known);
		return;
	}
	freed->next = shelf->free_knowns[n_lines - 1];
	shelf->free_knowns[n_lines - 1] = freed;
}

static void fill_rest(struct known *known, const struct tensor_place *place)
{
	struct known_rest *rest = known_rest(known);
	size_t size = dims_size(known->n_dims, true);

	*rest = (struct known_rest){
		.size = place->size,
		.version = place->version,
		.chunk = known->data ? place->chunk : 0,
	};
	memcpy(rest->dims, place->type.shape, size);
	if (!known->is_contiguous)
		memcpy(rest->dims + known->n_dims, place->type.strides, size);
}

void known_set_order(struct known *known, const struct tensor_order *order)
{
	struct known_device *it = known_device(known);

	if (!it)
		return;
	it->order = *order;
	/* Relaxed: nobody else has it yet. */
	atomic_store_explicit(&it->written,
			      order->session ? WRITTEN_PENDING : WRITTEN_YES,
			      memory_order_relaxed);
}

static void fill_device(struct known *known, const struct tensor_place *place,
			struct spot spot)
{
	struct known_device *it = known_device(known);

	if (!it)
		return;
	it->device = spot.device;
	it->is_legacy = spot.is_legacy;
	known_set_order(known, &place->order);
	if (place->is_tainted)
		atomic_store_explicit(&it->written, WRITTEN_NEVER,
				      memory_order_relaxed);
}

struct known *known_new(struct shelf *shelf, const struct tensor_place *place,
			const char *name, struct spot spot)
{
	struct known sketch = {
		.generation = place->ref.generation,
		.slot = place->ref.slot,
		.data = spot.data,
		.n_users = 1,
		.name_size = (uint32_t)strlen(name),
		.dtype = (uint8_t)place->type.dtype,
		.n_dims = place->type.n_dims & 15,
		.is_contiguous = tensor_type_is_contiguous(&place->type),
		.is_on_device = spot.device != NULL,
	};
	struct known *known = known_alloc(shelf, known_lines(&sketch));

	if (!known)
		return NULL;
	*known = sketch;
	memcpy(known->name, name, known->name_size + 1u);
	fill_rest(known, place);
	fill_device(known, place, spot);
	return known;
}

void known_drop(struct shelf *shelf, struct known *known)
{
	while (known && --known->n_users == 0) {
		struct known *older = known_rest(known)->older;

		known_free(shelf, known);
		known = older;
	}
}

void known_type(const struct known *known, struct tensor_type *ret)
{
	const int64_t *dims = known_rest(known)->dims;
	size_t size = dims_size(known->n_dims, true);

	*ret = (struct tensor_type){
		.dtype = known->dtype,
		.n_dims = known->n_dims,
	};
	memcpy(ret->shape, dims, size);
	if (known->is_contiguous)
		tensor_type_contiguous(ret);
	else
		memcpy(ret->strides, dims + known->n_dims, size);
}

/* --- handles ------------------------------------------------------------- */

static struct fsdp_tensor *handle_alloc(struct shelf *shelf)
{
	struct fsdp_tensor *tensor = shelf->first_free;
	struct slab *slab = shelf->slabs;

	if (tensor) {
		shelf->first_free = tensor->next_free;
		/* The next one's link is read first of all of it. */
		__builtin_prefetch(shelf->first_free, 1);
		return tensor;
	}
	if (!slab || slab->n_used == SLAB_HANDLES) {
		slab = aligned_alloc(LINE, sizeof(*slab));
		if (!slab)
			return NULL;
		slab->n_used = 0;
		slab->next = shelf->slabs;
		shelf->slabs = slab;
	}
	return &slab->handles[slab->n_used++];
}

struct fsdp_tensor *tensor_new(struct fsdp_client *client, uint8_t shelf_index,
			       struct known *known)
{
	struct shelf *shelf = &client->shelves[shelf_index];
	struct fsdp_tensor *tensor = handle_alloc(shelf);

	if (!tensor)
		return NULL;
	tensor->client = client;
	tensor->generation = known->generation;
	tensor->slot = known->slot;
	tensor->data = known->data;
	tensor->bundle = 0;
	tensor->shelf = shelf_index;
	tensor->is_live = true;
	/* Relaxed: nobody else has the handle yet. */
	atomic_store_explicit(&tensor->is_writable, false,
			      memory_order_relaxed);
	atomic_store_explicit(&tensor->holds, 1, memory_order_relaxed);
	atomic_store_explicit(&tensor->known, known, memory_order_relaxed);
	return tensor;
}

void tensor_free(struct fsdp_tensor *tensor)
{
	struct shelf *shelf = &tensor->client->shelves[tensor->shelf];

	pthread_mutex_lock(&shelf->lock);
	/* Freed already: twice in the list it would be two tensors. */
	if (tensor->is_live) {
		known_drop(shelf, tensor_known(tensor));
		tensor->is_live = false;
		tensor->generation = 0; /* no slot's: not to be acquired */
		tensor->next_free = shelf->first_free;
		shelf->first_free = tensor;
	}
	pthread_mutex_unlock(&shelf->lock);
}

bool tensor_give_back_unrung(struct fsdp_client *client, uint32_t slot,
			     uint32_t n)
{
	/* All but the last need no look at the state: the last looks after all
	 * of them. seq_cst like every write of delta (shm/refs.h). */
	if (n > 1)
		atomic_fetch_sub_explicit(&client->refs.entries[slot].delta,
					  (int32_t)(n - 1),
					  memory_order_seq_cst);
	return refs_release(&client->refs, &client->table, slot);
}

void tensor_give_back(struct fsdp_client *client, uint32_t slot, uint32_t n)
{
	if (tensor_give_back_unrung(client, slot, n))
		client_ring(client);
}

bool tensor_take_hold(struct fsdp_tensor *tensor)
{
	/* Relaxed: the count orders nothing; delta does, and it is lowered
	 * later, seq_cst. Compare and swap, so that it never passes 0. */
	uint32_t n = atomic_load_explicit(&tensor->holds, memory_order_relaxed);

	while (n)
		if (atomic_compare_exchange_weak_explicit(
			    &tensor->holds, &n, n - 1, memory_order_relaxed,
			    memory_order_relaxed))
			return true;
	return false;
}

static struct fsdp_tensor *find_on(const struct shelf *shelf, tensor_is_fn *fn,
				   void *data)
{
	for (struct slab *slab = shelf->slabs; slab; slab = slab->next)
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

	for (size_t i = 0; i < SHELVES && !found; i++) {
		struct shelf *shelf = &client->shelves[i];

		pthread_mutex_lock(&shelf->lock);
		found = find_on(shelf, fn, data);
		pthread_mutex_unlock(&shelf->lock);
	}
	return found;
}
