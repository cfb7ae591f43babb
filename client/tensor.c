/*
 * Shelves of handles. Handles are cut from slabs and never go back to the
 * heap before the connection is closed, so that closing can end what the
 * caller forgot.
 */
#include "client/tensor.h"
#include "client/client.h"
#include <stdlib.h>
#include <string.h>

#define SLAB_HANDLES 63

struct slab {
	_Alignas(64) struct slab *next;
	struct fsdp_tensor handles[SLAB_HANDLES];
};

_Static_assert(sizeof(struct fsdp_tensor) == 64,
	       "a handle is one cache line: the hot calls touch no other");

void shelf_init(struct shelf *shelf)
{
	*shelf = (struct shelf){.slabs = NULL};
	pthread_mutex_init(&shelf->lock, NULL);
}

static void drop_cache(struct shelf *shelf)
{
	for (size_t i = 0; i < shelf->n_buckets; i++) {
		struct known *known = shelf->buckets[i];

		while (known) {
			struct known *next = known->next;

			known_drop(known);
			known = next;
		}
	}
	free(shelf->buckets);
	shelf->buckets = NULL;
	shelf->n_buckets = shelf->n_cached = 0;
}

void shelf_deinit(struct shelf *shelf)
{
	drop_cache(shelf);
	while (shelf->slabs) {
		struct slab *slab = shelf->slabs;

		for (size_t i = 0; i < SLAB_HANDLES; i++)
			if (slab->handles[i].is_live)
				known_drop(tensor_known(&slab->handles[i]));
		shelf->slabs = slab->next;
		free(slab);
	}
	shelf->first_free = NULL;
}

struct known *known_new(const struct tensor_place *place, const char *name,
			uint8_t *data)
{
	size_t size = strlen(name) + 1;
	struct known *known = malloc(sizeof(*known) + size);

	if (!known)
		return NULL;
	*known = (struct known){
		.ref = place->ref,
		.data = data,
		.n_users = 1,
		.chunk = data ? place->chunk : 0,
		.size = place->size,
		.version = place->version,
		.type = place->type,
	};
	memcpy(known->name, name, size);
	return known;
}

void known_drop(struct known *known)
{
	while (known && --known->n_users == 0) {
		struct known *older = known->older;

		free(known);
		known = older;
	}
}

static bool add_slab(struct shelf *shelf)
{
	struct slab *slab = aligned_alloc(64, sizeof(*slab));

	if (!slab)
		return false;
	memset(slab, 0, sizeof(*slab));
	slab->next = shelf->slabs;
	shelf->slabs = slab;
	for (size_t i = SLAB_HANDLES; i-- > 0;) {
		slab->handles[i].next_free = shelf->first_free;
		shelf->first_free = &slab->handles[i];
	}
	return true;
}

struct fsdp_tensor *tensor_new(struct fsdp_client *client, uint8_t shelf_index,
			       struct known *known)
{
	struct shelf *shelf = &client->shelves[shelf_index];
	struct fsdp_tensor *tensor;

	if (!shelf->first_free && !add_slab(shelf))
		return NULL;
	tensor = shelf->first_free;
	shelf->first_free = tensor->next_free;
	tensor->client = client;
	tensor->generation = known->ref.generation;
	tensor->slot = known->ref.slot;
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
	known_drop(tensor_known(tensor));
	tensor->is_live = false;
	tensor->next_free = shelf->first_free;
	shelf->first_free = tensor;
	pthread_mutex_unlock(&shelf->lock);
}

void tensor_give_back(struct fsdp_client *client, uint32_t slot, uint32_t n)
{
	/* All but the last need no look at the state: the last looks after all
	 * of them. seq_cst like every write of delta (shm/refs.h). */
	if (n > 1)
		atomic_fetch_sub_explicit(&client->refs.entries[slot].delta,
					  (int32_t)(n - 1),
					  memory_order_seq_cst);
	if (refs_release(&client->refs, &client->table, slot))
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
		for (size_t i = 0; i < SLAB_HANDLES; i++)
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
