/*
 * Tests legacy IPC: a producer shares memory, and a consumer opens it. Numbers
 * are those of the reference's cases 31, 34 and 36 (33: test_handle.c).
 */
#include "cuda/ipc.h"
#include "tests/lib/actor.h"
#include "tests/unit/cuda/cuda_fixture.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

#define N_ALLOCATIONS 3
#define SEGMENT       0x4000

/* The test shares this with its producer. */
struct stage {
	struct handle handles[N_ALLOCATIONS];
	uint64_t offsets[N_ALLOCATIONS];
	CUdeviceptr producers; /* address of the first */
};

static struct stage *stage;
static struct actor producer;

static void setup(void)
{
	gpu_open();
	stage = shared_memory(sizeof(*stage));
}

static void teardown(void)
{
	actor_kill(&producer);
	gpu_close();
}

TestSuite(ipc, .init = setup, .fini = teardown, .timeout = 300);

/* --- memory -------------------------------------------------------------- */

static CUdeviceptr gpu_alloc(const struct device *gpu, size_t size)
{
	CUdeviceptr address;

	MUST(context_enter(gpu, NULL) == 0);
	MUST(cu.MemAlloc(&address, size) == CUDA_SUCCESS);
	context_leave();
	return address;
}

static void gpu_free(const struct device *gpu, CUdeviceptr address)
{
	MUST(context_enter(gpu, NULL) == 0);
	MUST(cu.MemFree(address) == CUDA_SUCCESS);
	context_leave();
}

static void gpu_fill(const struct device *gpu, CUdeviceptr at, uint8_t value,
		     size_t n)
{
	MUST(context_enter(gpu, NULL) == 0);
	MUST(cu.MemsetD8(at, value, n) == CUDA_SUCCESS);
	MUST(cu.CtxSynchronize() == CUDA_SUCCESS);
	context_leave();
}

static uint8_t gpu_byte(const struct device *gpu, CUdeviceptr at)
{
	uint8_t byte = 0;

	MUST(context_enter(gpu, NULL) == 0);
	MUST(cu.MemcpyDtoH(&byte, at, 1) == CUDA_SUCCESS);
	context_leave();
	return byte;
}

/* --- the driver, counted and made to fail -------------------------------- */

static _Atomic int n_opened, n_closed, n_shared;
static CUresult open_result;
static __typeof__(cuIpcOpenMemHandle) *real_open;
static __typeof__(cuIpcCloseMemHandle) *real_close;
static __typeof__(cuIpcGetMemHandle) *real_get;

static CUresult open_memory(CUdeviceptr *address, CUipcMemHandle handle,
			    unsigned int flags)
{
	n_opened++;
	if (open_result != CUDA_SUCCESS)
		return open_result;
	return real_open(address, handle, flags);
}

static CUresult close_memory(CUdeviceptr address)
{
	n_closed++;
	return real_close(address);
}

static CUresult get_handle(CUipcMemHandle *handle, CUdeviceptr address)
{
	n_shared++;
	return real_get(handle, address);
}

static const struct device *counted_gpu(void)
{
	const struct device *gpu = machine_gpu(0);

	real_open = cu.IpcOpenMemHandle;
	cu.IpcOpenMemHandle = open_memory;
	real_close = cu.IpcCloseMemHandle;
	cu.IpcCloseMemHandle = close_memory;
	real_get = cu.IpcGetMemHandle;
	cu.IpcGetMemHandle = get_handle;
	return gpu;
}

/* --- the producer -------------------------------------------------------- */

static struct pointer find(CUdeviceptr at)
{
	struct pointer pointer;

	MUST(pointer_find(at, &pointer, NULL) == 0);
	return pointer;
}

static struct ipc_export *share(CUdeviceptr at)
{
	struct pointer pointer = find(at);
	struct ipc_export *export;

	MUST(ipc_export(&pointer, &export, NULL) == 0);
	return export;
}

/* Allocation i is full of i + 1; its second 256 bytes are shared. */
static int produce(void)
{
	const struct device *gpu = machine_gpu(0);
	struct ipc_export *export;
	CUdeviceptr at;
	int i;

	for (i = 0; i < N_ALLOCATIONS; i++) {
		at = gpu_alloc(gpu, SEGMENT);
		gpu_fill(gpu, at, (uint8_t)(i + 1), SEGMENT);
		export = share(at + 0x100);
		stage->handles[i] = export->handle;
		stage->offsets[i] = at + 0x100 - export->base;
		if (i == 0)
			stage->producers = at;
	}
	return 0;
}

