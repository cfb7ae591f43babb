/*
 * Eviction: what may be dropped when room is needed, and which goes first.
 *
 * Evictable tensors stand in two rings, one of all and one of those that are
 * charged to the same user, each for host memory and for devices; a CLOCK hand
 * goes round. The first time round it passes what sessions acquired in this
 * era or the one before (shm/table.h), the second time it does not.
 *
 * Rings are the process's own, made anew from the catalog at a restart. A
 * tensor for which there is no heap is in none, and is never evicted.
 */
#pragma once
#include "proto/device_uuid.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;

struct evict_ring {
	uint32_t hand;     /* slot to look at next; 0: the ring is empty */
	uint32_t n;        /* slots */
	uint32_t n_looked; /* slots in vain, since one was evicted */
	bool is_over;      /* the last search was in vain */
};

struct evict_link {
	uint32_t next, prev; /* slots; 0: not in the ring */
};

struct evictables {
	struct evict_ring all[2];    /* host, devices */
	struct evict_link *links[2]; /* by slot: in `all`, in its user's */
	uint32_t later_position;     /* deadline of a search that goes on */
	bool is_continuing; /* requests run again for that search alone: there
			     * is no other room (waiter.c) */
	uint64_t n_looked;  /* slots, since start */
};

/* A named tensor of this slot may be evicted, or may not any more (nothing
 * happens if it never could). */
void evict_add(struct broker *broker, uint32_t slot);
void evict_remove(struct broker *broker, uint32_t slot);

enum evict_outcome {
	EVICT_NONE, /* nothing can go just now */
	EVICT_SOME, /* something went, and it is all that can */
	EVICT_MORE, /* not enough yet; waiters_wake_room() comes soon, and then
		       the next call goes on */
};

/*
 * Let go of evictable tensors until `bytes` are freed. Of memory of this
 * device, or the host's; `uid` not NULL: of those charged to it, on any device
 * if it is one. A tensor that somebody holds goes back to PUBLISHED. One call
 * costs at most about 100 us, however many tensors there are.
 * Commits: call it before a request changes anything.
 */
enum evict_outcome evict(struct broker *broker, uint64_t bytes,
			 const struct device_uuid *device, const uint32_t *uid);

void evict_deinit(struct broker *broker);
