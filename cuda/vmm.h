/*
 * VMM chunks: device memory whose lifetime is a file descriptor.
 *
 * cuMemCreate() memory that is exported as a POSIX fd lives until its last fd,
 * mapping and handle are gone, whichever process made it. vmm_create() and
 * vmm_check() need no context, so the broker calls them; mapping needs one
 * (context.h).
 *
 * The unit of visibility is the chunk: a process that has the fd can map all of
 * it.
 */
#pragma once
#include "cuda/device.h"
#include "cuda/shared.h"

struct vmm_options {
	bool wants_rdma;   /* GPUDirect RDMA, where there is any */
	bool wants_fabric; /* also exportable as a fabric handle, where it is */
};

/* Round up to what vmm_create() takes: the device's granularity. */
uint64_t vmm_round(const struct device *device, uint64_t size);

/*
 * Make `size` bytes (rounded) on the device and give their fd; the handle is
 * released, the fd is the lifetime. `options` may be NULL. Tries without
 * fabric where the driver refuses it. -ENOMEM: the device has no room now.
 */
int vmm_create(const struct device *device, uint64_t size,
	       const struct vmm_options *options, int *ret_fd,
	       struct error *err);

/*
 * Is `fd` (borrowed) memory of this device? It is imported and released again.
 * Of `size` only this is seen: whether chunks have such sizes. What else it
 * is, the driver tells nobody before it is mapped, and then it refuses; so a
 * liar harms only who trusts him. -EINVAL with a sentence. For fds that others
 * donate: any file may be passed, also one that would block.
 */
int vmm_check(const struct device *device, int fd, uint64_t size,
	      struct error *err);

/* Memory of this process, exported for all who share it. */
struct vmm_export {
	struct shared shared;
	CUdeviceptr address;
	CUmemGenericAllocationHandle handle; /* kept: it says which memory */
	int fd;                              /* borrowed by users */
};

/*
 * Give an fd of the memory that is mapped at `address`, which any library of
 * this process made. Each export by the driver is another open file, so that
 * nobody can see that two are of one memory; therefore the same memory at the
 * same address is exported once, until all have called vmm_unexport(). Until
 * then it is not freed. -EOPNOTSUPP: it is of another kind, another process
 * made it, or it was made so that it has no fd.
 */
int vmm_export(CUdeviceptr address, struct vmm_export **ret, struct error *err);
void vmm_unexport(struct vmm_export *export); /* NULL is fine */

struct vmm_mapping {
	const struct device *device;
	CUdeviceptr address; /* 0: none */
	uint64_t size;       /* bytes, of the chunk */
	bool is_writable;
	/* Kept: NCCL retains it by address. */
	CUmemGenericAllocationHandle handle;
};

#define VMM_MAPPING_NULL ((struct vmm_mapping){.address = 0})

/*
 * Map the chunk behind `fd` (borrowed) read-only or writable, with the device's
 * context (context_enter()). Gives an address of this process, valid on
 * `device`. -EINVAL: fd of something else, or of another size; that it is of
 * that device is known already (vmm_check()). The driver may wait for work of
 * this process. What is mapped is never changed: while its access changes,
 * kernels that use it would fault.
 */
int vmm_map(const struct device *device, int fd, uint64_t size,
	    bool is_writable, struct vmm_mapping *ret, struct error *err);

/* Unmap, and release the handle; the address is free again. Work on the
 * device that uses it must have ended; the driver may wait for other work, too.
 * No-op for address 0. */
void vmm_unmap(struct vmm_mapping *mapping);