/* Change byte 0x120 of the first allocation. */
static int mark(void)
{
	gpu_fill(machine_gpu(0), stage->producers + 0x120, 99, 1);
	return 0;
}

static const struct device *begin_two_processes(void)
{
	actor_start(&producer, NULL);
	cr_assert(zero(int, actor_run(&producer, produce)));
	return counted_gpu();
}

static struct ipc_import *open_chunk(const struct device *gpu, uint64_t chunk,
				     int allocation)
{
	struct ipc_import *import = NULL;
	struct error err = ERROR_NULL;

	if (ipc_open(gpu, chunk, &stage->handles[allocation], &import, &err) <
	    0) {
		fprintf(stderr, "open: %s\n", err.msg);
		abort();
	}
	return import;
}

/* Case 34: 0x100 bytes at 0xa100 of a segment at 0xa000, a tensor at +0x20. */
Test(ipc, a_range_is_found_at_its_offset_in_the_allocation)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *import = open_chunk(gpu, 7, 0);
	CUdeviceptr range = import->base + stage->offsets[0];

	cr_expect(eq(u64, stage->offsets[0], 0x100));
	cr_expect(eq(u64, stage->handles[0].size, SEGMENT));
	cr_expect(zero(int, actor_run(&producer, mark)));
	cr_expect(eq(u8, gpu_byte(gpu, range + 0x20), 99));
	cr_expect(eq(u8, gpu_byte(gpu, range + 0x21), 1));
	cr_expect(eq(u8, gpu_byte(gpu, import->base + SEGMENT - 1), 1));
	ipc_close(import);
}

/* Case 31, without its counters, which belong to the broker. */
Test(ipc, a_second_open_shares_the_first_mapping)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *first = open_chunk(gpu, 7, 0);
	struct ipc_import *second = open_chunk(gpu, 7, 0);

	cr_expect(eq(ptr, first, second));
	cr_expect(eq(int, n_opened, 1));
	ipc_close(first);
	cr_expect(eq(int, n_closed, 0));
	cr_expect(eq(u8, gpu_byte(gpu, second->base), 1));
	ipc_close(second);
	cr_expect(eq(int, n_closed, 1));

	first = open_chunk(gpu, 7, 0);
	cr_expect(eq(int, n_opened, 2));
	cr_expect(eq(u8, gpu_byte(gpu, first->base), 1));
	ipc_close(first);
	ipc_close(NULL);
}

Test(ipc, chunks_are_opened_and_closed_in_any_order)
{
	static const int orders[][N_ALLOCATIONS] = {
		{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
	const struct device *gpu = begin_two_processes();
	struct ipc_import *imports[N_ALLOCATIONS];
	int i, j, k;

	for (k = 0; k < 3; k++) {
		for (i = 0; i < N_ALLOCATIONS; i++) {
			j = orders[k][i];
			imports[j] = open_chunk(gpu, 10 + (uint64_t)j, j);
		}
		for (i = 0; i < N_ALLOCATIONS; i++) {
			for (j = i; j < N_ALLOCATIONS; j++)
				cr_expect(eq(u8,
					     gpu_byte(gpu, imports[j]->base),
					     j + 1));
			ipc_close(imports[i]);
		}
	}
	cr_expect(eq(int, n_opened, 9));
	cr_expect(eq(int, n_closed, 9));
}

/* The driver may give a new allocation the handle of one that was freed. */
Test(ipc, the_same_handle_with_another_number_is_another_chunk)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *first = open_chunk(gpu, 7, 0);
	struct ipc_import *second = open_chunk(gpu, 8, 0);

	cr_expect(ne(ptr, first, second));
	cr_expect(eq(int, n_opened, 2));
	ipc_close(first);
	cr_expect(eq(u8, gpu_byte(gpu, second->base), 1));
	ipc_close(second);
	cr_expect(eq(int, n_closed, 2));
}

/* Two brokers number their chunks independently. */
Test(ipc, the_same_number_with_another_handle_is_another_chunk)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *first = open_chunk(gpu, 7, 0);
	struct ipc_import *second = open_chunk(gpu, 7, 1);

	cr_expect(eq(u8, gpu_byte(gpu, first->base), 1));
	cr_expect(eq(u8, gpu_byte(gpu, second->base), 2));
	ipc_close(first);
	ipc_close(second);
	cr_expect(eq(int, n_closed, 2));
}

static void *open_in_thread(void *gpu)
{
	return open_chunk(gpu, 7, 0);
}

