/*
 * Tests fences by timelines: streams of two processes, poison, and refusals.
 */
#include "cuda/fence.h"
#include "shm/memfd.h"
#include "shm/timeline.h"
#include "tests/lib/actor.h"
#include "tests/unit/cuda/cuda_fixture.h"
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

/* The test shares this with its producer. */
struct stage {
	sem_t gate; /* the producer's stream waits for it */
	_Atomic int data;
};

static struct stage *stage;
static struct timelines broker;
static struct actor producer;

static void setup(void)
{
	gpu_open();
	broker = TIMELINES_NULL;
	cr_assert(zero(int, timelines_create(&broker, NULL)));
	stage = shared_memory(sizeof(*stage));
	cr_assert(zero(int, sem_init(&stage->gate, 1, 0)));
}

static void teardown(void)
{
	actor_kill(&producer);
	timelines_close(&broker);
	gpu_close();
}

TestSuite(fence, .init = setup, .fini = teardown, .timeout = 300);

static const uint64_t at_5 = 5 * TIMELINE_STRIDE;

/* The counters as one of the two sides has mapped them. */
struct side {
	struct timelines timelines;
	struct fence_map map;
	CUstream stream;
};

static int side_open(struct side *side, const struct device *device,
		     bool is_readonly)
{
	int fd = -1;

	*side = (struct side){.timelines = TIMELINES_NULL};
	if (is_readonly)
		MUST(memfd_open_readonly(broker.fd, &fd, NULL) == 0);
	else
		fd = dup(broker.fd);
	MUST(timelines_open(&side->timelines, fd, !is_readonly, NULL) == 0);
	side->stream = gpu_stream(device);
	return fence_map(device, side->timelines.pages, TIMELINE_SIZE,
			 is_readonly, &side->map, NULL);
}

static void side_close(struct side *side)
{
	fence_unmap(&side->map);
	timelines_close(&side->timelines);
}

static void store_42(void *data)
{
	struct stage *to = data;

	to->data = 42;
}

static void copy_data(void *data)
{
	*(int *)data = stage->data;
}

/* The producer writes after the gate, and signals after that. */
static int produce(void)
{
	const struct device *gpu = machine_gpu(0);
	static struct side side;

	MUST(side_open(&side, gpu, false) == 0);
	gpu_run(gpu, side.stream, gate_pass, &stage->gate);
	gpu_run(gpu, side.stream, store_42, stage);
	return fence_signal(&side.map, side.stream, at_5, 1, NULL);
}

Test(fence, the_poison_equals_that_of_timeline_files)
{
	cr_expect(eq(u64, FENCE_POISON, TIMELINE_POISON));
}

Test(fence, a_stream_of_a_consumer_waits_for_a_stream_of_a_producer)
{
	const struct device *gpu;
	struct side side;
	int seen = -1;

	actor_start(&producer, NULL);
	cr_assert(zero(int, actor_run(&producer, produce)));
	gpu = machine_gpu(0);
	cr_assert(zero(int, side_open(&side, gpu, gpu->has_readonly_register)));
	cr_assert(zero(int, fence_wait(&side.map, side.stream, at_5, 1, NULL)));
	gpu_run(gpu, side.stream, copy_data, &seen);
	cr_expect(eq(int, gpu_query(gpu, side.stream), CUDA_ERROR_NOT_READY));
	cr_expect(zero(u64, timelines_load(&broker, 5)));

	sem_post(&stage->gate);
	cr_expect(zero(int, gpu_sync(gpu, side.stream)));
	cr_expect(eq(int, seen, 42));
	cr_expect(eq(u64, timelines_load(&broker, 5), 1));
	side_close(&side);
}

Test(fence, a_wait_for_a_reached_value_does_not_block)
{
	const struct device *gpu = machine_gpu(0);
	struct side side;

	cr_assert(zero(int, side_open(&side, gpu, false)));
	for (uint64_t value = 1; value <= 100; value++)
		cr_assert(zero(int, fence_signal(&side.map, side.stream, at_5,
						 value, NULL)));
	cr_expect(zero(int, gpu_sync(gpu, side.stream)));
	cr_expect(eq(u64, timelines_load(&broker, 5), 100));
	for (uint64_t value = 0; value <= 100; value++)
		cr_assert(zero(int, fence_wait(&side.map, side.stream, at_5,
					       value, NULL)));
	cr_expect(zero(int, gpu_sync(gpu, side.stream)));
	side_close(&side);
}

