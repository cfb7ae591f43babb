/*
 * Eviction: which tensors may be dropped when memory is needed, and which go
 * first.
 *
 * Each evictable tensor is in two rings, one of all tensors and one of those
 * charged to the same user; there are separate rings for host memory and for
 * devices. A CLOCK hand goes round each ring. In the first turn it skips
 * tensors that sessions acquired in this era or the one before (shm/table.h),
 * in the second turn it does not.
 *
 * Rings are volatile, and rebuilt from the catalog after a restart. If memory
 * runs out when a tensor is added, it is in no ring and is never evicted.
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

struct evictables {
	struct evict_ring all[2];    /* host, devices */
	struct evict_link *links[2]; /* by slot: in `all`, in its user's ring */
	uint32_t later_position;     /* deadline that continues a search */
	/* Requests are rerun only to continue the search, since no other memory
	 * was freed (waiter.c). */
	bool is_continuing;
	uint64_t n_looked; /* slots visited since the start */
};

/* A named tensor in this slot may be evicted from now on, or may not any more
 * (no effect if it never could). */
void evict_add(struct store *store, uint32_t slot);
void evict_remove(struct store *store, uint32_t slot);

enum evict_outcome {
	EVICT_NONE, /* no tensor can be evicted now */
	EVICT_SOME, /* some were evicted, and no more can be */
	/* Not enough yet; wake_room() follows soon, and the next
	 * call continues. */
	EVICT_MORE,
};

/*
 * Evict tensors until `bytes` are freed, in memory of this device or the host.
 * `uid` not NULL: only tensors charged to it, on any device if `device` is one.
 * A tensor that turns out to be held becomes PUBLISHED again. One call takes at
 * most about 100 us, however many tensors there are. Commits: call it before a
 * request changes anything.
 */
enum evict_outcome evict(struct store *store, uint64_t bytes,
			 const struct device_uuid *device, const uint32_t *uid);

void evict_deinit(struct store *store);