Test(ipc, threads_that_open_the_same_chunk_share_one_mapping)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *imports[6];
	pthread_t threads[6];
	int i;

	for (i = 0; i < 6; i++)
		MUST(pthread_create(&threads[i], NULL, open_in_thread,
				    (void *)gpu) == 0);
	for (i = 0; i < 6; i++)
		MUST(pthread_join(threads[i], (void **)&imports[i]) == 0);
	for (i = 0; i < 6; i++)
		cr_expect(eq(ptr, imports[i], imports[0]));
	cr_expect(eq(int, n_opened, 1));
	for (i = 0; i < 6; i++) {
		cr_expect(eq(u8, gpu_byte(gpu, imports[0]->base), 1));
		ipc_close(imports[i]);
	}
	cr_expect(eq(int, n_closed, 1));
}

/* Case 36: the reference refuses to send what was received. */
Test(ipc, a_received_chunk_can_be_passed_on_by_its_number)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *one = open_chunk(gpu, 7, 0);
	struct ipc_import *two = open_chunk(gpu, 8, 1);
	const CUdeviceptr base = two->base;
	uint64_t chunk = 0, offset = 0;

	cr_expect(ipc_find(base + 0x120, 0x10, &chunk, &offset));
	cr_expect(eq(u64, chunk, 8));
	cr_expect(eq(u64, offset, 0x120));
	cr_expect(ipc_find(one->base, SEGMENT, &chunk, &offset));
	cr_expect(eq(u64, chunk, 7));
	cr_expect(zero(u64, offset));
	cr_expect(not(ipc_find(one->base, SEGMENT + 1, &chunk, &offset)));
	cr_expect(not(ipc_find(one->base + 1, UINT64_MAX, &chunk, &offset)));
	cr_expect(not(ipc_find(0x1000, 1, &chunk, &offset)));
	ipc_close(two);
	cr_expect(not(ipc_find(base + 0x120, 1, &chunk, &offset)));
	cr_expect(eq(u64, chunk, 7), "written only when found");
	ipc_close(one);
}

/* --- one process --------------------------------------------------------- */

Test(ipc, an_allocation_is_shared_once_for_all_its_ranges)
{
	const struct device *gpu = counted_gpu();
	CUdeviceptr at = gpu_alloc(gpu, SEGMENT);
	struct ipc_export *a = share(at), *b, *c;
	uint64_t generation;

	b = share(at + SEGMENT - 16);
	cr_expect(eq(ptr, a, b));
	cr_expect(eq(u64, a->base, at));
	cr_expect(eq(int, n_shared, 1));
	c = share(gpu_alloc(gpu, 0x100));
	cr_expect(ne(ptr, c, a));
	cr_expect(ne(u64, c->handle.generation, a->handle.generation));
	generation = a->handle.generation;
	ipc_unexport(a);
	ipc_unexport(b);
	gpu_free(gpu, at);
	a = share(gpu_alloc(gpu, SEGMENT));
	cr_expect(ne(u64, a->handle.generation, generation),
		  "at whatever address");
	ipc_unexport(a);
	ipc_unexport(c);
	ipc_unexport(NULL);
}

Test(ipc, the_process_of_the_producer_gets_its_own_address)
{
	const struct device *gpu = counted_gpu();
	CUdeviceptr at = gpu_alloc(gpu, SEGMENT);
	struct ipc_export *export = share(at + 0x100);
	uint64_t offset, chunk;
	struct handle handle = export->handle;
	struct ipc_import *import = NULL, *second = NULL;

	cr_assert(zero(int, ipc_open(gpu, 7, &handle, &import, NULL)));
	cr_assert(zero(int, ipc_open(gpu, 7, &handle, &second, NULL)));
	cr_expect(not(ipc_find(at + 0x100, 1, &chunk, &offset)));
	ipc_unexport(export);
	cr_expect(eq(u64, import->base, at), "open is open");
	ipc_close(import);
	ipc_close(second);
	cr_expect(eq(int, ipc_open(gpu, 7, &handle, &import, NULL), -ESTALE));
	cr_expect(eq(int, n_opened, 0));
	cr_expect(eq(int, n_closed, 0));
}

Test(ipc, own_memory_that_is_no_longer_shared_is_stale)
{
	const struct device *gpu = counted_gpu();
	CUdeviceptr at = gpu_alloc(gpu, SEGMENT);
	struct ipc_import *import = NULL;
	struct ipc_export *export = share(at);
	struct handle handle = export->handle;

	ipc_unexport(export);
	cr_expect(eq(int, ipc_open(gpu, 7, &handle, &import, NULL), -ESTALE));
	/* A peer that invents a handle can only reach memory that is shared. */
	export = share(at);
	handle.generation += 1000;
	cr_expect(eq(int, ipc_open(gpu, 8, &handle, &import, NULL), -ESTALE));
	cr_expect(eq(ptr, import, NULL));
	ipc_unexport(export);
}