Test(fence, counters_are_independent)
{
	const struct device *gpu = machine_gpu(0);
	struct side side;

	cr_assert(zero(int, side_open(&side, gpu, false)));
	for (uint32_t i = 1; i < TIMELINES; i++)
		cr_assert(zero(int, fence_signal(&side.map, side.stream,
						 (uint64_t)i * TIMELINE_STRIDE,
						 1000 + i, NULL)));
	cr_expect(zero(int, gpu_sync(gpu, side.stream)));
	for (uint32_t i = 1; i < TIMELINES; i++)
		cr_expect(eq(u64, timelines_load(&broker, i), 1000 + i));
	side_close(&side);
}

Test(fence, poison_written_by_the_cpu_releases_waiters_for_a_dead_process)
{
	const struct device *gpu;
	struct side side;

	actor_start(&producer, NULL);
	cr_assert(zero(int, actor_run(&producer, produce)));
	gpu = machine_gpu(0);
	cr_assert(zero(int, side_open(&side, gpu, gpu->has_readonly_register)));
	cr_assert(zero(int, fence_wait(&side.map, side.stream, at_5,
				       FENCE_POISON - 1, NULL)));
	actor_kill(&producer);
	cr_expect(eq(int, gpu_query(gpu, side.stream), CUDA_ERROR_NOT_READY));
	timelines_poison(&broker);
	cr_expect(zero(int, gpu_sync(gpu, side.stream)));
	/* A stream that waits after the poisoning does not block either. */
	cr_assert(zero(int, fence_wait(&side.map, side.stream, at_5, 1, NULL)));
	cr_expect(zero(int, gpu_sync(gpu, side.stream)));
	side_close(&side);
}

Test(fence, default_streams_can_be_used)
{
	const struct device *gpu = machine_gpu(0);
	struct side side;

	cr_assert(zero(int, side_open(&side, gpu, false)));
	cr_expect(zero(
		int, fence_signal(&side.map, CU_STREAM_LEGACY, at_5, 1, NULL)));
	cr_expect(zero(int, fence_wait(&side.map, CU_STREAM_PER_THREAD, at_5, 1,
				       NULL)));
	cr_expect(zero(int, gpu_sync(gpu, CU_STREAM_PER_THREAD)));
	cr_expect(eq(u64, timelines_load(&broker, 5), 1));
	side_close(&side);
}

/* Returns the first device, which must be able to register pages read-only. */
static const struct device *readonly_gpu(void)
{
	const struct device *gpu = machine_gpu(0);

	if (!gpu->has_readonly_register)
		cr_skip_test("needs a device that registers pages read-only "
			     "(attribute 113)");
	return gpu;
}

/* --- refusals ------------------------------------------------------------ */

Test(fence, a_stream_of_another_context_is_refused)
{
	const struct device *gpu = machine_gpu(0), *other = machine_gpu(1);
	CUstream stream = gpu_stream(other);
	struct error err = ERROR_NULL;
	struct side side;

	cr_assert(zero(int, side_open(&side, gpu, false)));
	cr_expect(eq(int, fence_signal(&side.map, stream, at_5, 1, &err),
		     -EINVAL));
	cr_expect(ne(ptr, strstr(err.msg, "stream"), NULL), "%s", err.msg);
	cr_expect(
		eq(int, fence_wait(&side.map, stream, at_5, 1, NULL), -EINVAL));
	cr_expect(zero(int, gpu_sync(other, stream)));
	cr_expect(zero(u64, timelines_load(&broker, 5)));
	side_close(&side);
}

