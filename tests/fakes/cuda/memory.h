/*
 * Physical memory of a device, as this process has it: one descriptor of an
 * allocation of the ledger. The object lives while this process refers to it;
 * the memory itself lives while any process has it.
 *
 * The caller of each function holds the process's lock.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include "tests/fakes/cuda/ledger.h"
#include <stdbool.h>

struct memory {
	int fd;                   /* owned */
	struct ledger_head *head; /* mapped; all processes see changes */
	uint64_t size;
	ino_t inode;
	bool is_imported;
	unsigned int n_refs;
};

/* Makes an object for `head`, which has the size, device and kind. The caller
 * owns one reference. */
CUresult memory_create(struct ledger_head *head, struct memory **ret);
/* Makes an object from a descriptor of another process. Consumes the
 * descriptor, also on failure. Returns CUDA_ERROR_UNKNOWN if it is not of an
 * allocation. */
CUresult memory_import(int fd, struct memory **ret);
struct memory *memory_ref(struct memory *memory);
void memory_unref(struct memory *memory); /* `memory` may be NULL. */
