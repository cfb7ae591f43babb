/*
 * Tests that copies of pinned pages wait for their turn on the stream.
 */
#include "cuda/context.h"
#include "cuda/pinned.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <semaphore.h>
#include <sys/mman.h>

#define SIZE 8192

static const struct device *device;
static uint8_t *pages;

static void setup(void)
{
	struct error err = ERROR_NULL;
	uint32_t n;

	gpu_open();
	cr_assert(zero(int, device_list(&device, &n, &err)), "%s", err.msg);
	pages = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert(ne(ptr, pages, MAP_FAILED));
}

TestSuite(pinned, .init = setup, .fini = gpu_close);

static struct pinned pin(void)
{
	struct pinned pinned = PINNED_NULL;
	struct error err = ERROR_NULL;

	cr_assert(zero(int, pinned_open(device, pages, SIZE, &pinned, &err)),
		  "%s", err.msg);
	return pinned;
}

static void pass_gate(void *gate)
{
	while (sem_wait(gate) < 0 && errno == EINTR)
		;
}

/* The device gets what is written before the gate opens. */
Test(pinned, a_copy_reads_pinned_pages_in_stream_order)
{
	struct pinned pinned = pin();
	CUdeviceptr memory;
	uint8_t seen = 0;
	CUstream stream;
	sem_t gate;

	sem_init(&gate, 0, 0);
	cr_assert(zero(int, context_enter(device, NULL)));
	cr_assert(zero(int, cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING)));
	cr_assert(zero(int, cu.MemAlloc(&memory, SIZE)));
	cr_assert(zero(int, cu.LaunchHostFunc(stream, pass_gate, &gate)));
	cr_assert(zero(int, cu.MemcpyHtoDAsync(memory, pages, SIZE, stream)));
	pages[SIZE - 1] = 7;
	sem_post(&gate);
	cr_assert(zero(int, cu.StreamSynchronize(stream)));
	cr_assert(zero(int, cu.MemcpyDtoH(&seen, memory + SIZE - 1, 1)));
	context_leave();
	cr_expect(eq(u8, seen, 7));
	pinned_close(&pinned);
}

Test(pinned, pages_are_pinned_once_at_a_time)
{
	struct pinned pinned = pin(), again = PINNED_NULL;
	struct error err = ERROR_NULL;

	cr_expect(lt(int, pinned_open(device, pages, SIZE, &again, &err), 0));
	cr_expect(strstr(err.msg, "pin 8192 bytes of host memory") != NULL,
		  "%s", err.msg);
	pinned_close(&again); /* is not a pinned page */
	pinned_close(&pinned);
	cr_expect(zero(ptr, (void *)pinned.device));
	pinned = pin();
	pinned_close(&pinned);
}
