/*
 * Host memory that is allocated here or registered by the program. Devices see
 * registered memory at another address than the CPU (the interface allows that
 * if CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM is 0). That address is a second
 * mapping of the same pages, if the kernel can make one. So the memory is
 * pinned, as with a driver, and if a program passes the wrong one of the two
 * addresses to a device, the call is refused.
 */
#include "tests/fakes/cuda/host.h"
#include "tests/fakes/cuda/address.h"
#include "tests/fakes/cuda/alloc.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/stream.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALLOC_FLAGS (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)
#define REGISTER_FLAGS                                                         \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |          \
	 CU_MEMHOSTREGISTER_READ_ONLY)

/* Returns the address rounded down to a whole page. */
static uint64_t page_of(uint64_t address)
{
	return address & ~(address_round(1) - 1);
}

static void free_pages(struct mapping *mapping)
{
	address_release(page_of(mapping->address), mapping->span);
	mapping_remove(mapping);
}

/* Removes the mapping, and its alias if it has one. */
static void unregister(struct mapping *mapping)
{
	if (mapping->alias)
		free_pages(mapping->alias);
	mapping_remove(mapping);
}

void host_free_all(struct context *context)
{
	struct mapping *mapping = mapping_next(NULL);

	while (mapping) {
		if (mapping->context == context &&
		    mapping->kind == MAPPING_HOST) {
			free_pages(mapping);
		} else if (mapping->context == context &&
			   mapping->kind == MAPPING_REGISTERED) {
			unregister(mapping);
		} else {
			mapping = mapping_next(mapping);
			continue;
		}
		/* two mappings may have been removed */
		mapping = mapping_next(NULL);
	}
}

/* --- allocated ----------------------------------------------------------- */

static CUresult allocate(struct context *context, size_t size, void **ret)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));
	uint64_t span = address_round(size);
	void *at;

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	at = mmap(NULL, span, PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*mapping = (struct mapping){
		.address = (uintptr_t)at,
		.size = size,
		.span = span,
		.kind = MAPPING_HOST,
		.context = context,
		/* with unified addresses all host memory is portable */
		.is_portable = true,
	};
	memset(mapping->access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	       sizeof(mapping->access));
	if (!mapping_add(mapping)) {
		munmap(at, span);
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret = at;
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pages, size_t size, unsigned int flags)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_MemHostAlloc, &context);

	if (r)
		return r;
	if (!pages || size == 0 || flags & ~(unsigned int)ALLOC_FLAGS)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	r = stream_synchronize_maybe(context);
	if (r == CUDA_SUCCESS)
		r = allocate(context, size, pages);
	return call_end(r);
}

CUresult cuMemFreeHost(void *pages)
{
	struct mapping *mapping;
	CUresult r = alloc_begin_free(CALL_MemFreeHost, (uintptr_t)pages,
				      MAPPING_HOST, &mapping);

	if (r)
		return r;
	free_pages(mapping);
	return call_end(CUDA_SUCCESS);
}

/* --- registered ---------------------------------------------------------- */

/* Returns whether the program itself can read, or write, all of it. */
static bool can_access(uint64_t address, uint64_t size, bool is_write)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long long start, end;
	char line[512], rights[5];
	uint64_t last = address + size;

	if (!maps)
		return false;
	/* lines are in ascending order */
	while (address < last && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%llx-%llx %4s", &start, &end, rights) != 3 ||
		    end <= address)
			continue;
		if (start > address || rights[0] != 'r' ||
		    (is_write && rights[1] != 'w'))
			break;
		address = end;
	}
	fclose(maps);
	return address >= last;
}

static struct mapping *new_mapping(struct context *context, uint64_t size,
				   unsigned int flags)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));
	CUmemAccess_flags access = flags & CU_MEMHOSTREGISTER_READ_ONLY
					   ? CU_MEM_ACCESS_FLAGS_PROT_READ
					   : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

	if (!mapping)
		return NULL;
	mapping->kind = MAPPING_REGISTERED;
	mapping->size = size;
	mapping->context = context;
	mapping->is_portable = flags & CU_MEMHOSTREGISTER_PORTABLE;
	if (mapping->is_portable)
		memset(mapping->access, (int)access, sizeof(mapping->access));
	else
		mapping->access[context->device] = (uint8_t)access;
	return mapping;
}

/* Returns the device's address for `host`, or NULL if devices have no other
 * address. */
static struct mapping *make_alias(const struct mapping *host,
				  unsigned int flags)
{
	uint64_t first = page_of(host->address);
	uint64_t span = address_round(host->address + host->size - first);
	int protection = flags & CU_MEMHOSTREGISTER_READ_ONLY
				 ? PROT_READ
				 : PROT_READ | PROT_WRITE;
	struct mapping *alias = new_mapping(host->context, host->size, flags);
	uint64_t base;

	if (!alias)
		return NULL;
	alias->kind = MAPPING_ALIAS;
	alias->span = span;
	base = address_reserve(span, DEVICE_GRANULARITY);
	alias->address = base + (host->address - first);
	if (base &&
	    address_alias(base, (void *)(uintptr_t)first, span, protection) ==
		    0 &&
	    mapping_add(alias))
		return alias;
	if (base)
		address_release(base, span);
	free(alias);
	return NULL;
}

static CUresult register_pages(struct context *context, void *pages,
			       size_t size, unsigned int flags)
{
	struct mapping *mapping = new_mapping(context, size, flags);

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->address = (uintptr_t)pages;
	if (!mapping_add(mapping)) {
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!(flags & CU_MEMHOSTREGISTER_DEVICEMAP))
		return CUDA_SUCCESS;
	mapping->alias = make_alias(mapping, flags);
	mapping->is_unified = !mapping->alias;
	return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *pages, size_t size, unsigned int flags)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_MemHostRegister, &context);

	if (r)
		return r;
	if (!pages || size == 0 || flags & ~(unsigned int)REGISTER_FLAGS)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if ((flags & CU_MEMHOSTREGISTER_READ_ONLY) &&
	    !device_has(FEATURE_READONLY_REGISTER))
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	if (mapping_overlaps((uintptr_t)pages, size))
		return call_end(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	if (!can_access((uintptr_t)pages, size,
			!(flags & CU_MEMHOSTREGISTER_READ_ONLY)))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	return call_end(register_pages(context, pages, size, flags));
}

CUresult cuMemHostUnregister(void *pages)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_MemHostUnregister, &context);
	struct mapping *mapping;

	if (r)
		return r;
	r = stream_synchronize_maybe(context);
	if (r)
		return call_end(r);
	mapping = mapping_find((uintptr_t)pages);
	if (!mapping || mapping->kind != MAPPING_REGISTERED)
		return call_end(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	if (mapping->address != (uintptr_t)pages)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	unregister(mapping);
	return call_end(CUDA_SUCCESS);
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *pages,
				   unsigned int flags)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_MemHostGetDevicePointer, &context);
	const struct mapping *mapping, *device;

	if (r)
		return r;
	mapping = mapping_find((uintptr_t)pages);
	if (!address || flags || !mapping ||
	    (mapping->kind != MAPPING_HOST &&
	     mapping->kind != MAPPING_REGISTERED) ||
	    (mapping->context != context && !mapping->is_portable))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	device = mapping_is_device(mapping) ? mapping : mapping->alias;
	if (!device) /* it was registered without DEVICEMAP */
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*address = device->address + ((uintptr_t)pages - mapping->address);
	return call_end(CUDA_SUCCESS);
}
