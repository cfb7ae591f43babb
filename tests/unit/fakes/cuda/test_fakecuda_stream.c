/* Tests the fake driver: streams, their work, and the effects of errors.
 * Streams are blocked by waits for words that the test stores. */
#include "tests/fakes/cuda/fake.h"
#include "tests/unit/fakes/cuda/fakecuda_fixture.h"
#include <pthread.h>
#include <sys/wait.h>

TestSuite(fakecuda_stream, .init = gpu_open, .fini = gpu_close, .timeout = 300);

/* The stream waits here until *words.host is 1. */
static void hold(CUstream stream, const struct words *words)
{
	OK(cuStreamWaitValue64(stream, words->device, 1,
			       CU_STREAM_WAIT_VALUE_GEQ));
}

/* --- copies -------------------------------------------------------------- */

Test(fakecuda_stream,
     copies_read_pinned_memory_in_stream_order_and_pageable_at_the_call)
{
	uint64_t pageable = 1;
	struct words words;
	CUdeviceptr at;
	CUstream stream;

	use_device(0);
	words = new_words();
	stream = new_stream();
	OK(cuMemAlloc(&at, 16));
	words.host[1] = 1;
	hold(stream, &words);
	OK(cuMemcpyHtoDAsync(at, (void *)&words.host[1], 8, stream));
	OK(cuMemcpyHtoDAsync(at + 8, &pageable, 8, stream));
	words.host[1] = 2;
	pageable = 2;
	EXPECT_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	*words.host = 1;
	OK(cuStreamSynchronize(stream));
	EXPECT_RESULT(cuStreamQuery(stream), CUDA_SUCCESS);
	cr_expect(eq(u64, peek(at), 2));
	cr_expect(eq(u64, peek(at + 8), 1));
}

Test(fakecuda_stream, a_copy_to_pageable_memory_waits)
{
	uint64_t found = 0;
	CUstream stream;
	CUdeviceptr at;

	setenv("FAKECUDA_DELAY_US", "5000", 1);
	use_device(0);
	stream = new_stream();
	OK(cuMemAlloc(&at, 8));
	OK(cuMemsetD8Async(at, 1, 8, stream));
	OK(cuMemcpyDtoHAsync(&found, at, 8, stream));
	cr_expect(eq(u64, found, UINT64_C(0x0101010101010101)));
}

/* Other work sees the copy only if it is on the same stream, or waits for that
 * stream. */
Test(fakecuda_stream, a_copy_from_pageable_memory_is_incomplete_when_it_returns)
{
	uint64_t value = 1;
	CUdeviceptr at;
	int n_late = 0;

	setenv("FAKECUDA_DELAY_US", "20000", 1);
	use_device(0);
	OK(cuMemAlloc(&at, 8));
	for (int i = 0; i < 20; i++) {
		OK(cuMemcpyHtoD(at, &value, 8));
		n_late += cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY;
	}
	cr_expect(gt(int, n_late, 0));
}

Test(fakecuda_stream, invalid_copies_are_refused)
{
	char host[64] = "";
	CUdeviceptr at;

	use_device(0);
	OK(cuMemAlloc(&at, 64));
	EXPECT_RESULT(cuMemcpyHtoD(at, host, 65), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemcpyHtoD((uintptr_t)host, host, 8),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemcpyDtoH((void *)(uintptr_t)at, at, 8),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemsetD8(at + 1, 0, 64), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemcpyDtoDAsync(at, (uintptr_t)host, 8, NULL),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemcpyDtoDAsync(at, at, 8, NULL), CUDA_SUCCESS);
	EXPECT_RESULT(cuCtxSynchronize(), CUDA_SUCCESS);
}

/* --- order --------------------------------------------------------------- */

/* `first` began before and is blocked. `second` must wait for it. */
static void expect_turns(CUstream first, CUstream second)
{
	struct words words = new_words();

	hold(first, &words);
	look(second, &words);
	EXPECT_RESULT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
	arrive(&words);
	*words.host = 1;
	OK(cuStreamSynchronize(second));
	cr_expect(eq(u64, words.host[3], 1));
}

Test(fakecuda_stream, blocking_streams_synchronise_with_the_legacy_stream)
{
	CUstream blocking, other;
	struct words words;

	use_device(0);
	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	expect_turns(NULL, blocking);
	expect_turns(blocking, CU_STREAM_LEGACY);
	expect_turns(NULL, CU_STREAM_PER_THREAD);
	words = new_words();
	other = new_stream();
	hold(NULL, &words);
	look(other, &words);
	OK(cuStreamSynchronize(other));
	*words.host = 1;
	OK(cuStreamSynchronize(NULL));
}

