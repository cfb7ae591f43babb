/*
 * Allocations, to which handles of cuMemCreate() and imports refer. An
 * allocation lives while it has handles (cuMemRelease() for each) or mappings.
 *
 * The caller of each function holds the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"

struct memory;

struct allocation {
	CUmemGenericAllocationHandle handle;
	struct memory *memory;  /* a reference */
	unsigned int n_handles; /* handles that the program must release */
	unsigned int n_mappings;
};

/* Returns NULL if no live handle has that value. */
struct allocation *allocation_find(CUmemGenericAllocationHandle handle);
/* Call this after either count was reduced. */
void allocation_settle(struct allocation *allocation);
