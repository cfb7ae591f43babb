/*
 * Eviction: which evictable tensors go first.
 *
 * A CLOCK hand goes round each ring (evictable.h). In the first turn it skips
 * tensors that sessions acquired in this era or the one before (shm/table.h),
 * in the second turn it does not.
 */
#pragma once
#include "proto/device_uuid.h"
#include <stdint.h>

struct store;

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