static struct words thread_words;

static void *write_own(void *context)
{
	OK(cuCtxPushCurrent(context));
	OK(cuStreamWriteValue64(CU_STREAM_PER_THREAD, thread_words.device + 8,
				1, 0));
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	return NULL;
}

Test(fakecuda_stream, every_thread_has_its_own_stream)
{
	CUcontext context = use_device(0);
	pthread_t thread;

	thread_words = new_words();
	hold(CU_STREAM_PER_THREAD, &thread_words);
	MUST(pthread_create(&thread, NULL, write_own, context) == 0);
	pthread_join(thread, NULL);
	cr_expect(eq(u64, thread_words.host[1], 1));
	EXPECT_RESULT(cuStreamQuery(CU_STREAM_PER_THREAD),
		      CUDA_ERROR_NOT_READY);
	*thread_words.host = 1;
	OK(cuCtxSynchronize());
}

Test(fakecuda_stream, streams_describe_themselves)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	CUcontext context = use_device(0), found;
	CUstream stream;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	EXPECT_RESULT(cuStreamCreate(&stream, 2), CUDA_ERROR_INVALID_VALUE);
	OK(cuStreamGetCtx(stream, &found));
	cr_expect(found == context);
	OK(cuStreamIsCapturing(stream, &status));
	cr_expect(eq(int, status, CU_STREAM_CAPTURE_STATUS_NONE));
}

Test(fakecuda_stream, a_destroyed_stream_completes_its_work)
{
	struct words words;
	CUstream stream;

	use_device(0);
	words = new_words();
	stream = new_stream();
	hold(stream, &words);
	OK(cuStreamWriteValue64(stream, words.device + 8, 1, 0));
	OK(cuStreamDestroy(stream));
	*words.host = 1;
	OK(cuCtxSynchronize());
	cr_expect(eq(u64, words.host[1], 1));
}

/* --- words --------------------------------------------------------------- */

/* The counters wrap around, so "greater or equal" is decided by the signed
 * difference. */
Test(fakecuda_stream, waits_compare_signed_and_cyclic)
{
	static const struct {
		uint64_t found, wanted;
		unsigned int flags;
		bool is_over;
	} cases[] = {
		{5, 5, CU_STREAM_WAIT_VALUE_GEQ, true},
		{4, 5, CU_STREAM_WAIT_VALUE_GEQ, false},
		{INT64_MAX, 5, CU_STREAM_WAIT_VALUE_GEQ, true},
		{UINT64_MAX, 5, CU_STREAM_WAIT_VALUE_GEQ, false},
		{2, UINT64_MAX, CU_STREAM_WAIT_VALUE_GEQ, true},
		{6, 5, CU_STREAM_WAIT_VALUE_EQ, false},
		{5, 5, CU_STREAM_WAIT_VALUE_EQ, true},
	};
	struct words words;
	CUstream stream;

	setenv("FAKECUDA_DELAY_US", "0", 1);
	use_device(0);
	words = new_words();
	stream = new_stream();
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		*words.host = cases[i].found;
		words.host[2] = 0;
		OK(cuStreamWaitValue64(stream, words.device, cases[i].wanted,
				       cases[i].flags));
		look(stream, &words);
		if (cases[i].is_over)
			OK(cuStreamSynchronize(stream));
		arrive(&words);
		*words.host = cases[i].wanted;
		OK(cuStreamSynchronize(stream));
		cr_expect(eq(u64, words.host[3], !cases[i].is_over), "case %zu",
			  i);
	}
}

