#include "cuda/nccl_memory.h"
#include "cuda/context.h"
#include "cuda/nccl.h"
#include "proto/error.h"
#include <errno.h>

/* The address retains the allocation that is mapped there. */
static int export(CUdeviceptr address, int *ret_fd, struct error *err)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = cu.MemRetainAllocationHandle(
		&handle, (void *)(uintptr_t)address);
	int r;

	if (result != CUDA_SUCCESS)
		return error_set(err, -EOPNOTSUPP,
				 "NCCL's memory is not made by VMM on this "
				 "device, so that it cannot be shared; use the "
				 "default allocation");
	r = driver_error(err,
			 cu.MemExportToShareableHandle(
				 ret_fd, handle,
				 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
			 "export NCCL's memory");
	cu.MemRelease(handle);
	return r;
}

/* With the context entered. */
static int create(uint64_t size, struct nccl_memory *ret, int *ret_fd,
		  struct error *err)
{
	CUdeviceptr base;
	size_t whole;
	void *memory;
	int fd, r = nccl_error(err, nccl.MemAlloc(&memory, size),
			       "make %llu bytes of NCCL's memory",
			       (unsigned long long)size);

	if (r < 0)
		return r;
	base = (CUdeviceptr)(uintptr_t)memory;
	r = driver_error(err, cu.MemGetAddressRange(&base, &whole, base),
			 "find the size of NCCL's memory");
	if (r == 0)
		r = export(base, &fd, err);
	if (r < 0) {
		nccl.MemFree(memory);
		return r;
	}
	*ret = (struct nccl_memory){base, whole};
	*ret_fd = fd;
	return 0;
}

int nccl_memory_create(const struct device *device, uint64_t size,
		       struct nccl_memory *ret, int *ret_fd, struct error *err)
{
	int r = nccl_load(err);

	if (r == 0)
		r = context_enter(device, err);
	if (r < 0)
		return r;
	r = create(size, ret, ret_fd, err);
	context_leave();
	return r;
}

void nccl_memory_free(const struct device *device, struct nccl_memory *memory)
{
	if (memory->address == 0 || context_enter(device, NULL) < 0)
		return;
	nccl.MemFree((void *)(uintptr_t)memory->address);
	context_leave();
	*memory = NCCL_MEMORY_NULL;
}
