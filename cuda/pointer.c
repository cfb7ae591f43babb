/*
 * This file asks the driver about a pointer.
 *
 * The query needs a current context, which can be any. A process that has
 * device memory has a context, perhaps on another thread; so existing primary
 * contexts are tried, and no context is made.
 */
#include "cuda/pointer.h"
#include "cuda/context.h"
#include "proto/error.h"
#include <errno.h>

static bool is_active(const struct device *device)
{
	unsigned int flags;
	int active = 0;

	return cu.DevicePrimaryCtxGetState(device->ordinal, &flags, &active) ==
		       CUDA_SUCCESS &&
	       active;
}

static int enter_any(const struct device *devices, uint32_t n,
		     CUdeviceptr address, struct error *err)
{
	CUcontext current = NULL;

	if (cu.CtxGetCurrent(&current) == CUDA_SUCCESS && current)
		return context_enter_again(current, err);
	for (uint32_t i = 0; i < n; i++)
		if (is_active(&devices[i]))
			return context_enter(&devices[i], err);
	return error_set(err, -EINVAL,
			 "0x%llx is not device memory: this process does not "
			 "use a device",
			 address);
}

/* The driver's facts. Attributes that it does not know are 0. */
struct facts {
	unsigned int type; /* CUmemorytype */
	int ordinal;
	int is_managed, is_capable;
	unsigned long long buffer;
};

static int ask(CUdeviceptr address, struct facts *ret, struct error *err)
{
	CUpointer_attribute attributes[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		CU_POINTER_ATTRIBUTE_BUFFER_ID,
	};
	void *values[] = {&ret->type, &ret->ordinal, &ret->is_managed,
			  &ret->is_capable, &ret->buffer};
	CUresult result;

	*ret = (struct facts){0};
	result = cu.PointerGetAttributes(5, attributes, values, address);
	return driver_error(err, result, "cannot query the memory at 0x%llx",
			    address);
}

static int check_facts(CUdeviceptr address, const struct facts *facts,
		       struct error *err)
{
	if (facts->is_managed)
		return error_set(
			err, -EOPNOTSUPP,
			"0x%llx is managed memory, which cannot be shared; "
			"allocate from the broker, and copy it there",
			address);
	if (facts->type != CU_MEMORYTYPE_DEVICE)
		return error_set(err, -EINVAL,
				 "0x%llx is not device memory of this process",
				 address);
	return 0;
}

/* A context must be current. */
static int look(CUdeviceptr address, const struct device *devices, uint32_t n,
		struct pointer *ret, struct error *err)
{
	struct facts facts;
	size_t size;
	int r = ask(address, &facts, err);

	if (r == 0)
		r = check_facts(address, &facts, err);
	for (uint32_t i = 0; i < n && r == 0; i++)
		if (devices[i].ordinal == facts.ordinal)
			ret->device = &devices[i];
	if (r == 0 && !ret->device)
		return error_set(err, -ENODEV,
				 "0x%llx is memory of device %d, which is not "
				 "visible to this process",
				 address, facts.ordinal);
	if (r == 0)
		r = driver_error(
			err, cu.MemGetAddressRange(&ret->base, &size, address),
			"cannot find the allocation of 0x%llx", address);
	if (r < 0)
		return r;
	ret->size = size;
	ret->buffer = facts.buffer;
	ret->is_legacy = facts.is_capable;
	return 0;
}

int pointer_find(CUdeviceptr address, struct pointer *ret, struct error *err)
{
	struct pointer pointer = {.device = NULL};
	const struct device *devices;
	uint32_t n;
	int r = device_list(&devices, &n, err);

	if (r == 0)
		r = enter_any(devices, n, address, err);
	if (r < 0)
		return r;
	r = look(address, devices, n, &pointer, err);
	context_leave();
	if (r == 0)
		*ret = pointer;
	return r;
}
