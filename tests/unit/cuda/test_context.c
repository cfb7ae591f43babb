/*
 * Tests that contexts are entered and left without side effects, and that a
 * refusal names the reason.
 */
#include "cuda/context.h"
#include "cuda/pointer.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/wait.h>

TestSuite(context, .init = gpu_open, .fini = gpu_close);

static bool says(const struct error *err, const char *part)
{
	return strstr(err->msg, part);
}

static const struct device *device(uint32_t i)
{
	const struct device *devices = NULL;
	struct error err = ERROR_NULL;
	uint32_t n = 0;

	cr_assert(zero(int, device_list(&devices, &n, &err)), "%s", err.msg);
	need_gpus(n, i + 1);
	return &devices[i];
}

static void enter(uint32_t i)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, context_enter(device(i), &err)), "%s", err.msg);
}

static CUcontext current(void)
{
	CUcontext context = NULL;

	cr_assert(zero(int, cu.CtxGetCurrent(&context)));
	return context;
}

static CUdevice current_device(void)
{
	CUdevice ordinal = -1;

	cr_assert(zero(int, cu.CtxGetDevice(&ordinal)));
	return ordinal;
}

Test(context, a_thread_without_a_context_has_none_after_leaving)
{
	enter(1);
	cr_expect(eq(int, current_device(), 1));
	context_leave();
	cr_expect(current() == NULL);
}

Test(context, the_context_of_the_caller_is_restored)
{
	CUcontext own;

	enter(0);
	own = current();
	enter(1);
	cr_expect(current() != own);
	enter(0);
	cr_expect(current() == own);
	context_leave();
	context_leave();
	cr_expect(current() == own);
	context_leave();
}

Test(context, the_context_is_the_primary_one_of_the_device)
{
	CUcontext primary;

	enter(0);
	cr_assert(zero(int, cu.DevicePrimaryCtxRetain(&primary, 0)));
	cr_expect(current() == primary);
	context_leave();
}

static void *enter_many_times(void *data)
{
	(void)data;
	for (int i = 0; i < 100; i++) {
		if (context_enter(device(0), NULL) < 0)
			return "enter";
		context_leave();
	}
	return NULL;
}

Test(context, threads_share_a_context_that_is_retained_once)
{
	pthread_t threads[4];
	void *what;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "DevicePrimaryCtxRetain:2+:999", 1);
	(void)device(0);
	for (int i = 0; i < 4; i++)
		cr_assert(zero(int, pthread_create(&threads[i], NULL,
						   enter_many_times, NULL)));
	for (int i = 0; i < 4; i++) {
		cr_assert(zero(int, pthread_join(threads[i], &what)));
		cr_expect(what == NULL);
	}
}

Test(context, a_context_that_failed_can_be_created_later)
{
	struct error err = ERROR_NULL;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "DevicePrimaryCtxRetain:1:2", 1);
	cr_expect(eq(int, context_enter(device(0), &err), -ENOMEM));
	cr_expect(says(&err, "make a context on device GPU-"), "%s", err.msg);
	cr_expect(current() == NULL);
	enter(0);
	context_leave();
}

/* Let another process use a context until the file in `ret` is closed. */
static pid_t hold_elsewhere(int *ret)
{
	int ready[2], end[2];
	char byte;
	pid_t pid;

	cr_assert(zero(int, pipe(ready)));
	cr_assert(zero(int, pipe(end)));
	/* Fork before the driver is loaded. Criterion's assertions do not work
	 * in a forked child. */
	pid = fork();
	if (pid == 0) {
		const struct device *devices;
		uint32_t n;

		close(end[1]);
		if (device_list(&devices, &n, NULL) < 0 ||
		    context_enter(&devices[0], NULL) < 0 ||
		    write(ready[1], "x", 1) != 1)
			_exit(1);
		_exit(read(end[0], &byte, 1) == 0 ? 0 : 1);
	}
	close(ready[1]);
	cr_assert(eq(int, (int)read(ready[0], &byte, 1), 1));
	*ret = end[1];
	return pid;
}

Test(context, in_exclusive_mode_the_second_process_is_refused)
{
	struct error err = ERROR_NULL;
	pid_t pid;
	int end;

	need_fake("it must be another machine");
	setenv("FAKECUDA_COMPUTE_MODE", "exclusive_process", 1);
	pid = hold_elsewhere(&end);
	cr_expect(eq(int, context_enter(device(0), &err), -EBUSY));
	cr_expect(says(&err, "exclusive-process mode"), "%s", err.msg);
	cr_expect(says(&err, "-c DEFAULT"), "%s", err.msg);
	close(end);
	cr_assert(eq(int, waitpid(pid, NULL, 0), pid));
	enter(0);
	context_leave();
}

Test(context, in_prohibited_mode_every_process_is_refused)
{
	struct error err = ERROR_NULL;

	need_fake("it must be another machine");
	setenv("FAKECUDA_COMPUTE_MODE", "prohibited", 1);
	cr_expect(eq(int, context_enter(device(0), &err), -EPERM));
	cr_expect(says(&err, "prohibited mode"), "%s", err.msg);
}

static CUstream make_stream(uint32_t i)
{
	CUstream stream = NULL;

	enter(i);
	cr_assert(zero(int, cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)));
	context_leave();
	return stream;
}

Test(context, a_stream_of_the_device_is_accepted)
{
	CUstream stream = make_stream(0);

	cr_expect(zero(int, context_check_stream(device(0), stream, NULL)));
	cr_expect(zero(
		int, context_check_stream(device(0), CU_STREAM_LEGACY, NULL)));
	cr_expect(zero(int, context_check_stream(device(0),
						 CU_STREAM_PER_THREAD, NULL)));
	cr_expect(current() == NULL);
}

