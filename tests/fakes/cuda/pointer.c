/* Attributes of pointers. */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/reservation.h"
#include <stdbool.h>
#include <string.h>

static CUdevice device_of(const struct mapping *mapping)
{
	return mapping->memory ? device_ordinal(mapping->memory->head->device)
			       : mapping->context->device;
}

/* The range of VMM memory is the reservation, which may contain more
 * mappings. */
static void range_of(const struct mapping *mapping, uint64_t *ret_address,
		     uint64_t *ret_size)
{
	*ret_address = mapping->address;
	*ret_size = mapping->size;
	if (mapping->kind == MAPPING_VMM)
		reservation_find(mapping->address, ret_address, ret_size);
}

/* Returns the size of the attribute in bytes of `ret`, or 0 if there is no such
 * attribute. `mapping` may be NULL for an unknown pointer, whose attributes are
 * 0. */
static size_t look(const struct mapping *mapping, CUpointer_attribute attribute,
		   uint64_t *ret)
{
	uint64_t address = 0, size = 0;

	*ret = 0;
	if (mapping)
		range_of(mapping, &address, &size);
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		if (mapping && mapping->context)
			*ret = (uintptr_t)mapping->context->handle;
		return sizeof(CUcontext);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		if (mapping)
			*ret = mapping_is_host(mapping) ? CU_MEMORYTYPE_HOST
							: CU_MEMORYTYPE_DEVICE;
		return sizeof(unsigned int);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*ret = mapping ? mapping->buffer_id : 0;
		return sizeof(unsigned long long);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return sizeof(bool);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*ret = (uint64_t)(mapping ? device_of(mapping) : -2);
		return sizeof(int);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*ret = mapping && mapping->kind == MAPPING_ALLOC;
		return sizeof(bool);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*ret = address;
		return sizeof(CUdeviceptr);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*ret = size;
		return sizeof(size_t);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		if (mapping && mapping->kind == MAPPING_VMM)
			*ret = mapping->memory->head->handle_types;
		return sizeof(uint64_t);
	}
	return 0;
}

/* An unknown pointer is not an error here: all its attributes are 0, except the
 * device, which is CU_DEVICE_INVALID. */
CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attributes,
				void **values, CUdeviceptr address)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_PointerGetAttributes, &context);
	const struct mapping *mapping;
	uint64_t found;
	size_t size;

	if (r)
		return r;
	if (!attributes || !values)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	mapping = mapping_find(address);
	for (unsigned int i = 0; i < n; i++) {
		size = look(mapping, attributes[i], &found);
		if (!size)
			return call_end(CUDA_ERROR_INVALID_VALUE);
		memcpy(values[i], &found, size);
	}
	return call_end(CUDA_SUCCESS);
}
