/*
 * A ring of tensors that may be evicted (tensor/evict.h). Each account has a
 * ring of the tensors that are charged to it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct evict_ring {
	uint32_t hand;     /* slot to visit next; 0: the ring is empty */
	uint32_t n;        /* the number of slots in the ring */
	uint32_t n_looked; /* slots visited since the last eviction */
	bool is_over;      /* the last search found no slot to evict */
};