Test(context, a_stream_of_another_device_is_refused_naming_both)
{
	CUstream stream = make_stream(1);
	struct error err = ERROR_NULL;
	char text[DEVICE_TEXT_SIZE];

	cr_expect(eq(int, context_check_stream(device(0), stream, &err),
		     -EINVAL));
	for (uint32_t i = 0; i < 2; i++) {
		device_format(&device(i)->uuid, text);
		cr_expect(says(&err, text), "%s", err.msg);
	}
	cr_expect(current() == NULL);
}

/* Returns a function that only the fake driver has. */
static void *of_fake(const char *name)
{
	void *library = dlopen(getenv("FSDP_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);

	cr_assert(library != NULL);
	return dlsym(library, name);
}

static void begin_capture(CUstream stream)
{
	void (*begin)(CUstream stream);

	*(void **)&begin = of_fake("fake_capture_begin");
	begin(stream);
}

static CUresult end_capture(void)
{
	CUresult (*end)(void);

	*(void **)&end = of_fake("fake_capture_end");
	return end();
}

Test(context, a_stream_that_is_captured_is_refused)
{
	CUstream stream = make_stream(0);
	struct error err = ERROR_NULL;

	need_fake("it captures on demand");
	begin_capture(stream);
	cr_expect(eq(int, context_check_stream(device(0), stream, &err),
		     -EINVAL));
	cr_expect(says(&err, "graph"), "%s", err.msg);
	cr_expect(current() == NULL);
}

Test(context, calls_within_a_block_do_not_invalidate_a_capture)
{
	CUstream stream = make_stream(0);
	CUdeviceptr memory;

	need_fake("it captures on demand");
	begin_capture(stream);
	enter(0);
	enter(1);
	context_leave();
	/* This call is still between an enter and its leave. */
	cr_expect(zero(int, cu.MemAlloc(&memory, 64)));
	cr_expect(zero(int, cu.MemFree(memory)));
	context_leave();
	cr_expect(zero(int, end_capture()));
}

Test(context, outside_of_a_block_the_program_has_its_own_capture_mode)
{
	CUstream stream = make_stream(0);
	CUcontext own;

	need_fake("it captures on demand");
	enter(0);
	own = current();
	context_leave();
	cr_assert(zero(int, cu.CtxPushCurrent(own)));
	begin_capture(stream);
	cr_expect(eq(int, cu.CtxSynchronize(),
		     CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
	cr_expect(
		eq(int, end_capture(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
}

/* A pointer is looked up with the context that is current already. */
Test(context, a_pointer_that_is_looked_up_spares_later_captures)
{
	CUstream stream = make_stream(0);
	struct pointer pointer;
	CUdeviceptr memory;

	need_fake("it captures on demand");
	enter(0);
	cr_assert(zero(int, cu.MemAlloc(&memory, 64)));
	for (int i = 0; i < 2; i++)
		cr_expect(zero(int, pointer_find(memory, &pointer, NULL)));
	context_leave();
	begin_capture(stream);
	enter(0);
	cr_expect(zero(int, cu.MemFree(memory)));
	context_leave();
	cr_expect(zero(int, end_capture()));
}

/* A call that is refused leaves the mode as it was, too. */
Test(context, a_failed_enter_keeps_the_capture_mode)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	struct error err = ERROR_NULL;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "CtxPushCurrent:1:1", 1);
	cr_expect(lt(int, context_enter(device(0), &err), 0));
	cr_assert(zero(int, cu.ThreadExchangeStreamCaptureMode(&mode)));
	cr_expect(eq(int, mode, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

Test(context, waiting_for_a_device_waits_for_its_streams)
{
	CUstream stream = make_stream(0);
	CUdeviceptr memory;

	enter(0);
	cr_assert(zero(int, cu.MemAlloc(&memory, 64)));
	for (int i = 0; i < 20; i++)
		cr_assert(zero(int, cu.MemsetD8Async(memory, 1, 64, stream)));
	context_leave();
	cr_expect(zero(int, context_synchronize(device(0), 10000, NULL)));
	enter(0);
	cr_expect(zero(int, cu.StreamQuery(stream)));
	context_leave();
}

static void pass_gate(void *gate)
{
	while (sem_wait(gate) < 0 && errno == EINTR)
		;
}

Test(context, waiting_for_a_device_has_a_time_limit)
{
	static sem_t gate;
	CUstream stream = make_stream(0);
	struct error err = ERROR_NULL;
	char text[DEVICE_TEXT_SIZE];

	cr_assert(zero(int, sem_init(&gate, 0, 0)));
	enter(0);
	cr_assert(zero(int, cu.LaunchHostFunc(stream, pass_gate, &gate)));
	context_leave();
	cr_expect(eq(int, context_synchronize(device(0), 0, &err), -ETIMEDOUT));
	cr_expect(
		eq(int, context_synchronize(device(0), 10, &err), -ETIMEDOUT));
	device_format(&device(0)->uuid, text);
	cr_expect(says(&err, text), "%s", err.msg);
	sem_post(&gate);
	cr_expect(zero(int, context_synchronize(device(0), 10000, &err)), "%s",
		  err.msg);
}

Test(context, an_error_of_the_driver_about_a_stream_is_reported)
{
	CUstream stream;
	struct error err = ERROR_NULL;

	need_fake("calls must fail");
	setenv("FAKECUDA_FAIL", "StreamGetCtx:1:400", 1);
	stream = make_stream(0);
	cr_expect(eq(int, context_check_stream(device(0), stream, &err),
		     -EINVAL));
	cr_expect(says(&err, "context of stream"), "%s", err.msg);
	cr_expect(current() == NULL);
}