Test(fence, invalid_counters_and_values_are_refused)
{
	static const struct {
		uint64_t offset, value;
		const char *word;
	} bad[] = {
		{TIMELINE_SIZE, 1, "no counter"},
		{TIMELINE_SIZE - 4, 1, "no counter"},
		{UINT64_MAX - 7, 1, "no counter"},
		{TIMELINE_STRIDE + 1, 1, "no counter"},
		{TIMELINE_STRIDE, FENCE_POISON, "not a value"},
		{TIMELINE_STRIDE, UINT64_MAX, "not a value"},
	};
	struct error err = ERROR_NULL;
	struct side side;

	cr_assert(zero(int, side_open(&side, machine_gpu(0), false)));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		err = ERROR_NULL;
		cr_expect(eq(int,
			     fence_signal(&side.map, side.stream, bad[i].offset,
					  bad[i].value, &err),
			     -EINVAL));
		cr_expect(ne(ptr, strstr(err.msg, bad[i].word), NULL), "%s",
			  err.msg);
		cr_expect(eq(int,
			     fence_wait(&side.map, side.stream, bad[i].offset,
					bad[i].value, NULL),
			     -EINVAL));
	}
	cr_expect(eq(int, fence_signal(&side.map, side.stream, at_5, 0, NULL),
		     -EINVAL));
	cr_expect(zero(int, gpu_sync(machine_gpu(0), side.stream)));
	side_close(&side);
}

Test(fence, a_process_that_may_only_wait_cannot_signal)
{
	struct error err = ERROR_NULL;
	struct side side;

	cr_assert(zero(int, side_open(&side, readonly_gpu(), true)));
	cr_expect(eq(int, fence_signal(&side.map, side.stream, at_5, 1, &err),
		     -EPERM));
	cr_expect(ne(ptr, strstr(err.msg, "another session"), NULL));
	side_close(&side);
}

Test(fence, a_driver_that_cannot_register_read_only_is_refused)
{
	struct error err = ERROR_NULL;
	struct side side;

	need_fake("it must be another machine");
	unsetenv("FAKECUDA_WITH");
	cr_expect(eq(int, side_open(&side, machine_gpu(0), true), -EOPNOTSUPP));
	cr_expect(eq(int,
		     fence_map(machine_gpu(0), side.timelines.pages,
			       TIMELINE_SIZE, true, &side.map, &err),
		     -EOPNOTSUPP));
	cr_expect(ne(ptr, strstr(err.msg, "same user"), NULL), "%s", err.msg);
	cr_expect(eq(ptr, (void *)side.map.device, NULL));
	side_close(&side);
	cr_expect(zero(int, side_open(&side, machine_gpu(0), false)));
	side_close(&side);
}

Test(fence, a_device_without_stream_memory_operations_is_refused)
{
	struct side side;

	need_fake("it must be another machine");
	setenv("FAKECUDA_WITHOUT", "memops", 1);
	cr_expect(
		eq(int, side_open(&side, machine_gpu(0), false), -EOPNOTSUPP));
	side_close(&side);
}

/* --- registered pages ---------------------------------------------------- */

static int n_registered, n_unregistered;
static CUresult register_result;
static __typeof__(cuMemHostRegister) *real_register;
static __typeof__(cuMemHostUnregister) *real_unregister;

static CUresult count_register(void *pages, size_t size, unsigned int flags)
{
	n_registered++;
	if (register_result != CUDA_SUCCESS)
		return register_result;
	return real_register(pages, size, flags);
}

static CUresult count_unregister(void *pages)
{
	n_unregistered++;
	return real_unregister(pages);
}

static void count_registrations(void)
{
	MUST(driver_load(NULL) == 0);
	real_register = cu.MemHostRegister;
	cu.MemHostRegister = count_register;
	real_unregister = cu.MemHostUnregister;
	cu.MemHostUnregister = count_unregister;
}

