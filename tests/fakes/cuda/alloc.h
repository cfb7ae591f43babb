/* cuMemAlloc()'s memory, and what other processes' handles of it open. */
#pragma once
#include "tests/fakes/cuda/api.h"

struct context;
struct mapping;
struct memory;

/* All functions: with the process's lock. */

/* Map memory of a kind that everybody may read and write at a new address.
 * `memory`: the reference is the mapping's, if it succeeds. */
CUresult alloc_map(struct context *context, struct memory *memory,
		   uint64_t address, struct mapping **ret);
void alloc_unmap(struct mapping *mapping);

/* All of a context that ends. */
void alloc_free_all(struct context *context);
