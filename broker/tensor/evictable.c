/*
 * The rings of evictable tensors. A user's ring is in the account, which lives
 * as long as the broker.
 */
#include "broker/tensor/evictable.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <stdlib.h>

struct evict_ring *evictable_ring(struct store *store,
				  enum evictable_ring which, uint32_t uid,
				  const struct device_uuid *device)
{
	bool is_device = pool_account(device) == ACCOUNT_DEVICE_BYTES;
	struct account *account;

	if (which == RING_ALL)
		return &store->evictables.all[is_device];
	account = accounts_get(&store->base->accounts, uid);
	return account ? &account->evictable[is_device] : NULL;
}

static struct evict_ring *ring_of(struct store *store,
				  enum evictable_ring which, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct block_record *block =
		catalog_block(catalog, catalog_slot(catalog, slot)->block);

	return evictable_ring(store, which, block->uid,
			      pool_block_device(&store->pools, block));
}

static void ring_add(struct evict_ring *ring, struct evict_link *links,
		     uint32_t slot)
{
	uint32_t next = ring->hand ? ring->hand : slot;
	uint32_t prev = ring->hand ? links[next].prev : slot;

	assert(links[slot].next == 0);
	links[slot] = (struct evict_link){next, prev};
	links[prev].next = slot;
	links[next].prev = slot;
	ring->hand = next;
	ring->n++;
}

static void ring_remove(struct evict_ring *ring, struct evict_link *links,
			uint32_t slot)
{
	struct evict_link link = links[slot];

	links[link.prev].next = link.next;
	links[link.next].prev = link.prev;
	links[slot] = (struct evict_link){0};
	ring->n--;
	if (ring->hand == slot)
		ring->hand = ring->n ? link.next : 0;
}

/* The arrays are large, but the kernel allocates only the pages that are
 * written. */
static bool reserve(struct evictables *evictables)
{
	for (int i = 0; i < 2; i++) {
		if (!evictables->links[i] &&
		    failpoint_fail("evict.malloc") == 0)
			evictables->links[i] =
				calloc(TABLE_SLOTS, sizeof(struct evict_link));
		if (!evictables->links[i])
			return false;
	}
	return true;
}

void evictable_add(struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t block = catalog_slot(catalog, slot)->block;
	uint32_t chunk = catalog_block(catalog, block)->chunk;

	/* Shared memory is not evictable: eviction would return it to the
	 * process that shared it. */
	if (catalog_chunk(catalog, chunk)->shared ||
	    !reserve(&store->evictables))
		return;
	for (enum evictable_ring i = RING_ALL; i <= RING_OWN; i++)
		ring_add(ring_of(store, i, slot), store->evictables.links[i],
			 slot);
}

void evictable_remove(struct store *store, uint32_t slot)
{
	struct evict_link **links = store->evictables.links;

	if (!links[RING_OWN] || !links[RING_OWN][slot].next)
		return;
	for (enum evictable_ring i = RING_ALL; i <= RING_OWN; i++)
		ring_remove(ring_of(store, i, slot), links[i], slot);
}

void evictable_deinit(struct store *store)
{
	free(store->evictables.links[RING_ALL]);
	free(store->evictables.links[RING_OWN]);
	store->evictables = (struct evictables){0};
}
