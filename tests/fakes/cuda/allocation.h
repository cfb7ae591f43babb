/*
 * Allocations: what a handle of cuMemCreate() or an import means. One is alive
 * while it has handles (cuMemRelease() for each) or mappings.
 *
 * All functions: with the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"

struct memory;

struct allocation {
	CUmemGenericAllocationHandle handle;
	struct memory *memory;  /* a reference */
	unsigned int n_handles; /* that the program has to release */
	unsigned int n_mappings;
};

/* NULL: there is no handle of that value that was not released. */
struct allocation *allocation_find(CUmemGenericAllocationHandle handle);
/* To be called when either count has gone down. */
void allocation_settle(struct allocation *allocation);
