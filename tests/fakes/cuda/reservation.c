/*
 * VMM's addresses, which are reserved, mapped and made accessible. As the
 * interface says, this does not need a context.
 */
#include "tests/fakes/cuda/reservation.h"
#include "tests/fakes/cuda/address.h"
#include "tests/fakes/cuda/allocation.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/guard.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>
#include <sys/mman.h>

struct reservation {
	struct reservation *next;
	uint64_t address, size;
};

static struct reservation *reservations;

/* Returns the link to the reservation. */
static struct reservation **find(uint64_t address)
{
	struct reservation **at = &reservations;

	while (*at && address - (*at)->address >= (*at)->size)
		at = &(*at)->next;
	return at;
}

bool reservation_find(uint64_t address, uint64_t *ret_address,
		      uint64_t *ret_size)
{
	const struct reservation *reservation = *find(address);

	if (!reservation)
		return false;
	*ret_address = reservation->address;
	*ret_size = reservation->size;
	return true;
}

unsigned int reservation_count(void)
{
	unsigned int n = 0;

	for (struct reservation *at = reservations; at; at = at->next)
		n++;
	return n;
}

/* Called wherever a driver may wait for work: see
 * stream_synchronize_maybe(). */
static CUresult synchronize_maybe(void)
{
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < device_count() && r == CUDA_SUCCESS; i++) {
		if (context_of(i)->handle)
			r = stream_synchronize_maybe(context_of(i));
	}
	return r;
}

/* --- reserving ----------------------------------------------------------- */

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size,
			     size_t alignment, CUdeviceptr hint,
			     unsigned long long flags)
{
	CUresult r = call_begin(CALL_MemAddressReserve);
	struct reservation *reservation;

	if (r)
		return r;
	(void)hint; /* the address is only a hint, which a driver may ignore */
	if (!device_has(FEATURE_VMM))
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	if (!address || size == 0 || size % DEVICE_GRANULARITY || flags ||
	    (alignment & (alignment - 1)))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (alignment < DEVICE_GRANULARITY)
		alignment = DEVICE_GRANULARITY;
	reservation = calloc(1, sizeof(*reservation));
	if (!reservation)
		return call_end(CUDA_ERROR_OUT_OF_MEMORY);
	reservation->size = size;
	reservation->address = address_reserve(size, alignment);
	if (!reservation->address) {
		free(reservation);
		return call_end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	reservation->next = reservations;
	reservations = reservation;
	*address = reservation->address;
	return call_end(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	CUresult r = call_begin(CALL_MemAddressFree);
	struct reservation **at, *reservation;

	if (r)
		return r;
	at = find(address);
	reservation = *at;
	if (!reservation || reservation->address != address ||
	    reservation->size != size || mapping_overlaps(address, size))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*at = reservation->next;
	free(reservation);
	address_release(address, size);
	return call_end(CUDA_SUCCESS);
}

/* --- mapping ------------------------------------------------------------- */

static bool is_reserved(uint64_t address, uint64_t size)
{
	uint64_t start, length;

	return reservation_find(address, &start, &length) &&
	       size <= length - (address - start);
}

static CUresult map(uint64_t address, uint64_t size,
		    struct allocation *allocation)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mapping = (struct mapping){
		.address = address,
		.size = size,
		.span = size,
		.kind = MAPPING_VMM,
		.memory = allocation->memory,
		.allocation = allocation,
	};
	if (address_back(address, size, allocation->memory->fd, LEDGER_HEAD,
			 PROT_NONE) < 0 ||
	    !mapping_add(mapping)) {
		address_clear(address, size);
		free(mapping);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mapping_note_change(mapping);
	memory_ref(mapping->memory);
	allocation->n_mappings++;
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult r = call_begin(CALL_MemMap);
	struct allocation *allocation;

	if (r)
		return r;
	allocation = allocation_find(handle);
	if (!allocation || flags || size == 0 || size % DEVICE_GRANULARITY ||
	    address % DEVICE_GRANULARITY || !is_reserved(address, size) ||
	    mapping_overlaps(address, size))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	/* Memory is only mapped as a whole. */
	if (offset || size != allocation->memory->size)
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	return call_end(map(address, size, allocation));
}

/* Returns whether the range consists of whole mappings of VMM, without a
 * gap. */
static bool is_whole(uint64_t address, uint64_t size)
{
	const struct mapping *mapping;

	while (size > 0) {
		mapping = mapping_find(address);
		if (!mapping || mapping->kind != MAPPING_VMM ||
		    mapping->address != address || mapping->size > size)
			return false;
		address += mapping->size;
		size -= mapping->size;
	}
	return true;
}

static uint64_t unmap(struct mapping *mapping)
{
	struct allocation *allocation = mapping->allocation;
	uint64_t size = mapping->size;

	address_clear(mapping->address, mapping->size);
	memory_unref(mapping->memory);
	mapping_remove(mapping);
	allocation->n_mappings--;
	allocation_settle(allocation);
	return size;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	CUresult r = call_begin(CALL_MemUnmap);
	uint64_t end = address + size;

	if (r)
		return r;
	/* this is first, because it releases the lock */
	r = synchronize_maybe();
	if (r == CUDA_SUCCESS && (size == 0 || !is_whole(address, size)))
		r = CUDA_ERROR_INVALID_VALUE;
	while (r == CUDA_SUCCESS && address < end)
		address += unmap(mapping_find(address));
	return call_end(r);
}

/* --- access -------------------------------------------------------------- */

static CUresult check_access(const CUmemAccessDesc *access)
{
	if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!device_is_valid(access->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
	    access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
	    access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* The range has one protection for all devices. Copies check each device's
 * access. */
static int protect(const struct mapping *mapping)
{
	int all = 0;
	int protection = PROT_NONE;

	for (int i = 0; i < FAKE_MAX_DEVICES; i++)
		all |= mapping->access[i];
	if (all == CU_MEM_ACCESS_FLAGS_PROT_READ)
		protection = PROT_READ;
	else if (all == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		protection = PROT_READ | PROT_WRITE;
	return guard_protect((void *)(uintptr_t)mapping->address, mapping->size,
			     protection);
}

static bool has_access(const struct mapping *mapping)
{
	for (int i = 0; i < FAKE_MAX_DEVICES; i++)
		if (mapping->access[i])
			return true;
	return false;
}

/* If there was access before, the driver unmaps the pages and maps them
 * again. */
static CUresult set_access(uint64_t address, uint64_t size,
			   const CUmemAccessDesc *access)
{
	uint64_t end = address + size;
	struct mapping *mapping;

	for (; address < end; address += mapping->size) {
		mapping = mapping_find(address);
		if (has_access(mapping))
			mapping_note_change(mapping);
		mapping->access[access->location.id] = (uint8_t)access->flags;
		if (protect(mapping) < 0)
			return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size,
			const CUmemAccessDesc *access, size_t n)
{
	CUresult r = call_begin(CALL_MemSetAccess);

	if (r)
		return r;
	r = synchronize_maybe();
	if (r == CUDA_SUCCESS &&
	    (size == 0 || !access || n == 0 || !is_whole(address, size)))
		r = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++)
		r = check_access(&access[i]);
	for (size_t i = 0; i < n && r == CUDA_SUCCESS; i++)
		r = set_access(address, size, &access[i]);
	return call_end(r);
}