Test(fakecuda_stream, invalid_words_are_refused)
{
	static uint64_t page[512] __attribute__((aligned(4096)));
	struct words words;
	CUdeviceptr at;

	use_device(0);
	words = new_words();
	EXPECT_RESULT(cuStreamWriteValue64(NULL, words.device + 4, 1, 0),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuStreamWriteValue64(NULL, words.device + 4096, 1, 0),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuStreamWriteValue64(NULL, words.device, 1, 1),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuStreamWaitValue64(NULL, words.device, 1, 1u << 30),
		      CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(cuStreamWriteValue64(NULL, (uintptr_t)page, 1, 0),
		      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemHostRegister(page, sizeof(page), 0));
	EXPECT_RESULT(cuMemHostGetDevicePointer(&at, page, 0),
		      CUDA_ERROR_INVALID_VALUE);
	OK(cuMemHostUnregister(page));
	OK(cuCtxSynchronize());
}

Test(fakecuda_stream, memory_operations_are_refused_if_the_device_lacks_them)
{
	struct words words;

	setenv("FAKECUDA_WITHOUT", "memops", 1);
	use_device(0);
	words = new_words();
	EXPECT_RESULT(cuStreamWriteValue64(NULL, words.device, 1, 0),
		      CUDA_ERROR_NOT_SUPPORTED);
}

/* --- registered memory --------------------------------------------------- */

/* Map one page of a file with these rights. */
static void *map_page(int *ret_fd, int rights)
{
	void *at;

	*ret_fd = memfd_create("page", MFD_CLOEXEC);
	MUST(ftruncate(*ret_fd, 4096) == 0);
	at = mmap(NULL, 4096, rights, MAP_SHARED, *ret_fd, 0);
	MUST(at != MAP_FAILED);
	return at;
}

Test(fakecuda_stream, registered_pages_are_kept_when_they_are_unmapped)
{
	uint64_t found = 0;
	CUdeviceptr at;
	void *pages;
	int fd;

	use_device(0);
	pages = map_page(&fd, PROT_READ | PROT_WRITE);
	OK(cuMemHostRegister(pages, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&at, (char *)pages + 64, 0));
	cr_expect(ne(u64, at, (uintptr_t)pages + 64));
	EXPECT_RESULT(cuStreamWriteValue64(NULL, (uintptr_t)pages + 64, 9, 0),
		      CUDA_ERROR_INVALID_VALUE);
	munmap(pages, 4096);
	OK(cuStreamWriteValue64(NULL, at, 9, 0));
	OK(cuStreamSynchronize(NULL));
	MUST(pread(fd, &found, 8, 64) == 8);
	cr_expect(eq(u64, found, 9));
	OK(cuMemHostUnregister(pages));
	close(fd);
}

Test(fakecuda_stream, read_only_pages_are_registered_read_only_and_not_written)
{
	CUdeviceptr at;
	void *pages;
	int fd;

	setenv("FAKECUDA_WITH", "readonly_register", 1);
	use_device(0);
	pages = map_page(&fd, PROT_READ);
	EXPECT_RESULT(
		cuMemHostRegister(pages, 4096, CU_MEMHOSTREGISTER_DEVICEMAP),
		CUDA_ERROR_INVALID_VALUE);
	OK(cuMemHostRegister(pages, 4096,
			     CU_MEMHOSTREGISTER_DEVICEMAP |
				     CU_MEMHOSTREGISTER_READ_ONLY));
	OK(cuMemHostGetDevicePointer(&at, pages, 0));
	OK(cuStreamWaitValue64(NULL, at, 0, 0));
	OK(cuStreamSynchronize(NULL));
	OK(cuStreamWriteValue64(NULL, at, 1, 0));
	EXPECT_RESULT(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	close(fd);
}

Test(fakecuda_stream, copies_to_pages_registered_read_only_are_refused)
{
	CUdeviceptr from;
	void *pages;
	int fd;

	setenv("FAKECUDA_WITH", "readonly_register", 1);
	use_device(0);
	pages = map_page(&fd, PROT_READ | PROT_WRITE);
	OK(cuMemAlloc(&from, 64));
	OK(cuMemHostRegister(pages, 4096,
			     CU_MEMHOSTREGISTER_DEVICEMAP |
				     CU_MEMHOSTREGISTER_READ_ONLY));
	OK(cuMemcpyHtoDAsync(from, pages, 64, NULL));
	OK(cuStreamSynchronize(NULL));
	OK(cuMemcpyDtoHAsync(pages, from, 64, NULL));
	EXPECT_RESULT(cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	close(fd);
}

Test(fakecuda_stream, invalid_registrations_are_refused)
{
	static char pages[8192] __attribute__((aligned(4096)));
	CUdeviceptr at;
	CUcontext second;

	use_device(0);
	EXPECT_RESULT(
		cuMemHostRegister(pages, 8192, CU_MEMHOSTREGISTER_READ_ONLY),
		CUDA_ERROR_NOT_SUPPORTED);
	EXPECT_RESULT(cuMemHostRegister(pages, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemHostRegister((void *)4096, 4096, 0),
		      CUDA_ERROR_INVALID_VALUE);
	EXPECT_RESULT(cuMemHostUnregister(pages),
		      CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	OK(cuMemHostRegister(pages, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	EXPECT_RESULT(cuMemHostRegister(pages + 64, 4096, 0),
		      CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	EXPECT_RESULT(cuMemHostUnregister(pages + 64),
		      CUDA_ERROR_INVALID_VALUE);
	/* The registration is not portable, so only this context can use it. */
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPushCurrent(second));
	EXPECT_RESULT(cuMemHostGetDevicePointer(&at, pages, 0),
		      CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxPopCurrent(NULL));
	OK(cuMemHostGetDevicePointer(&at, pages, 0));
	OK(cuMemHostUnregister(pages));
}

/* --- events -------------------------------------------------------------- */

Test(fakecuda_stream, an_event_captures_the_work_at_the_time_of_its_record)
{
	CUstream first, second;
	struct words words;
	CUevent event;

	use_device(0);
	words = new_words();
	first = new_stream();
	second = new_stream();
	OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	EXPECT_RESULT(cuEventQuery(event), CUDA_SUCCESS);
	hold(first, &words);
	OK(cuEventRecord(event, first));
	EXPECT_RESULT(cuEventQuery(event), CUDA_ERROR_NOT_READY);
	OK(cuStreamWaitEvent(second, event, 0));
	look(second, &words);
	/* Neither call changes the work for which `second` waits. */
	OK(cuEventRecord(event, NULL));
	OK(cuEventDestroy(event));
	EXPECT_RESULT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
	arrive(&words);
	*words.host = 1;
	OK(cuStreamSynchronize(second));
	cr_expect(eq(u64, words.host[3], 1));
}

Test(fakecuda_stream, elapsed_time_needs_events_with_timing)
{
	CUevent begin, end, plain;
	struct words words;
	float ms = -1;

	use_device(0);
	words = new_words();
	OK(cuEventCreate(&begin, 0));
	OK(cuEventCreate(&end, CU_EVENT_BLOCKING_SYNC));
	OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	EXPECT_RESULT(cuEventElapsedTime(&ms, begin, end),
		      CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(begin, NULL));
	hold(NULL, &words);
	OK(cuEventRecord(end, NULL));
	OK(cuEventRecord(plain, NULL));
	EXPECT_RESULT(cuEventElapsedTime(&ms, begin, end),
		      CUDA_ERROR_NOT_READY);
	*words.host = 1;
	OK(cuEventSynchronize(end));
	OK(cuEventElapsedTime(&ms, begin, end));
	cr_expect(gt(flt, ms, 0));
	EXPECT_RESULT(cuEventElapsedTime(&ms, begin, plain),
		      CUDA_ERROR_INVALID_HANDLE);
	EXPECT_RESULT(cuEventCreate(&end, CU_EVENT_INTERPROCESS),
		      CUDA_ERROR_INVALID_VALUE);
}

Test(fakecuda_stream, an_event_is_recorded_in_its_own_context)
{
	CUstream stream;
	CUcontext second;
	CUevent event;

	use_device(0);
	OK(cuEventCreate(&event, 0));
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPushCurrent(second));
	stream = new_stream();
	EXPECT_RESULT(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
	EXPECT_RESULT(cuStreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
	OK(cuStreamSynchronize(stream));
}

/* --- kernels and host functions ------------------------------------------ */

static CUfunction get_function(const char *name)
{
	CUlibrary library;
	CUkernel kernel;
	CUfunction function;

	OK(cuLibraryLoadData(&library, "any", NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, library, name));
	OK(cuKernelGetFunction(&function, kernel));
	return function;
}

static CUresult launch(CUfunction function, CUstream stream, void **params)
{
	return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, params,
			      NULL);
}

Test(fakecuda_stream, a_kernel_gets_the_parameters_of_its_launch)
{
	CUdeviceptr at;
	uint64_t n = 2;
	uint32_t value = 5;
	void *params[] = {&at, &n, &value};
	struct words words;
	CUfunction add;

	use_device(0);
	words = new_words();
	add = get_function("fake_add");
	OK(cuMemAlloc(&at, 8));
	OK(cuMemsetD8(at, 0, 8));
	hold(NULL, &words);
	OK(launch(add, NULL, params));
	value = 100;
	*words.host = 1;
	cr_expect(eq(u64, peek(at), UINT64_C(0x0000000500000005)));
}

static CUresult add_one(CUdeviceptr at)
{
	uint64_t n = 1;
	uint32_t value = 1;
	void *params[] = {&at, &n, &value};

	OK(launch(get_function("fake_add"), NULL, params));
	return cuStreamSynchronize(NULL);
}

Test(fakecuda_stream, a_kernel_that_writes_read_only_memory_is_a_fault)
{
	CUdeviceptr at;

	use_device(0);
	at = vmm_map_at(vmm_new(CHUNK), CHUNK,
			CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	EXPECT_RESULT(add_one(at), CUDA_SUCCESS);
	OK(vmm_access(at, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ));
	EXPECT_RESULT(add_one(at), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(fakecuda_stream, a_kernel_that_writes_unmapped_memory_is_a_fault)
{
	CUdeviceptr at;

	use_device(0);
	at = vmm_map_at(vmm_new(CHUNK), CHUNK,
			CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	EXPECT_RESULT(add_one(at), CUDA_SUCCESS);
	OK(cuMemUnmap(at, CHUNK));
	EXPECT_RESULT(add_one(at), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(fakecuda_stream, invalid_launches_are_refused)
{
	static const unsigned int shapes[][4] = {
		/* grid x, block x, block z, shared bytes */
		{0, 32, 1, 0},    {1, 0, 1, 0},  {1, 1025, 1, 0},
		{1, 32, 64, 0},   {1, 1, 65, 0}, {0x80000000, 1, 1, 0},
		{1, 1, 1, 99999},
	};
	CUlibrary library;
	CUkernel kernel;
	CUcontext second;
	CUfunction trap, add;

	use_device(0);
	OK(cuLibraryLoadData(&library, "any", NULL, NULL, 0, NULL, NULL, 0));
	EXPECT_RESULT(cuLibraryGetKernel(&kernel, library, "no_such_kernel"),
		      CUDA_ERROR_NOT_FOUND);
	trap = get_function("fake_trap");
	add = get_function("fake_add");
	for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
		cr_expect(
			eq(int,
			   (int)cuLaunchKernel(trap, shapes[i][0], 1, 1,
					       shapes[i][1], 1, shapes[i][2],
					       shapes[i][3], NULL, NULL, NULL),
			   CUDA_ERROR_INVALID_VALUE),
			"shape %zu", i);
	EXPECT_RESULT(launch(add, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPushCurrent(second));
	{
		CUstream stream = new_stream();

		OK(cuCtxPopCurrent(NULL));
		EXPECT_RESULT(launch(trap, stream, NULL),
			      CUDA_ERROR_INVALID_HANDLE);
	}
}

static CUresult host_result;

static void call_driver(void *data)
{
	(void)data;
	host_result = cuStreamQuery(NULL);
}

static void count(void *data)
{
	++*(int *)data;
}

Test(fakecuda_stream, a_host_function_must_not_call_the_driver)
{
	use_device(0);
	OK(cuLaunchHostFunc(NULL, call_driver, NULL));
	OK(cuStreamSynchronize(NULL));
	EXPECT_RESULT(host_result, CUDA_ERROR_NOT_PERMITTED);
}

Test(fakecuda_stream, an_error_is_sticky_and_limited_to_its_context)
{
	CUcontext second;
	CUstream stream;
	CUfunction trap;
	int n_called = 0;

	use_device(0);
	trap = get_function("fake_trap");
	stream = new_stream();
	OK(cuLaunchHostFunc(stream, count, &n_called));
	OK(launch(trap, stream, NULL));
	OK(cuLaunchHostFunc(stream, count, &n_called));
	EXPECT_RESULT(cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
	EXPECT_RESULT(cuStreamQuery(stream), CUDA_ERROR_LAUNCH_FAILED);
	EXPECT_RESULT(cuLaunchHostFunc(NULL, count, &n_called),
		      CUDA_ERROR_LAUNCH_FAILED);
	cr_expect(eq(int, n_called, 1));
	OK(cuDevicePrimaryCtxRelease(0));
	EXPECT_RESULT(cuDevicePrimaryCtxRetain(&second, 0),
		      CUDA_ERROR_LAUNCH_FAILED);
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxPushCurrent(second));
	OK(cuLaunchHostFunc(NULL, count, &n_called));
	OK(cuCtxSynchronize());
	cr_expect(eq(int, n_called, 2));
}

struct fake_calls {
	int n, n_stopping;
};

static void fake_count(void *data)
{
	struct fake_calls *calls = data;

	calls->n++;
	calls->n_stopping += fake_is_stopping();
}

Test(fakecuda_stream, work_of_the_nccl_fake_is_called_once_even_after_an_error)
{
	struct fake_calls calls = {0, 0};
	CUfunction trap;

	use_device(0);
	trap = get_function("fake_trap");
	OK(fake_stream_enqueue(NULL, fake_count, &calls));
	OK(cuStreamSynchronize(NULL));
	cr_expect(eq(int, calls.n, 1));
	cr_expect(eq(int, calls.n_stopping, 0));
	OK(launch(trap, NULL, NULL));
	OK(fake_stream_enqueue(NULL, fake_count, &calls));
	EXPECT_RESULT(cuStreamSynchronize(NULL), CUDA_ERROR_LAUNCH_FAILED);
	cr_expect(eq(int, calls.n, 2));
	cr_expect(eq(int, calls.n_stopping, 1));
}

/* --- waiting where a driver may, and the end ----------------------------- */

static void *release_later(void *data)
{
	struct words *words = data;

	/* The allocation below waits at this time, or is about to. */
	while (words->host[1] == 0)
		sched_yield();
	*words->host = 1;
	return NULL;
}

Test(fakecuda_stream, an_allocation_may_wait_for_all_work)
{
	CUstream stream;
	struct words words;
	pthread_t thread;
	CUdeviceptr at;

	setenv("FAKECUDA_SYNC", "1", 1);
	use_device(0);
	words = new_words();
	stream = new_stream();
	hold(stream, &words);
	MUST(pthread_create(&thread, NULL, release_later, &words) == 0);
	words.host[1] = 1;
	OK(cuMemAlloc(&at, 64));
	EXPECT_RESULT(cuStreamQuery(stream), CUDA_SUCCESS);
	pthread_join(thread, NULL);
}

/* Queue one more piece of work, which uses the range. */
static void use_later(CUstream stream, CUdeviceptr at, bool is_kernel)
{
	uint64_t n = 1;
	uint32_t value = 1;
	void *params[] = {&at, &n, &value};

	if (is_kernel)
		OK(launch(get_function("fake_add"), stream, params));
	else
		OK(cuMemcpyDtoDAsync(at + 8, at, 8, stream));
}

static CUdeviceptr map_writable(void)
{
	return vmm_map_at(vmm_new(CHUNK), CHUNK,
			  CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

static void expect_fault_of(bool is_kernel)
{
	CUstream stream;
	struct words words;
	CUdeviceptr at, other;

	use_device(0);
	words = new_words();
	stream = new_stream();
	at = map_writable();
	other = map_writable();
	hold(stream, &words);
	use_later(stream, other, is_kernel);
	OK(vmm_access(at, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ));
	*words.host = 1;
	EXPECT_RESULT(cuStreamSynchronize(stream), CUDA_SUCCESS);

	*words.host = 0;
	hold(stream, &words);
	use_later(stream, other, is_kernel);
	OK(vmm_access(other, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	*words.host = 1;
	EXPECT_RESULT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT_RESULT(cuMemsetD8(other, 0, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(fakecuda_stream, a_kernel_faults_when_its_memory_is_remapped)
{
	expect_fault_of(true);
}

Test(fakecuda_stream, a_copy_faults_when_its_memory_is_remapped)
{
	expect_fault_of(false);
}

Test(fakecuda_stream, a_driver_that_synchronises_remaps_after_all_work)
{
	CUstream stream;
	struct words words;
	pthread_t thread;
	CUdeviceptr at;

	setenv("FAKECUDA_SYNC", "1", 1);
	use_device(0);
	words = new_words();
	stream = new_stream();
	at = map_writable();
	hold(stream, &words);
	use_later(stream, at, true);
	MUST(pthread_create(&thread, NULL, release_later, &words) == 0);
	words.host[1] = 1;
	OK(vmm_access(at, CHUNK, CU_MEM_ACCESS_FLAGS_PROT_READ));
	EXPECT_RESULT(cuStreamQuery(stream), CUDA_SUCCESS);
	pthread_join(thread, NULL);
}

/* One process has a stream that waits for ever, and one has no work. */
static void exit_waiting(void)
{
	struct words words;

	expect_exit();
	use_device(0);
	words = new_words();
	hold(new_stream(), &words);
	(void)new_stream();
	exit(0);
}

Test(fakecuda_stream, streams_that_wait_end_with_their_process)
{
	char said[256] = "";
	int ends[2], status;
	pid_t pid;

	MUST(pipe(ends) == 0);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		exit_waiting();
	}
	close(ends[1]);
	MUST(waitpid(pid, &status, 0) == pid);
	cr_expect(eq(int, status, 7 << 8), "not ended by exit()");
	MUST(read(ends[0], said, sizeof(said) - 1) >= 0);
	cr_expect(eq(str, said, ""));
}
