/*
 * Memory of a communicator's ranks: one slot that all share, on host memory, or
 * one for each, on its device.
 *
 * Its slots are pinned by the run, but for those that a group's record keeps.
 */
#pragma once
#include "broker/comm.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

struct rank_memory {
	uint32_t slots[PLAN_MAX_RANKS]; /* by rank; shared: the first alone. 0:
					 * none */
	/* On devices, but in host memory: each rank's used from its first whole
	 * page on, so that it can be pinned by itself. */
	bool is_offloaded;
};

/* How many slots make it whole. */
uint32_t rank_memory_count(const struct comm *comm);

/* What the rank uses of it; 0: none. */
uint32_t rank_memory_slot(const struct comm *comm,
			  const struct rank_memory *memory, uint32_t rank);

bool rank_memory_is_whole(const struct comm *comm,
			  const struct rank_memory *memory);

/*
 * Make what is missing, `size` bytes each: enum pool_outcome, as
 * storage_make(). What it has got it keeps for the next time.
 */
int rank_memory_make(struct comm *comm, uint64_t size,
		     struct rank_memory *memory, struct error *err);

/* One slot, for this rank: as storage_make(). */
int rank_memory_make_one(struct comm *comm, uint32_t rank, uint64_t size,
			 uint32_t *ret_slot, struct error *err);

/* One more pin of each. */
void rank_memory_pin(struct comm *comm, const struct rank_memory *memory);

/* One pin of each less, and it has none any more. */
void rank_memory_unpin(struct comm *comm, struct rank_memory *memory);
