/*
 * Memory of a communicator's ranks: one slot that all share, in host memory, or
 * one for each rank, on its device.
 *
 * The run pins the slots, except those that a group's record keeps.
 */
#pragma once
#include "broker/comm/comm.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

struct rank_memory {
	/* The slot of each rank; if it is shared, only the first is used. 0:
	 * not made. */
	uint32_t slots[PLAN_MAX_RANKS];
	/* The memory is in host memory, although the communicator is on
	 * devices. Each rank uses its slot from the first whole page on, so
	 * that it can be pinned by itself. */
	bool is_offloaded;
};

/* Returns the number of slots that are needed. */
uint32_t rank_memory_count(const struct comm *comm);

/* Returns the slot that the rank uses; 0 if it is not made. */
uint32_t rank_memory_slot(const struct comm *comm,
			  const struct rank_memory *memory, uint32_t rank);

/* Returns whether all slots are made. */
bool rank_memory_is_whole(const struct comm *comm,
			  const struct rank_memory *memory);

/*
 * Make the missing slots, of `size` bytes each. Returns an enum pool_outcome;
 * slots that were made are kept for the next attempt.
 */
int rank_memory_make(struct comm *comm, uint64_t size,
		     struct rank_memory *memory, struct error *err);

/* Make one slot for this rank. Returns an enum pool_outcome. */
int rank_memory_make_one(struct comm *comm, uint32_t rank, uint64_t size,
			 uint32_t *ret_slot, struct error *err);

/* Pin each slot once more. */
void rank_memory_pin(struct comm *comm, const struct rank_memory *memory);

/* Unpin each slot once, and clear the struct's slots. */
void rank_memory_unpin(struct comm *comm, struct rank_memory *memory);
