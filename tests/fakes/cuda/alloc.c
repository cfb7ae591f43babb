/*
 * Plain device memory. The address that was freed last is used again for the
 * same size, as a driver's allocator does. This shows the mistake of a program
 * that keeps a stale address (or its legacy handle, which then has the same
 * bytes).
 */
#include "tests/fakes/cuda/alloc.h"
#include "tests/fakes/cuda/address.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/guard.h"
#include "tests/fakes/cuda/ipc.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POISON 0xdb
#define N_FREE 16

static struct {
	uint64_t address, span;
	/* the range that was freed last is the last; unused entries are 0 */
} free_ranges[N_FREE];

static uint64_t take_range(uint64_t span)
{
	uint64_t address;

	for (int i = N_FREE - 1; i >= 0; i--) {
		if (free_ranges[i].span != span)
			continue;
		address = free_ranges[i].address;
		memmove(&free_ranges[1], &free_ranges[0],
			(size_t)i * sizeof(*free_ranges));
		free_ranges[0].span = 0;
		return address;
	}
	return address_reserve(span, DEVICE_GRANULARITY);
}

static void put_range(uint64_t address, uint64_t span)
{
	address_clear(address, span);
	if (free_ranges[0].span)
		address_release(free_ranges[0].address, free_ranges[0].span);
	memmove(&free_ranges[0], &free_ranges[1],
		(N_FREE - 1) * sizeof(*free_ranges));
	free_ranges[N_FREE - 1].address = address;
	free_ranges[N_FREE - 1].span = span;
}

/* A process that still has the memory open, which is forbidden, sees that it
 * was freed. */
static void poison(struct mapping *mapping)
{
	guard_allow(true);
	memset((void *)(uintptr_t)mapping->address, POISON, mapping->size);
	guard_allow(false);
	mapping->memory->head->is_freed = true;
	ipc_forget(mapping);
}

CUresult alloc_map(struct context *context, struct memory *memory,
		   uint64_t address, struct mapping **ret)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mapping->address = address;
	mapping->size = memory->size;
	mapping->span = address_round(memory->size);
	mapping->kind = memory->is_imported ? MAPPING_IPC : MAPPING_ALLOC;
	mapping->memory = memory;
	mapping->context = context;
	memset(mapping->access, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	       sizeof(mapping->access));
	if (address_back(address, mapping->span, memory->fd, LEDGER_HEAD,
			 PROT_READ | PROT_WRITE) < 0 ||
	    !mapping_add(mapping)) {
		address_clear(address, mapping->span);
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ret = mapping;
	return CUDA_SUCCESS;
}

void alloc_unmap(struct mapping *mapping)
{
	if (mapping->is_exported)
		poison(mapping);
	if (mapping->kind == MAPPING_ALLOC) {
		put_range(mapping->address, mapping->span);
	} else {
		address_release(mapping->address, mapping->span);
	}
	memory_unref(mapping->memory);
	mapping_remove(mapping);
}

void alloc_free_all(struct context *context)
{
	struct mapping *mapping, *next;

	for (mapping = mapping_next(NULL); mapping; mapping = next) {
		next = mapping_next(mapping);
		if (mapping->context == context && mapping->memory)
			alloc_unmap(mapping);
	}
}

static CUresult allocate(struct context *context, size_t size, CUdeviceptr *ret)
{
	struct mapping *mapping;
	struct memory *memory;
	struct ledger_head head = {
		.size = size,
		.device = device_number(context->device),
		.kind = LEDGER_ALLOC,
	};
	uint64_t span = address_round(size);
	CUresult r;

	r = memory_create(&head, &memory);
	if (r)
		return r;
	*ret = take_range(span);
	r = *ret ? alloc_map(context, memory, *ret, &mapping)
		 : CUDA_ERROR_OUT_OF_MEMORY;
	if (r) {
		memory_unref(memory);
		if (*ret)
			put_range(*ret, span);
	}
	return r;
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t size)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_MemAlloc, &context);
	CUdeviceptr at;

	if (r)
		return r;
	if (!address || size == 0)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (size > settings()->memory_mb << 20)
		return call_end(CUDA_ERROR_OUT_OF_MEMORY);
	r = stream_synchronize_maybe(context);
	if (r == CUDA_SUCCESS)
		r = allocate(context, size, &at);
	if (r == CUDA_SUCCESS)
		*address = at;
	return call_end(r);
}

CUresult alloc_begin_free(enum call call, uint64_t address,
			  enum mapping_kind kind, struct mapping **ret)
{
	struct context *context;
	CUresult r = call_begin_context(call, &context);
	struct mapping *mapping;

	if (r)
		return r;
	r = stream_synchronize_maybe(context);
	if (r)
		return call_end(r);
	mapping = mapping_find(address);
	if (!mapping || mapping->kind != kind || mapping->address != address)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*ret = mapping;
	return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address)
{
	struct mapping *mapping;
	CUresult r = alloc_begin_free(CALL_MemFree, address, MAPPING_ALLOC,
				      &mapping);

	if (r)
		return r;
	alloc_unmap(mapping);
	return call_end(CUDA_SUCCESS);
}

/* For VMM's memory it is the range of one mapping; for cuMemAlloc()'s, the
 * requested size. */
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size,
			      CUdeviceptr address)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_MemGetAddressRange, &context);
	const struct mapping *mapping;

	if (r)
		return r;
	mapping = mapping_find(address);
	if (!mapping || !mapping_is_device(mapping))
		return call_end(CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = mapping->address;
	if (size)
		*size = mapping->size;
	return call_end(CUDA_SUCCESS);
}
