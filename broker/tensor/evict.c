/*
 * Eviction: the search in the rings.
 */
#include "broker/tensor/evict.h"
#include "broker/tensor/evictable.h"
#include "broker/tensor/name.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include <string.h>

/* The cost limit of one call, during which other clients wait. Visiting a slot
 * or one of its grants costs 1. */
#define COST_PER_CALL 512
#define EVICTION_COST 8
/* The first turn skips recently used tensors, and the second does not. */
#define TURNS 2

/* Returns whether any session acquired the slot in this era or the one
 * before. */
static bool is_recent(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint16_t era = (uint16_t)atomic_load_explicit(&store->table.header->era,
						      memory_order_relaxed);
	uint32_t grant = catalog_slot(catalog, slot)->grants.first;
	const struct grant_record *record;
	const struct holdings *holdings;

	for (; grant; grant = record->slot_link.next) {
		record = catalog_grant(catalog, grant);
		holdings = store->holdings[record->session];
		if (!holdings || !holdings->refs.entries)
			continue;
		if ((uint16_t)(era - refs_used(&holdings->refs, slot)) <= 1)
			return true;
	}
	return false;
}

static bool is_candidate(const struct store *store, uint32_t slot,
			 const struct device_uuid *device, const uint32_t *uid)
{
	const struct slot_record *record = catalog_slot(&store->catalog, slot);
	const struct device_uuid *its = pool_block_device(
		&store->pools, catalog_block(&store->catalog, record->block));

	if (record->n_tickets || record->group || record->n_pins ||
	    record->writer)
		return false;
	return uid || memcmp(its, device, sizeof(*its)) == 0;
}

/* Tries to evict the tensor. Returns false, with nothing changed, if a client
 * has acquired the slot meanwhile or a device is using it. */
static bool try_slot(struct store *store, uint32_t slot)
{
	slot_set_word(store, slot, SLOT_LIMBO);
	failpoint("slot.evict");
	if (slot_use(store, slot) != SLOT_UNUSED) {
		slot_set_word(store, slot, slot_state(store, slot));
		return false;
	}
	slot_drop_name(store, slot, EVENT_EVICTED);
	return slot_update_state(store, slot);
}

/* Evicts the tensor if it is unused. Returns the number of bytes freed. */
static uint64_t evict_one(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	const struct block_record *block =
		catalog_block(catalog, catalog_slot(catalog, slot)->block);
	uint64_t size = block->slots.n == 1
				? pool_block_charge(&store->pools, block)
				: 0;

	/* checked first, so that the words of used slots do not change */
	if (slot_use(store, slot) != SLOT_UNUSED || !try_slot(store, slot))
		return 0;
	store->n_evicted++;
	failpoint("limbo.evicted");
	return size;
}

/* Advances the hand. A full turn starts a new era. */
static uint32_t turn(struct store *store, struct evict_ring *ring,
		     const struct evict_link *links)
{
	uint32_t slot = ring->hand;

	ring->hand = links[slot].next;
	if (++ring->n_looked % ring->n == 0)
		/* relaxed: clients copy it only as a hint */
		atomic_fetch_add_explicit(&store->table.header->era, 1,
					  memory_order_relaxed);
	store->evictables.n_looked++;
	return slot;
}

static void on_later(void *data, uint32_t index)
{
	struct store *store = data;

	(void)index;
	wake_room(&store->base->wake);
	store->evictables.is_continuing = true;
	wake_round(&store->base->wake); /* its end resets that */
}

/* Plans the continuation of the search. Returns false if memory ran out. */
static bool plan_more(struct store *store)
{
	struct deadline deadline = {
		.fn = on_later,
		.data = store,
		.position = &store->evictables.later_position,
	};

	return *deadline.position ||
	       deadlines_add(&store->base->deadlines, &deadline, NULL) == 0;
}

enum evict_outcome evict(struct store *store, uint64_t bytes,
			 const struct device_uuid *device, const uint32_t *uid)
{
	enum evictable_ring which = uid ? RING_OWN : RING_ALL;
	struct evict_ring *ring =
		evictable_ring(store, which, uid ? *uid : 0, device);
	const struct evict_link *links = store->evictables.links[which];
	uint32_t cost = 0, slot, n_looked;
	uint64_t freed = 0, size;

	if (!ring || bytes == 0)
		return EVICT_NONE;
	/* Another request has finished the same search. */
	if (store->evictables.is_continuing && ring->is_over)
		return EVICT_NONE;
	ring->is_over = false;
	while (freed < bytes && cost < COST_PER_CALL && ring->n > 0 &&
	       ring->n_looked < (uint64_t)ring->n * TURNS) {
		n_looked = ring->n_looked;
		slot = turn(store, ring, links);
		cost += 1 + catalog_slot(&store->catalog, slot)->grants.n;
		if (!is_candidate(store, slot, device, uid) ||
		    (n_looked < ring->n && is_recent(store, slot)))
			continue;
		size = evict_one(store, slot);
		catalog_commit(&store->catalog);
		freed += size;
		if (!size)
			continue;
		cost += EVICTION_COST;
		ring->n_looked = 0;
	}
	if (freed < bytes && cost >= COST_PER_CALL && plan_more(store))
		return EVICT_MORE;
	ring->n_looked = 0;
	ring->is_over = !freed;
	return freed ? EVICT_SOME : EVICT_NONE;
}
