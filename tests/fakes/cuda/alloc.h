/* cuMemAlloc()'s memory, and memory that was opened by other processes'
 * handles. */
#pragma once
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/mapping.h"

struct context;
struct memory;

/* The caller of each function holds the process's lock. */

/* Maps memory at a new address, of a kind to which all devices have access. If
 * it succeeds, the mapping owns the reference to `memory`. */
CUresult alloc_map(struct context *context, struct memory *memory,
		   uint64_t address, struct mapping **ret);
void alloc_unmap(struct mapping *mapping);

/* Begins a call that frees the mapping of this kind at the address. Drivers may
 * wait for streams in such a call. If this fails, the call has ended. */
CUresult alloc_begin_free(enum call call, uint64_t address,
			  enum mapping_kind kind, struct mapping **ret);

/* Frees all memory of a context that ends. */
void alloc_free_all(struct context *context);
