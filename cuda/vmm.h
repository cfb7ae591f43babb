/*
 * VMM chunks are device memory whose lifetime is that of file descriptors.
 *
 * cuMemCreate() memory that is exported as a POSIX fd lives until its last fd,
 * mapping and handle are gone, no matter which process made it. vmm_create()
 * and vmm_check() need no context, so the broker calls them; mapping needs one
 * (context.h).
 *
 * The unit of visibility is the chunk: a process that has the fd can map all of
 * it.
 */
#pragma once
#include "cuda/device.h"
#include "cuda/shared.h"

/* Rounds up to a size that vmm_create() accepts: a multiple of the device's
 * granularity. */
uint64_t vmm_round(const struct device *device, uint64_t size);

/*
 * Makes `size` bytes, rounded up by vmm_round(), on the device and returns
 * their fd. The driver's handle is released, so the memory lives as long as the
 * fd. It is made for GPUDirect RDMA if the device has it. Returns -ENOMEM if
 * the device has no free memory.
 */
int vmm_create(const struct device *device, uint64_t size, int *ret_fd,
	       struct error *err);

/*
 * Checks that `fd` (borrowed) is memory of this device, for fds that other
 * processes donate. They may have passed any file, even one whose operations
 * block. The memory is imported and released again. `size` is only checked to
 * be a valid size of chunks. The driver does not tell the true size before it
 * maps the memory, and it refuses to map another size; so a wrong size harms
 * only processes that trust the sender. Returns -EINVAL with a sentence.
 */
int vmm_check(const struct device *device, int fd, uint64_t size,
	      struct error *err);

/* Memory of this process that is exported for all users of the export. */
struct vmm_export {
	struct shared shared;
	CUdeviceptr address;
	/* kept, since it identifies the memory */
	CUmemGenericAllocationHandle handle;
	int fd; /* users borrow it */
};

/*
 * Exports the memory that is mapped at `address`, which any library of this
 * process may have made. Each export by the driver is another open file, and no
 * process can find out that two of them are of the same memory. So the same
 * memory at the same address is exported only once, until all users have called
 * vmm_unexport(). Until then the memory is not freed. Returns -EOPNOTSUPP if
 * the memory is of another kind, was made by another process, or was made
 * without the option of an fd.
 */
int vmm_export(CUdeviceptr address, struct vmm_export **ret, struct error *err);
void vmm_unexport(struct vmm_export *export); /* `export` may be NULL */

struct vmm_mapping {
	const struct device *device;
	CUdeviceptr address; /* 0 if nothing is mapped */
	uint64_t size;       /* bytes of the chunk */
	bool is_writable;
	/* Kept, because NCCL retains it by address. */
	CUmemGenericAllocationHandle handle;
};

#define VMM_MAPPING_NULL ((struct vmm_mapping){.address = 0})

/*
 * Maps the chunk of `fd` (borrowed) read-only or writable, in the device's
 * context, which it enters. The address is valid on `device`, in this process.
 * Returns -EINVAL if the fd is not device memory or has another size; the
 * broker has already checked that it is of that device (vmm_check()). The
 * driver may wait for work of this process. The access of a mapping is never
 * changed, because kernels that use the memory meanwhile would fault.
 */
int vmm_map(const struct device *device, int fd, uint64_t size,
	    bool is_writable, struct vmm_mapping *ret, struct error *err);

/* Unmaps the chunk, and releases the handle and the address. Device work that
 * uses it must be complete; the driver may wait for other work, too. It does
 * nothing if the address is 0. */
void vmm_unmap(struct vmm_mapping *mapping);