Test(fence, pages_are_registered_once_for_all_devices)
{
	const struct device *gpu = machine_gpu(0), *other = machine_gpu(1);
	CUstream stream = gpu_stream(other);
	struct fence_map second = FENCE_MAP_NULL;
	struct side side;

	count_registrations();
	cr_assert(zero(int, side_open(&side, gpu, false)));
	cr_assert(zero(int, fence_map(other, side.timelines.pages,
				      TIMELINE_SIZE, false, &second, NULL)));
	cr_expect(eq(int, n_registered, 1));
	cr_expect(
		zero(int, fence_signal(&side.map, side.stream, at_5, 1, NULL)));
	cr_expect(zero(int, fence_wait(&second, stream, at_5, 1, NULL)));
	cr_expect(zero(int, gpu_sync(other, stream)));

	fence_unmap(&side.map);
	cr_expect(eq(int, n_unregistered, 0));
	cr_expect(zero(int, fence_signal(&second, stream, at_5, 2, NULL)));
	cr_expect(zero(int, gpu_sync(other, stream)));
	cr_expect(eq(u64, timelines_load(&broker, 5), 2));
	fence_unmap(&second);
	cr_expect(eq(int, n_unregistered, 1));
	fence_unmap(&second);
	cr_expect(eq(int, n_unregistered, 1));
	side_close(&side);
}

Test(fence, writable_pages_can_be_mapped_to_wait_but_not_the_reverse)
{
	const struct device *gpu = readonly_gpu();
	struct fence_map second = FENCE_MAP_NULL;
	struct error err = ERROR_NULL;
	struct side side;

	count_registrations();
	cr_assert(zero(int, side_open(&side, gpu, false)));
	cr_expect(zero(int, fence_map(gpu, side.timelines.pages, TIMELINE_SIZE,
				      true, &second, NULL)));
	cr_expect(eq(int, fence_signal(&second, side.stream, at_5, 1, NULL),
		     -EPERM));
	fence_unmap(&second);
	fence_unmap(&side.map);

	cr_assert(zero(int, fence_map(gpu, side.timelines.pages, TIMELINE_SIZE,
				      true, &side.map, NULL)));
	cr_expect(eq(int,
		     fence_map(gpu, side.timelines.pages, TIMELINE_SIZE, false,
			       &second, &err),
		     -EBUSY));
	cr_expect(ne(ptr, strstr(err.msg, "read-only"), NULL), "%s", err.msg);
	side_close(&side);
	cr_expect(eq(int, n_registered, 2));
	cr_expect(eq(int, n_unregistered, 2));
}

static CUresult no_device_pointer(CUdeviceptr *address, void *pages,
				  unsigned int flags)
{
	(void)address, (void)pages, (void)flags;
	return CUDA_ERROR_INVALID_VALUE;
}

Test(fence, a_mapping_that_fails_leaves_no_registration)
{
	struct error err = ERROR_NULL;
	struct side side;

	count_registrations();
	register_result = CUDA_ERROR_OUT_OF_MEMORY;
	cr_expect(eq(int, side_open(&side, machine_gpu(0), false), -ENOMEM));
	register_result = CUDA_SUCCESS;
	cu.MemHostGetDevicePointer = no_device_pointer;
	cr_expect(eq(int,
		     fence_map(machine_gpu(0), side.timelines.pages,
			       TIMELINE_SIZE, false, &side.map, &err),
		     -EINVAL));
	cr_expect(ne(str, err.msg, ""));
	cr_expect(eq(ptr, (void *)side.map.device, NULL));
	cr_expect(eq(int, n_registered, 2));
	cr_expect(eq(int, n_unregistered, 1));
	side_close(&side);
}

Test(fence, a_forked_child_is_refused_and_releases_no_registration)
{
	struct side side;
	struct fence_map map = FENCE_MAP_NULL;
	int status, r;
	pid_t pid;

	cr_assert(zero(int, side_open(&side, machine_gpu(0), false)));
	pid = fork();
	if (pid == 0) {
		r = fence_map(side.map.device, &map, TIMELINE_SIZE, false, &map,
			      NULL);
		if (fence_signal(&side.map, side.stream, at_5, 1, NULL) == 0)
			_exit(1);
		fence_unmap(&side.map);
		_exit(r == -ECHILD ? 0 : 1);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status));
	cr_expect(
		zero(int, fence_signal(&side.map, side.stream, at_5, 1, NULL)));
	cr_expect(zero(int, gpu_sync(machine_gpu(0), side.stream)));
	cr_expect(eq(u64, timelines_load(&broker, 5), 1));
	side_close(&side);
}
