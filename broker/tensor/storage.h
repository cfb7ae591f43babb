/*
 * Memory that the broker makes for collectives: shards, whole parameters,
 * gradients.
 *
 * It is a slot like any other (bytes, one-dimensional, without a name), so
 * that what clients do with it is held, counted and collected as everything
 * else is. It is charged to the user who made the communicator.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;
struct error;

struct storage_request {
	struct access_class access; /* with the real uid */
	uint32_t uid;               /* charged */
	uint64_t size;              /* bytes; 0 counts as 1 */
	struct device_uuid device;  /* where; all 0: host memory */
	bool may_evict; /* collect limbo and evict where there is no room */
};

/*
 * Make one, pinned once: enum pool_outcome. POOL_WAIT: memory is being made;
 * POOL_FULL: no room or no quota now, with the sentence in `err` should the
 * caller give up. In both cases try again after wake_room().
 * Negative: it could never fit. Before it gives up it collects limbo, then
 * evicts. Commits: call it between changes, not among them.
 */
int storage_make(struct store *store, const struct storage_request *request,
		 uint32_t *ret_slot, struct error *err);
