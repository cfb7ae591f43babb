/* VMM allocations, which are made, shared and released without a context. */
#include "tests/fakes/cuda/allocation.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/handle.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct allocation *allocation_find(CUmemGenericAllocationHandle handle)
{
	struct allocation *allocation = handle_find(HANDLE_ALLOCATION, handle);

	return allocation && allocation->n_handles > 0 ? allocation : NULL;
}

void allocation_settle(struct allocation *allocation)
{
	if (allocation->n_handles > 0 || allocation->n_mappings > 0)
		return;
	handle_free(HANDLE_ALLOCATION, allocation->handle);
	memory_unref(allocation->memory);
	free(allocation);
}

/* Consumes the reference, also on failure. */
static CUresult make(struct memory *memory, CUmemGenericAllocationHandle *ret)
{
	struct allocation *allocation = calloc(1, sizeof(*allocation));

	if (!allocation) {
		memory_unref(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	allocation->memory = memory;
	allocation->n_handles = 1;
	allocation->handle = handle_new(HANDLE_ALLOCATION, allocation);
	*ret = allocation->handle;
	return CUDA_SUCCESS;
}

/* --- making -------------------------------------------------------------- */

static CUresult check_types(CUmemAllocationHandleType types)
{
	if (types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	return types && !device_has(FEATURE_POSIX_FD) ? CUDA_ERROR_NOT_SUPPORTED
						      : CUDA_SUCCESS;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!device_has(FEATURE_VMM))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    prop->win32HandleMetaData || prop->allocFlags.compressionType ||
	    prop->allocFlags.usage)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_is_valid(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->allocFlags.gpuDirectRDMACapable && !device_has(FEATURE_RDMA))
		return CUDA_ERROR_NOT_SUPPORTED;
	return check_types(prop->requestedHandleTypes);
}

static CUresult create(CUmemGenericAllocationHandle *ret, size_t size,
		       const CUmemAllocationProp *prop)
{
	struct memory *memory;
	struct ledger_head head = {
		.size = size,
		.device = device_number(prop->location.id),
		.kind = LEDGER_VMM,
		.handle_types = prop->requestedHandleTypes,
		.is_rdma = prop->allocFlags.gpuDirectRDMACapable,
	};
	CUresult r = device_check(prop->location.id);

	if (r == CUDA_SUCCESS)
		r = memory_create(&head, &memory);
	return r ? r : make(memory, ret);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUresult r = call_begin(CALL_MemCreate);

	if (r)
		return r;
	r = check_prop(prop);
	if (r)
		return call_end(r);
	if (!handle || size == 0 || size % DEVICE_GRANULARITY || flags)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	return call_end(create(handle, size, prop));
}

CUresult cuMemGetAllocationGranularity(size_t *granularity,
				       const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags which)
{
	CUresult r = call_begin(CALL_MemGetAllocationGranularity);

	if (r)
		return r;
	r = check_prop(prop);
	if (r)
		return call_end(r);
	if (!granularity || (which != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
			     which != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*granularity = DEVICE_GRANULARITY;
	return call_end(CUDA_SUCCESS);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult r = call_begin(CALL_MemRelease);
	struct allocation *allocation;

	if (r)
		return r;
	allocation = allocation_find(handle);
	if (!allocation)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	allocation->n_handles--;
	allocation_settle(allocation);
	return call_end(CUDA_SUCCESS);
}

/* --- sharing ------------------------------------------------------------- */

/* Each export has a file description of its own, so a program cannot see that
 * two exports are of the same memory. exec() does not close it, because the
 * driver does not promise that either. */
static CUresult export_fd(const struct memory *memory, int *ret)
{
	char path[40];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory->fd);
	fd = open(path, O_RDWR);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	ledger_lock_file(fd);
	*ret = fd;
	return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *shareable,
				      CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type,
				      unsigned long long flags)
{
	CUresult r = call_begin(CALL_MemExportToShareableHandle);
	struct allocation *allocation;

	if (r)
		return r;
	allocation = allocation_find(handle);
	if (!shareable || !allocation || flags ||
	    type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    allocation->memory->is_imported ||
	    !(allocation->memory->head->handle_types & type))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	return call_end(export_fd(allocation->memory, shareable));
}

/* Returns whether the allocation is of this kind, and of a device that this
 * process sees. */
static CUresult check_import(const struct memory *memory,
			     CUmemAllocationHandleType type)
{
	const struct ledger_head *head = memory->head;

	if (head->kind != LEDGER_VMM || !(head->handle_types & type))
		return CUDA_ERROR_INVALID_VALUE;
	if (device_ordinal(head->device) < 0)
		return CUDA_ERROR_NOT_SUPPORTED;
	return device_check(device_ordinal(head->device));
}

static CUresult import(CUmemGenericAllocationHandle *ret, void *shareable,
		       CUmemAllocationHandleType type)
{
	int fd = fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 3);
	struct memory *memory;
	CUresult r;

	if (fd < 0)
		return errno == EBADF ? CUDA_ERROR_INVALID_VALUE
				      : CUDA_ERROR_OPERATING_SYSTEM;
	r = memory_import(fd, &memory);
	if (r)
		return r;
	r = check_import(memory, type);
	if (r) {
		memory_unref(memory);
		return r;
	}
	return make(memory, ret);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
					void *shareable,
					CUmemAllocationHandleType type)
{
	CUresult r = call_begin(CALL_MemImportFromShareableHandle);

	if (r)
		return r;
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (!device_has(FEATURE_VMM))
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	return call_end(import(handle, shareable, type));
}

/* --- questions ----------------------------------------------------------- */

CUresult
cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
				       CUmemGenericAllocationHandle handle)
{
	CUresult r = call_begin(CALL_MemGetAllocationPropertiesFromHandle);
	struct allocation *allocation;
	const struct ledger_head *head;

	if (r)
		return r;
	allocation = allocation_find(handle);
	if (!prop || !allocation)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	head = allocation->memory->head;
	memset(prop, 0, sizeof(*prop));
	prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
	/* A process that imports memory does not ask for handle types. */
	if (!allocation->memory->is_imported)
		prop->requestedHandleTypes = head->handle_types;
	prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop->location.id = device_ordinal(head->device);
	prop->allocFlags.gpuDirectRDMACapable = (unsigned char)head->is_rdma;
	return call_end(CUDA_SUCCESS);
}

/* Returns the handle with which the memory was mapped, even if that was
 * released. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
				     void *address)
{
	CUresult r = call_begin(CALL_MemRetainAllocationHandle);
	struct mapping *mapping;

	if (r)
		return r;
	mapping = mapping_find((uintptr_t)address);
	if (!handle || !mapping || mapping->kind != MAPPING_VMM)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	mapping->allocation->n_handles++;
	*handle = mapping->allocation->handle;
	return call_end(CUDA_SUCCESS);
}
