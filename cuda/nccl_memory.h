/*
 * Memory as ncclMemAlloc() makes it: for groups whose buffers NCCL is to choose
 * (the "process group" kind of FSDP2). It is a chunk like those of vmm.h, whose
 * fd can be given away; who has the fd keeps the memory.
 */
#pragma once
#include "cuda/device.h"

struct nccl_memory {
	CUdeviceptr address; /* 0: none */
	uint64_t size;       /* of the whole chunk: at least what was wanted */
};

#define NCCL_MEMORY_NULL ((struct nccl_memory){0})

/*
 * Make at least `size` bytes, mapped writable, and give an fd of them (owned by
 * the caller). -EOPNOTSUPP: NCCL makes memory here that has none (no VMM).
 */
int nccl_memory_create(const struct device *device, uint64_t size,
		       struct nccl_memory *ret, int *ret_fd, struct error *err);
/* Unmap it; it was deregistered, and work with it is done. No-op for
 * NCCL_MEMORY_NULL. */
void nccl_memory_free(const struct device *device, struct nccl_memory *memory);
