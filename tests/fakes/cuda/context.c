/* This file implements primary contexts. */
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/alloc.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/cuda/handle.h"
#include "tests/fakes/cuda/host.h"
#include "tests/fakes/cuda/ledger.h"
#include "tests/fakes/cuda/memory.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/stream.h"
#include <unistd.h>

#define MAX_STACK 16 /* contexts that a thread can push */

static struct context contexts[FAKE_MAX_DEVICES];

static __thread CUcontext stack[MAX_STACK];
static __thread int n_stack;

struct context *context_find(CUcontext handle)
{
	return handle_find(HANDLE_CONTEXT, (uintptr_t)handle);
}

struct context *context_of(CUdevice device)
{
	return &contexts[device];
}

CUresult context_check(struct context *context)
{
	return context->error ? context->error : device_check(context->device);
}

void context_fail(struct context *context, CUresult error)
{
	if (!context->error)
		context->error = error;
	process_wake();
}

struct context *context_top(void)
{
	return n_stack > 0 ? context_find(stack[n_stack - 1]) : NULL;
}

CUresult context_current(struct context **ret)
{
	struct context *context = context_top();
	CUresult r;

	if (n_stack == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	r = context_check(context);
	if (r == CUDA_SUCCESS)
		*ret = context;
	return r;
}

/* --- life ---------------------------------------------------------------- */

static CUresult take_overhead(struct context *context)
{
	struct ledger_head head = {
		.size = settings()->context_mb << 20,
		.device = device_number(context->device),
		.kind = LEDGER_CONTEXT,
	};

	if (head.size == 0)
		return CUDA_SUCCESS;
	return memory_create(&head, &context->overhead);
}

static CUresult enter(struct context *context)
{
	uint64_t mode = settings()->compute_mode;
	int fd;

	if (mode == CU_COMPUTEMODE_PROHIBITED)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	fd = ledger_enter(device_number(context->device),
			  mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
	if (fd < 0)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	context->lock_fd = fd;
	return CUDA_SUCCESS;
}

static CUresult make(struct context *context, CUdevice device)
{
	CUresult r;

	context->device = device;
	r = context_check(context);
	if (r == CUDA_SUCCESS)
		r = enter(context);
	if (r)
		return r;
	r = take_overhead(context);
	if (r) {
		close(context->lock_fd);
		return r;
	}
	context->handle =
		(CUcontext)(uintptr_t)handle_new(HANDLE_CONTEXT, context);
	call_note(NOTE_CONTEXTS);
	return CUDA_SUCCESS;
}

/* Drops the queued work. */
static void destroy(struct context *context)
{
	handle_free(HANDLE_CONTEXT, (uintptr_t)context->handle);
	context->handle = NULL;
	context->n_refs = 0;
	stream_destroy_all(context);
	alloc_free_all(context);
	host_free_all(context);
	memory_unref(context->overhead);
	context->overhead = NULL;
	close(context->lock_fd);
}

/* --- the driver's interface ---------------------------------------------- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret, CUdevice device)
{
	CUresult r = call_begin(CALL_DevicePrimaryCtxRetain);
	struct context *context;

	if (r)
		return r;
	if (!ret)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (!device_is_valid(device))
		return call_end(CUDA_ERROR_INVALID_DEVICE);
	context = context_of(device);
	if (!context->handle)
		r = make(context, device);
	if (r == CUDA_SUCCESS) {
		context->n_refs++;
		*ret = context->handle;
	}
	return call_end(r);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUresult r = call_begin(CALL_DevicePrimaryCtxRelease);

	if (r)
		return r;
	if (!device_is_valid(device))
		return call_end(CUDA_ERROR_INVALID_DEVICE);
	if (context_of(device)->n_refs == 0)
		return call_end(CUDA_ERROR_INVALID_CONTEXT);
	if (--context_of(device)->n_refs == 0)
		destroy(context_of(device));
	return call_end(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags,
				    int *is_active)
{
	CUresult r = call_begin(CALL_DevicePrimaryCtxGetState);

	if (r)
		return r;
	if (!flags || !is_active)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (!device_is_valid(device))
		return call_end(CUDA_ERROR_INVALID_DEVICE);
	*flags = 0;
	*is_active = context_of(device)->handle != NULL;
	return call_end(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	CUresult r = call_begin(CALL_CtxGetCurrent);

	if (r)
		return r;
	if (!context)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*context = n_stack ? stack[n_stack - 1] : NULL;
	return call_end(CUDA_SUCCESS);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	CUresult r = call_begin(CALL_CtxPushCurrent);

	if (r)
		return r;
	if (!context_find(context))
		return call_end(CUDA_ERROR_INVALID_CONTEXT);
	if (n_stack == MAX_STACK)
		return call_end(CUDA_ERROR_OUT_OF_MEMORY);
	stack[n_stack++] = context;
	return call_end(CUDA_SUCCESS);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	CUresult r = call_begin(CALL_CtxPopCurrent);

	if (r)
		return r;
	if (n_stack == 0)
		return call_end(CUDA_ERROR_INVALID_CONTEXT);
	n_stack--;
	if (context)
		*context = stack[n_stack];
	return call_end(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	CUresult r = call_begin(CALL_CtxGetDevice);
	const struct context *context;

	if (r)
		return r;
	if (!device)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if (n_stack == 0)
		return call_end(CUDA_ERROR_INVALID_CONTEXT);
	context = context_top();
	if (!context)
		return call_end(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	*device = context->device;
	return call_end(CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct context *context;
	CUresult r =
		call_begin_context(CALL_CtxGetStreamPriorityRange, &context);

	if (r)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = STREAM_PRIORITY_GREATEST;
	return call_end(CUDA_SUCCESS);
}

CUresult cuCtxSynchronize(void)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_CtxSynchronize, &context);

	if (r)
		return r;
	return call_end(stream_synchronize_all(context));
}

CUresult fake_current_device(int *ret_number)
{
	CUdevice device;
	CUresult r = cuCtxGetDevice(&device);

	if (r == CUDA_SUCCESS)
		*ret_number = (int)device_number(device);
	return r;
}
