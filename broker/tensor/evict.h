/*
 * Eviction: the order in which evictable tensors are evicted.
 *
 * A CLOCK hand goes round each ring (evictable.h). In the first turn it skips
 * tensors that sessions acquired in this era or the one before (shm/table.h).
 * In the second turn it skips none of these.
 */
#pragma once
#include "proto/device_uuid.h"
#include <stdint.h>

struct store;

enum evict_outcome {
	EVICT_NONE, /* no tensor can be evicted now */
	EVICT_SOME, /* some tensors were evicted, and no more can be */
	/* The search is not finished; wake_room() will be called soon, and the
	 * next call of evict() continues it. */
	EVICT_MORE,
};

/*
 * Evicts tensors until `bytes` are freed, in memory of this device or the host.
 * If `uid` is not NULL, only tensors that are charged to it are evicted: those
 * in host memory, or, if `device` is a device, those on any device. A tensor
 * that turns out to be held becomes PUBLISHED again. One call takes at most
 * about 100 us, however many tensors there are. Commits: call it before a
 * request changes anything.
 */
enum evict_outcome evict(struct store *store, uint64_t bytes,
			 const struct device_uuid *device, const uint32_t *uid);
