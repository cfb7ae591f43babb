/* Memory as the real one makes it, registrations, and operations. */
#include "tests/fakes/nccl/comm.h"
#include "tests/fakes/nccl/sum.h"
#include <stdlib.h>

/* --- ncclMemAlloc() ------------------------------------------------------ */

static CUresult map(const CUmemAllocationProp *prop, CUdeviceptr *ret,
		    size_t size)
{
	const CUmemAccessDesc access = {prop->location,
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	CUresult r = cuMemCreate(&handle, size, prop, 0);

	if (r != CUDA_SUCCESS)
		return r;
	r = cuMemAddressReserve(&at, size, 0, 0, 0);
	if (r == CUDA_SUCCESS) {
		r = cuMemMap(at, size, 0, handle, 0);
		if (r == CUDA_SUCCESS)
			r = cuMemSetAccess(at, size, &access, 1);
		if (r == CUDA_SUCCESS)
			*ret = at;
		else
			cuMemAddressFree(at, size);
	}
	/* The mapping keeps it. */
	cuMemRelease(handle);
	return r;
}

ncclResult_t ncclMemAlloc(void **ret, size_t size)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes =
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
		.allocFlags.gpuDirectRDMACapable = 1,
	};
	ncclResult_t result = api_fault("MemAlloc");
	CUdeviceptr address;
	size_t unit;

	if (result != ncclSuccess)
		return result;
	if (cuCtxGetDevice(&prop.location.id) != CUDA_SUCCESS ||
	    cuMemGetAllocationGranularity(
		    &unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
		    CUDA_SUCCESS ||
	    map(&prop, &address, (size + unit - 1) / unit * unit) !=
		    CUDA_SUCCESS)
		return api_fail(ncclUnhandledCudaError,
				"no device memory for %zu bytes", size);
	*ret = (void *)(uintptr_t)address;
	return ncclSuccess;
}

ncclResult_t ncclMemFree(void *address)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)address, base;
	size_t size;

	if (cuMemGetAddressRange(&base, &size, at) != CUDA_SUCCESS ||
	    base != at || cuMemUnmap(at, size) != CUDA_SUCCESS ||
	    cuMemAddressFree(at, size) != CUDA_SUCCESS)
		return api_fail(ncclInvalidArgument,
				"MemFree: %p is not what ncclMemAlloc() gave",
				address);
	return ncclSuccess;
}

/* --- registrations ------------------------------------------------------- */

static ncclResult_t add(ncclComm_t comm, void *address, size_t size, void **ret)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)address, base;
	struct registration *registration;
	size_t range;

	if (cuMemGetAddressRange(&base, &range, at) != CUDA_SUCCESS ||
	    size == 0 || at + size > base + range)
		return api_fail(ncclInvalidArgument,
				"CommRegister: %zu bytes at %p are not within "
				"one chunk of device memory",
				size, address);
	registration = malloc(sizeof(*registration));
	if (!registration)
		return api_fail(ncclSystemError, "out of memory");
	*registration =
		(struct registration){comm->registrations, address, size};
	comm->registrations = registration;
	*ret = registration;
	return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *address, size_t size,
			      void **handle)
{
	ncclResult_t result = comm_enter_ready(comm, "CommRegister");
	CUcontext before;

	if (result != ncclSuccess)
		return result;
	cuCtxPushCurrent(comm->context);
	result = add(comm, address, size, handle);
	cuCtxPopCurrent(&before);
	comm_leave(comm);
	return result;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	ncclResult_t result = comm_enter(comm, "CommDeregister");
	struct registration **at;

	if (result != ncclSuccess)
		return result;
	at = &comm->registrations;
	while (*at && *at != handle)
		at = &(*at)->next;
	if (*at) {
		*at = (*at)->next;
		free(handle);
	} else {
		result = api_fail(ncclInvalidArgument,
				  "CommDeregister: no such handle");
	}
	comm_leave(comm);
	return result;
}

/* --- operations ---------------------------------------------------------- */

static ncclResult_t add_op(ncclComm_t comm, ncclRedOp_t *ret,
			   const void *scalar, ncclDataType_t type)
{
	int i = 0;

	while (i < COMM_MAX_OPS && comm->ops[i].is_used)
		i++;
	if (i == COMM_MAX_OPS)
		return api_fail(ncclInvalidUsage,
				"RedOpCreatePreMulSum: %d were made and not "
				"destroyed",
				COMM_MAX_OPS);
	comm->ops[i].is_used = true;
	comm->ops[i].type = type;
	comm->ops[i].factor = sum_load(type, scalar);
	*ret = (ncclRedOp_t)(ncclNumOps + i);
	return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *ret, void *scalar,
				      ncclDataType_t type,
				      ncclScalarResidence_t residence,
				      ncclComm_t comm)
{
	ncclResult_t result = comm_enter_ready(comm, "RedOpCreatePreMulSum");

	if (result != ncclSuccess)
		return result;
	if (residence != ncclScalarHostImmediate || sum_type_size(type) == 0)
		result = api_fail(ncclInvalidArgument,
				  "RedOpCreatePreMulSum: residence %d, type %d",
				  residence, type);
	else
		result = add_op(comm, ret, scalar, type);
	comm_leave(comm);
	return result;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	ncclResult_t result = comm_enter(comm, "RedOpDestroy");
	unsigned int i = op - ncclNumOps;

	if (result != ncclSuccess)
		return result;
	if (op >= ncclNumOps && i < COMM_MAX_OPS && comm->ops[i].is_used)
		comm->ops[i].is_used = false;
	else
		result = api_fail(ncclInvalidArgument,
				  "RedOpDestroy: no such operation");
	comm_leave(comm);
	return result;
}
