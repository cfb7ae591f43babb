/* Names and texts of results. The names are those of the interface, the texts
 * are ours. */
#include "tests/fakes/cuda/call.h"
#include <stddef.h>

static const struct {
	CUresult result;
	const char *name, *text;
} rows[] = {
#define ROW(result, text)                                                      \
	{                                                                      \
		result, #result, text                                          \
	}
	ROW(CUDA_SUCCESS, "no error"),
	ROW(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
	ROW(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
	ROW(CUDA_ERROR_NOT_INITIALIZED, "not initialised"),
	ROW(CUDA_ERROR_DEINITIALIZED, "the driver is shutting down"),
	ROW(CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is taken"),
	ROW(CUDA_ERROR_NO_DEVICE, "there is no device"),
	ROW(CUDA_ERROR_INVALID_DEVICE, "no such device"),
	ROW(CUDA_ERROR_INVALID_CONTEXT, "invalid context"),
	ROW(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error"),
	ROW(CUDA_ERROR_CONTAINED, "contained error"),
	ROW(CUDA_ERROR_OPERATING_SYSTEM, "a system call failed"),
	ROW(CUDA_ERROR_INVALID_HANDLE, "invalid handle"),
	ROW(CUDA_ERROR_NOT_FOUND, "not found"),
	ROW(CUDA_ERROR_NOT_READY, "not done yet"),
	ROW(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal address"),
	ROW(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context is destroyed"),
	ROW(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
	    "host memory is registered already"),
	ROW(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
	    "host memory is not registered"),
	ROW(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed"),
	ROW(CUDA_ERROR_NOT_PERMITTED, "not permitted"),
	ROW(CUDA_ERROR_NOT_SUPPORTED, "not supported"),
	ROW(CUDA_ERROR_UNKNOWN, "unknown error"),
#undef ROW
};

static int find(CUresult result)
{
	int n = sizeof(rows) / sizeof(*rows);

	for (int i = 0; i < n; i++) {
		if (rows[i].result == result)
			return i;
	}
	return -1;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	CUresult r = call_begin_bare(CALL_GetErrorName);
	int row = find(error);

	if (r)
		return r;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = row < 0 ? NULL : rows[row].name;
	return row < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	CUresult r = call_begin_bare(CALL_GetErrorString);
	int row = find(error);

	if (r)
		return r;
	if (!text)
		return CUDA_ERROR_INVALID_VALUE;
	*text = row < 0 ? NULL : rows[row].text;
	return row < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
