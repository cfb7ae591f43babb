/* The start of the driver, its version, and the names of its errors. */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/cuda/guard.h"
#include "tests/fakes/cuda/ledger.h"
#include "tests/fakes/cuda/openings.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/queue.h"

const int fsdp_is_fake = 1;

static CUresult init(void)
{
	CUresult r;

	if (process.is_initialised)
		return CUDA_SUCCESS;
	if (!openings_are_allowed())
		return CUDA_ERROR_OPERATING_SYSTEM;
	r = device_open();
	if (r)
		return r;
	queue_open();
	ledger_open();
	guard_open();
	process_begin();
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	CUresult r = call_begin_bare(CALL_Init);

	if (r)
		return r;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	process_lock();
	return call_end(init());
}

CUresult cuDriverGetVersion(int *version)
{
	CUresult r = call_begin_bare(CALL_DriverGetVersion);

	if (r)
		return r;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = (int)settings()->driver_version;
	return CUDA_SUCCESS;
}
