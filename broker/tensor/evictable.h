/*
 * Evictable tensors: those that may be dropped when memory is needed.
 *
 * Each is in two rings: one has all tensors, the other has those that are
 * charged to the same user. There are separate rings for host memory and for
 * devices. Rings are volatile, and are rebuilt from the catalog after a
 * restart. If memory runs out when a tensor is added, it is in no ring and is
 * never evicted.
 */
#pragma once
#include "broker/base/evict_ring.h"
#include "proto/device_uuid.h"
#include <stdbool.h>
#include <stdint.h>

struct store;

struct evict_link {
	uint32_t next, prev; /* slots; 0: not in the ring */
};

enum evictable_ring { RING_ALL, RING_OWN };

struct evictables {
	struct evict_ring all[2]; /* host, devices */
	/* links of each enum evictable_ring, indexed by slot */
	struct evict_link *links[2];
	uint32_t later_position; /* deadline that continues a search */
	/* Requests are being rerun only to continue the search, since no other
	 * memory was freed (waiter.c). */
	bool is_continuing;
	uint64_t n_looked; /* slots visited since the start */
};

/* evictable_add() allows the eviction of the named tensor in this slot, and
 * evictable_remove() forbids it; that has no effect if it was not allowed. */
void evictable_add(struct store *store, uint32_t slot);
void evictable_remove(struct store *store, uint32_t slot);

/* Returns the ring of all tensors in memory of that kind, or of those that are
 * charged to `uid`. NULL: the user has no account. */
struct evict_ring *evictable_ring(struct store *store,
				  enum evictable_ring which, uint32_t uid,
				  const struct device_uuid *device);

void evictable_deinit(struct store *store);
