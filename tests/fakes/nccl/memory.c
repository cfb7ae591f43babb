/* Registrations, and operations. */
#include "tests/fakes/nccl/comm.h"
#include "tests/fakes/nccl/sum.h"
#include <stdlib.h>

/* --- registrations ------------------------------------------------------- */

static atomic_uint n_made, n_left; /* counts for this process */

void fake_nccl_registrations(unsigned int *ret_made, unsigned int *ret_left)
{
	*ret_made = atomic_load(&n_made);
	*ret_left = atomic_load(&n_left);
}

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
	atomic_fetch_add(&n_made, 1);
	atomic_fetch_add(&n_left, 1);
	*ret = registration;
	return ncclSuccess;
}

/* Removes the registration from the list, and frees it. */
static void drop(struct registration **at)
{
	struct registration *registration = *at;

	*at = registration->next;
	atomic_fetch_sub(&n_left, 1);
	free(registration);
}

void registrations_drop(ncclComm_t comm)
{
	while (comm->registrations)
		drop(&comm->registrations);
}

/* The real library continues to use its record of the memory. */
static ncclResult_t check_mapped(ncclComm_t comm,
				 const struct registration *registration)
{
	CUdeviceptr base;
	CUcontext before;
	CUresult r;
	size_t range;

	cuCtxPushCurrent(comm->context);
	r = cuMemGetAddressRange(&base, &range,
				 (CUdeviceptr)(uintptr_t)registration->address);
	cuCtxPopCurrent(&before);
	if (r == CUDA_SUCCESS)
		return ncclSuccess;
	return api_fail(ncclInvalidUsage,
			"CommDeregister: what was registered at %p is not "
			"mapped any more",
			registration->address);
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
		result = check_mapped(comm, *at);
		drop(at);
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
