/*
 * The primary context of each device is kept once it is retained.
 */
#include "cuda/context.h"

#include "cuda/bounded.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

/* By ordinal; NULL if it is not retained yet. Each entry is written once, under
 * the lock. */
static _Atomic(CUcontext) contexts[DEVICE_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The compute mode explains a failure better than the driver's error. */
static int say_refused(const struct device *device, CUresult result,
		       struct error *err)
{
	char text[DEVICE_TEXT_SIZE];
	int r;

	if (result == CUDA_ERROR_DEVICE_UNAVAILABLE) {
		r = device_check_shareable(device, err);
		if (r < 0)
			return r;
	}
	device_format(&device->uuid, text);
	return driver_error(err, result, "cannot make a context on device %s",
			    text);
}

/* Loads are relaxed: a context has no contents besides its handle. */
static int retain(const struct device *device, CUcontext *ret,
		  struct error *err)
{
	_Atomic(CUcontext) *context = &contexts[device->ordinal];
	CUresult result = CUDA_SUCCESS;

	*ret = atomic_load_explicit(context, memory_order_relaxed);
	if (*ret)
		return 0;
	pthread_mutex_lock(&lock);
	*ret = atomic_load_explicit(context, memory_order_relaxed);
	if (!*ret)
		result = cu.DevicePrimaryCtxRetain(ret, device->ordinal);
	if (result == CUDA_SUCCESS)
		atomic_store_explicit(context, *ret, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
	return result == CUDA_SUCCESS ? 0 : say_refused(device, result, err);
}

/* If the program captures a graph meanwhile, our calls must neither become part
 * of it nor invalidate it, as many calls do in the other capture modes. These
 * functions can be nested: only the outermost pair changes the mode. */
static _Thread_local struct {
	unsigned int depth;
	CUstreamCaptureMode before;
} capture;

static void relax_capture(void)
{
	if (capture.depth++ > 0)
		return;
	capture.before = CU_STREAM_CAPTURE_MODE_RELAXED;
	(void)cu.ThreadExchangeStreamCaptureMode(&capture.before);
}

static void restore_capture(void)
{
	assert(capture.depth > 0);
	if (--capture.depth == 0)
		(void)cu.ThreadExchangeStreamCaptureMode(&capture.before);
}

static void pop(void)
{
	CUcontext context;

	(void)cu.CtxPopCurrent(&context);
}

int context_enter(const struct device *device, struct error *err)
{
	CUcontext context;
	int r;

	relax_capture();
	r = retain(device, &context, err);
	if (r == 0)
		r = driver_error(err, cu.CtxPushCurrent(context),
				 "cannot enter the context of %s",
				 device->name);
	if (r < 0)
		restore_capture();
	return r;
}

int context_enter_again(CUcontext context, struct error *err)
{
	int r;

	relax_capture();
	r = driver_error(err, cu.CtxPushCurrent(context),
			 "cannot enter the current context");
	if (r < 0)
		restore_capture();
	return r;
}

void context_leave(void)
{
	pop();
	restore_capture();
}

/* --- waiting for a device ------------------------------------------------ */

static void synchronize(void *data)
{
	const struct device *device = data;

	if (context_enter(device, NULL) < 0)
		return;
	(void)cu.CtxSynchronize();
	context_leave();
}

int context_synchronize(const struct device *device, int32_t timeout_ms,
			struct error *err)
{
	char text[DEVICE_TEXT_SIZE];
	struct bounded *call;
	int r;

	r = bounded_start(synchronize, (void *)device, &call, err);
	if (r < 0)
		return error_wrap(err, r, "cannot wait for %s", device->name);
	if (bounded_await(call, bounded_until((uint32_t)timeout_ms)))
		return 0;
	bounded_leave(call);
	device_format(&device->uuid, text);
	return error_set(
		err, -ETIMEDOUT,
		"%s has not finished the work of this process within %d ms",
		text, timeout_ms);
}

/* --- streams ------------------------------------------------------------- */

/* Returns the device of a context that is not ours, or NULL if it is
 * unknown. */
static const struct device *device_of(CUcontext context)
{
	const struct device *devices;
	uint32_t n;
	CUdevice ordinal;
	CUresult result;

	if (device_list(&devices, &n, NULL) < 0 ||
	    cu.CtxPushCurrent(context) != CUDA_SUCCESS)
		return NULL;
	result = cu.CtxGetDevice(&ordinal);
	pop();
	for (uint32_t i = 0; result == CUDA_SUCCESS && i < n; i++)
		if (devices[i].ordinal == ordinal)
			return &devices[i];
	return NULL;
}

static int say_foreign(const struct device *device, CUcontext context,
		       struct error *err)
{
	const struct device *other = device_of(context);
	char wanted[DEVICE_TEXT_SIZE], text[DEVICE_TEXT_SIZE] = "(unknown)";

	device_format(&device->uuid, wanted);
	if (other)
		device_format(&other->uuid, text);
	return error_set(err, -EINVAL,
			 "the stream is of another context, on device %s; the "
			 "tensor needs a stream of the primary context of "
			 "device %s (cuDevicePrimaryCtxRetain)",
			 text, wanted);
}

/* The driver's facts about a stream. They are read with the device's context
 * entered, since the two default streams belong to the current context. */
struct stream_facts {
	CUcontext own, context;
	CUstreamCaptureStatus capture;
};

static CUresult ask_stream(CUstream stream, struct stream_facts *ret)
{
	CUresult result = cu.CtxGetCurrent(&ret->own);

	if (result == CUDA_SUCCESS)
		result = cu.StreamGetCtx(stream, &ret->context);
	if (result == CUDA_SUCCESS)
		result = cu.StreamIsCapturing(stream, &ret->capture);
	return result;
}

int context_check_stream(const struct device *device, CUstream stream,
			 struct error *err)
{
	struct stream_facts facts = {0};
	CUresult result;
	int r = context_enter(device, err);

	if (r < 0)
		return r;
	result = ask_stream(stream, &facts);
	context_leave();
	if (result != CUDA_SUCCESS)
		return driver_error(err, result,
				    "cannot find the context of stream %p",
				    (void *)stream);
	if (facts.context != facts.own)
		return say_foreign(device, facts.context, err);
	/* A graph would write the same value each time it runs, but timelines
	 * may only grow. */
	if (facts.capture != CU_STREAM_CAPTURE_STATUS_NONE)
		return error_set(
			err, -EINVAL,
			"the stream is being captured into a graph; publish, "
			"wait and release before or after the capture");
	return 0;
}
