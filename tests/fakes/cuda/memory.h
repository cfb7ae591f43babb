/*
 * Physical memory of a device, as this process has it: one descriptor of an
 * allocation of the ledger. Alive while anything here refers to it; the memory
 * itself lives on while anybody else has it.
 *
 * All functions: with the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/ledger.h"
#include <stdbool.h>

struct memory {
	int fd;                   /* owned */
	struct ledger_head *head; /* mapped; changes are for all processes */
	uint64_t size;
	ino_t inode;
	bool is_imported;
	unsigned int n_refs;
};

/* One reference is the caller's. `head` says what is wanted. */
CUresult memory_create(struct ledger_head *head, struct memory **ret);
/* Of a descriptor from elsewhere; consumes it, also on failure.
 * CUDA_ERROR_UNKNOWN: it is of something else. */
CUresult memory_import(int fd, struct memory **ret);
struct memory *memory_ref(struct memory *memory);
void memory_unref(struct memory *memory); /* NULL is fine */
