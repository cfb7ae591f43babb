/*
 * Tests that pointers of callers are found without the device's number.
 */
#include "cuda/pointer.h"
#include "cuda/vmm.h"
#include "tests/lib/gpu.h"
#include "tests/unit/cuda/cuda_fixture.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>

#define SIZE 1000

static void begin(void)
{
	gpu_open();
	setenv("FAKECUDA_COUNT", "1", 1);
}

TestSuite(pointer, .init = begin, .fini = gpu_close, .timeout = 300);

static CUdeviceptr make(const struct device *gpu)
{
	CUdeviceptr at;

	MUST(context_enter(gpu, NULL) == 0);
	MUST(cu.MemAlloc(&at, SIZE) == CUDA_SUCCESS);
	context_leave();
	return at;
}

static struct pointer find(CUdeviceptr at)
{
	struct error err = ERROR_NULL;
	struct pointer pointer = {.device = NULL};

	cr_assert(zero(int, pointer_find(at, &pointer, &err)), "%s", err.msg);
	return pointer;
}

static void expect_none(CUdeviceptr at, int code, const char *part)
{
	struct error err = ERROR_NULL;
	struct pointer pointer = {.device = NULL};

	cr_expect(eq(int, pointer_find(at, &pointer, &err), code), "%s",
		  err.msg);
	cr_expect(ne(ptr, strstr(err.msg, part), NULL), "%s", err.msg);
	cr_expect(eq(ptr, (void *)pointer.device, NULL));
}

Test(pointer, the_allocation_of_a_pointer_is_found_on_any_device)
{
	const CUdeviceptr first = make(machine_gpu(0));
	const CUdeviceptr second = make(machine_gpu(1));
	struct pointer pointer = find(first + 999);

	cr_expect(eq(ptr, (void *)pointer.device, (void *)machine_gpu(0)));
	cr_expect(eq(u64, pointer.base, first));
	cr_expect(eq(u64, pointer.size, SIZE));
	cr_expect(pointer.is_legacy);
	pointer = find(second);
	cr_expect(eq(ptr, (void *)pointer.device, (void *)machine_gpu(1)));
	cr_expect(eq(u64, pointer.base, second));
}

Test(pointer, virtual_memory_is_not_reported_as_legacy)
{
	const struct device *gpu = machine_gpu(0);
	struct vmm_mapping mapping;
	struct pointer pointer;
	int fd;

	MUST(vmm_create(gpu, gpu->granularity, &fd, NULL) == 0);
	MUST(vmm_map(gpu, fd, gpu->granularity, true, &mapping, NULL) == 0);
	pointer = find(mapping.address + 4096);
	cr_expect(eq(u64, pointer.base, mapping.address));
	cr_expect(eq(u64, pointer.size, gpu->granularity));
	cr_expect(not(pointer.is_legacy));
	vmm_unmap(&mapping);
	close(fd);
}

static void *find_elsewhere(void *at)
{
	return (void *)(uintptr_t)find((uintptr_t)at).base;
}

/* A context is current on a thread, but memory belongs to the process. */
Test(pointer, a_pointer_can_be_looked_up_on_any_thread)
{
	const CUdeviceptr at = make(machine_gpu(1));
	pthread_t thread;
	void *base;

	MUST(pthread_create(&thread, NULL, find_elsewhere,
			    (void *)(uintptr_t)at) == 0);
	MUST(pthread_join(thread, &base) == 0);
	cr_expect(eq(u64, (uintptr_t)base, at));
}

Test(pointer, an_address_that_is_not_device_memory_is_refused)
{
	int on_stack = 0;
	CUdeviceptr at;

	expect_none((uintptr_t)&on_stack, -EINVAL, "does not use a device");
	cr_expect(le(long, gpu_count(getpid(), "contexts"), 0));
	at = make(machine_gpu(0));
	expect_none((uintptr_t)&on_stack, -EINVAL, "not device memory");
	expect_none(0, -EINVAL, "not device memory");
	expect_none(at + SIZE + (2 << 20), -EINVAL, "not device memory");
}
