#include "tests/fakes/cuda/capture.h"
#include "tests/fakes/cuda/fake.h"
#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* captured in the mode that concerns every thread, or NULL */
static CUstream captured;
static bool is_lost;

static __thread CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* These are the potentially unsafe calls of the interface that we use. */
static bool is_unsafe(enum call call)
{
	switch (call) {
	case CALL_CtxSynchronize:
	case CALL_EventQuery:
	case CALL_EventSynchronize:
	case CALL_LibraryLoadData:
	case CALL_MemAlloc:
	case CALL_MemFree:
	case CALL_MemFreeHost:
	case CALL_MemHostAlloc:
	case CALL_MemHostRegister:
	case CALL_MemHostUnregister:
	case CALL_MemMap:
	case CALL_MemSetAccess:
	case CALL_MemUnmap:
	case CALL_MemcpyDtoH:
	case CALL_MemcpyHtoD:
	case CALL_StreamQuery:
	case CALL_StreamSynchronize:
		return true;
	default:
		return false;
	}
}

CUresult capture_check(enum call call)
{
	bool is_refused;

	if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL || !is_unsafe(call))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	is_refused = captured;
	is_lost |= is_refused;
	pthread_mutex_unlock(&lock);
	return is_refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
			  : CUDA_SUCCESS;
}

CUstreamCaptureStatus capture_status(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	pthread_mutex_lock(&lock);
	if (captured && captured == stream)
		status = is_lost ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
				 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	pthread_mutex_unlock(&lock);
	return status;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *change)
{
	CUstreamCaptureMode before = mode;
	CUresult r = call_begin_bare(CALL_ThreadExchangeStreamCaptureMode);

	if (r)
		return r;
	if (!change || *change > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	mode = *change;
	*change = before;
	return CUDA_SUCCESS;
}

void fake_capture_begin(CUstream stream)
{
	pthread_mutex_lock(&lock);
	captured = stream;
	is_lost = false;
	pthread_mutex_unlock(&lock);
}

CUresult fake_capture_end(void)
{
	CUresult result;

	pthread_mutex_lock(&lock);
	result = is_lost ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
	captured = NULL;
	pthread_mutex_unlock(&lock);
	return result;
}