/* --- refusals ------------------------------------------------------------ */

static CUresult no_handle(CUipcMemHandle *handle, CUdeviceptr address)
{
	(void)handle, (void)address;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

Test(ipc, an_export_that_the_driver_refuses_leaves_no_state)
{
	const struct device *gpu = counted_gpu();
	CUdeviceptr at = gpu_alloc(gpu, SEGMENT);
	struct pointer pointer = find(at);
	struct ipc_export *export = NULL;
	struct error err = ERROR_NULL;

	cu.IpcGetMemHandle = no_handle;
	cr_expect(eq(int, ipc_export(&pointer, &export, &err), -ENOMEM));
	cr_expect(ne(ptr, strstr(err.msg, "share"), NULL), "%s", err.msg);
	cr_expect(eq(ptr, export, NULL));
	cu.IpcGetMemHandle = get_handle;
	ipc_unexport(share(at));
	cr_expect(eq(int, n_shared, 1));
}

static int try_open(const struct device *gpu, const struct handle *handle,
		    const char *word)
{
	struct ipc_import *import = NULL;
	struct error err = ERROR_NULL;
	int r = ipc_open(gpu, 7, handle, &import, &err);

	cr_expect(eq(ptr, import, NULL));
	cr_expect(ne(ptr, strstr(err.msg, word), NULL), "%s", err.msg);
	return r;
}

Test(ipc, an_open_that_fails_leaves_no_import)
{
	const struct device *gpu = begin_two_processes();

	open_result = CUDA_ERROR_INVALID_VALUE;
	cr_expect(eq(int, try_open(gpu, &stage->handles[0], "alive"), -EINVAL));
	open_result = CUDA_ERROR_ALREADY_MAPPED;
	cr_expect(eq(int, try_open(gpu, &stage->handles[0], "already open"),
		     -EEXIST));
	open_result = CUDA_ERROR_INVALID_CONTEXT;
	cr_expect(eq(int, try_open(gpu, &stage->handles[0], "same pid"),
		     -EINVAL));
	open_result = CUDA_SUCCESS;
	ipc_close(open_chunk(gpu, 7, 0));
	cr_expect(eq(int, n_opened, 4));
	cr_expect(eq(int, n_closed, 1));
}

Test(ipc, a_handle_of_another_kind_is_refused)
{
	const struct device *gpu = begin_two_processes();
	struct handle bad = stage->handles[0];

	memset(&bad.memory, 0x5a, sizeof(bad.memory));
	cr_expect(lt(int, try_open(gpu, &bad, "chunk 7"), 0));
	cr_expect(eq(int, n_closed, 0));
}

/* The driver decides what happens to memory of a dead producer. Open memory
 * stays. An H200's driver also opened more of it, perhaps because drivers put
 * small allocations into one block. */
Test(ipc, open_memory_of_a_dead_producer_stays_open)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *import = open_chunk(gpu, 8, 1), *more = NULL;
	int r;

	actor_kill(&producer);
	r = ipc_open(gpu, 7, &stage->handles[0], &more, NULL);
	cr_expect(eq(int, r < 0, more == NULL));
	if (is_fake())
		cr_expect(lt(int, r, 0));
	ipc_close(more);
	cr_expect(eq(ptr, open_chunk(gpu, 8, 1), import));
	ipc_close(import);
	ipc_close(import);
	cr_expect(eq(int, n_closed, r < 0 ? 1 : 2));
}

Test(ipc, an_allocation_smaller_than_its_handle_says_is_refused)
{
	const struct device *gpu = begin_two_processes();
	struct handle bad = stage->handles[0];

	bad.size = UINT64_C(1) << 40;
	cr_expect(eq(int, try_open(gpu, &bad, "producer says"), -EINVAL));
	cr_expect(eq(int, n_closed, 1));
}

Test(ipc, a_forked_child_is_refused_and_closes_no_mapping)
{
	const struct device *gpu = begin_two_processes();
	struct ipc_import *import = open_chunk(gpu, 7, 0), *none = NULL;
	uint64_t chunk, offset;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		const struct pointer own = {.device = gpu, .base = 1};
		struct ipc_export *export;

		if (ipc_open(gpu, 7, &stage->handles[0], &none, NULL) !=
			    -ECHILD ||
		    ipc_export(&own, &export, NULL) != -ECHILD ||
		    ipc_find(import->base, 1, &chunk, &offset))
			_exit(1);
		ipc_close(import);
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status));
	cr_expect(eq(u8, gpu_byte(gpu, import->base), 1));
	ipc_close(import);
}
