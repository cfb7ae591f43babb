/*
 * Tests order by interprocess events: two processes, the budget, and refusals.
 */
#include "cuda/event_cache.h"
#include "cuda/event_ipc.h"
#include "tests/lib/actor.h"
#include "tests/unit/cuda/cuda_fixture.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

/* The test shares this with its producer. */
struct stage {
	sem_t gate; /* the producer's stream waits for it */
	_Atomic int data;
	struct handle handle;
};

static struct stage *stage;
static struct actor producer;

static void setup(void)
{
	gpu_open();
	stage = shared_memory(sizeof(*stage));
	cr_assert(zero(int, sem_init(&stage->gate, 1, 0)));
}

static void teardown(void)
{
	actor_kill(&producer);
	gpu_close();
}

TestSuite(event_ipc, .init = setup, .fini = teardown, .timeout = 300);

/* --- the driver, counted and made to fail -------------------------------- */

static int n_opened, n_destroyed;
static __typeof__(cuIpcOpenEventHandle) *real_open;
static __typeof__(cuEventDestroy) *real_destroy;

static CUresult open_event(CUevent *event, CUipcEventHandle handle)
{
	n_opened++;
	return real_open(event, handle);
}

static CUresult destroy(CUevent event)
{
	n_destroyed++;
	return real_destroy(event);
}

static const struct device *counted_gpu(void)
{
	const struct device *gpu = machine_gpu(0);

	real_open = cu.IpcOpenEventHandle;
	cu.IpcOpenEventHandle = open_event;
	real_destroy = cu.EventDestroy;
	cu.EventDestroy = destroy;
	return gpu;
}

static int n_created;
static __typeof__(cuEventCreate) *real_create;

static sem_t creating, go_on;

static CUresult slow_create(CUevent *event, unsigned int flags)
{
	CUresult result = real_create(event, flags);

	sem_post(&creating);
	gate_pass(&go_on);
	return result;
}

static CUresult fail_create(CUevent *event, unsigned int flags)
{
	(void)event, (void)flags;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult count_create(CUevent *event, unsigned int flags)
{
	n_created++;
	return real_create(event, flags);
}

static CUresult fail_record(CUevent event, CUstream stream)
{
	(void)event, (void)stream;
	return CUDA_ERROR_INVALID_HANDLE;
}

static CUresult fail_handle(CUipcEventHandle *handle, CUevent event)
{
	(void)handle, (void)event;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- two processes ------------------------------------------------------- */

static void store_42(void *data)
{
	struct stage *to = data;

	to->data = 42;
}

static void copy_data(void *data)
{
	*(int *)data = stage->data;
}

static struct event_ipc *sent; /* belongs to the producer */

/* The producer writes after the gate, and records after that. */
static int produce(void)
{
	const struct device *gpu = machine_gpu(0);
	CUstream stream = gpu_stream(gpu);
	int r;

	gpu_run(gpu, stream, gate_pass, &stage->gate);
	gpu_run(gpu, stream, store_42, stage);
	r = event_ipc_record(gpu, stream, &sent, NULL);
	if (r == 0)
		stage->handle = sent->handle;
	return r;
}

static int sent_is_done(void)
{
	bool is_done = false;
	int r = event_ipc_query(sent, &is_done, NULL);

	return r < 0 ? r : is_done;
}

static int finish(void)
{
	return gpu_sync(machine_gpu(0), sent->stream) == CUDA_SUCCESS ? 0
								      : -EIO;
}

static int drop(void)
{
	event_ipc_drop(sent);
	return 0;
}

static const struct device *begin_two_processes(void)
{
	actor_start(&producer, NULL);
	cr_assert(zero(int, actor_run(&producer, produce)));
	return counted_gpu();
}

Test(event_ipc, a_stream_of_a_consumer_waits_for_a_stream_of_a_producer)
{
	const struct device *gpu = begin_two_processes();
	CUstream stream = gpu_stream(gpu);
	struct event_ipc_import *import;
	int seen = -1;

	cr_assert(
		zero(int, event_ipc_open(gpu, &stage->handle, &import, NULL)));
	cr_assert(zero(int, event_ipc_wait(import, gpu, stream, NULL)));
	event_ipc_close(import);
	gpu_run(gpu, stream, copy_data, &seen);
	cr_expect(eq(int, gpu_query(gpu, stream), CUDA_ERROR_NOT_READY));

	sem_post(&stage->gate);
	cr_expect(zero(int, gpu_sync(gpu, stream)));
	cr_expect(eq(int, seen, 42));
	cr_expect(zero(int, actor_run(&producer, drop)));
}

Test(event_ipc, both_sides_can_query_whether_an_event_is_complete)
{
	const struct device *gpu = begin_two_processes();
	struct event_ipc_import *import;
	bool is_done = true;

	cr_assert(
		zero(int, event_ipc_open(gpu, &stage->handle, &import, NULL)));
	cr_expect(zero(int, event_ipc_import_query(import, &is_done, NULL)));
	cr_expect(not(is_done));
	cr_expect(eq(int, actor_run(&producer, sent_is_done), 0));
	sem_post(&stage->gate);
	cr_expect(zero(int, actor_run(&producer, finish)));
	cr_expect(eq(int, actor_run(&producer, sent_is_done), 1));
	cr_expect(zero(int, event_ipc_import_query(import, &is_done, NULL)));
	cr_expect(is_done);
	event_ipc_close(import);
}

Test(event_ipc, a_stream_of_another_device_can_wait)
{
	const struct device *gpu = begin_two_processes();
	const struct device *other = machine_gpu(1);
	CUstream stream = gpu_stream(other);
	struct event_ipc_import *import;
	int seen = -1;

	cr_assert(
		zero(int, event_ipc_open(gpu, &stage->handle, &import, NULL)));
	cr_assert(zero(int, event_ipc_wait(import, other, stream, NULL)));
	gpu_run(other, stream, copy_data, &seen);
	cr_expect(eq(int, event_ipc_wait(import, gpu, stream, NULL), -EINVAL),
		  "the stream is not that device's");
	sem_post(&stage->gate);
	cr_expect(zero(int, gpu_sync(other, stream)));
	cr_expect(eq(int, seen, 42));
	event_ipc_close(import);
}

Test(event_ipc, a_handle_is_opened_once_and_closed_by_the_last_user)
{
	const struct device *gpu = begin_two_processes();
	struct event_ipc_import *a, *b;

	cr_assert(zero(int, event_ipc_open(gpu, &stage->handle, &a, NULL)));
	cr_assert(zero(int, event_ipc_open(gpu, &stage->handle, &b, NULL)));
	cr_expect(eq(ptr, a, b));
	cr_expect(eq(int, n_opened, 1));
	event_ipc_close(a);
	cr_expect(eq(int, n_destroyed, 0));
	cr_expect(zero(int, event_ipc_wait(b, gpu, gpu_stream(gpu), NULL)));
	event_ipc_close(b);
	cr_expect(eq(int, n_destroyed, 1));
	sem_post(&stage->gate);
}

Test(event_ipc, a_handle_that_the_driver_refuses_leaves_no_import)
{
	const struct device *gpu = begin_two_processes();
	struct event_ipc_import *import = NULL;
	struct error err = ERROR_NULL;

	memset(&stage->handle.event, 0x5a, sizeof(stage->handle.event));
	cr_expect(
		lt(int, event_ipc_open(gpu, &stage->handle, &import, &err), 0));
	cr_expect(ne(ptr, strstr(err.msg, "/dev/shm"), NULL), "%s", err.msg);
	cr_expect(eq(ptr, import, NULL));
	cr_expect(
		lt(int, event_ipc_open(gpu, &stage->handle, &import, NULL), 0));
	cr_expect(eq(int, n_opened, 2));
	cr_expect(eq(int, n_destroyed, 0));
	sem_post(&stage->gate);
}

/* --- one process --------------------------------------------------------- */

static struct event_ipc *record(const struct device *gpu, CUstream stream)
{
	struct event_ipc *event = NULL;
	struct error err = ERROR_NULL;

	if (event_ipc_record(gpu, stream, &event, &err) < 0) {
		fprintf(stderr, "record: %s\n", err.msg);
		abort();
	}
	return event;
}

static struct event_ipc *all[EVENT_IPC_MAX];

static void record_all(const struct device *gpu, CUstream stream)
{
	for (int i = 0; i < EVENT_IPC_MAX; i++)
		all[i] = record(gpu, stream);
}

static void expect_full(const struct device *gpu, CUstream stream)
{
	struct event_ipc *event = NULL;
	struct error err = ERROR_NULL;

	cr_expect(
		eq(int, event_ipc_record(gpu, stream, &event, &err), -EAGAIN));
	cr_expect(ne(ptr, strstr(err.msg, "1000"), NULL), "%s", err.msg);
	cr_expect(eq(ptr, event, NULL));
}

/* Check that nothing is in flight: the whole budget can be recorded. */
static void expect_none(const struct device *gpu, CUstream stream)
{
	record_all(gpu, stream);
	expect_full(gpu, stream);
}

Test(event_ipc, in_its_own_process_an_event_is_used_directly)
{
	const struct device *gpu = counted_gpu();
	CUstream from = gpu_stream(gpu), to = gpu_stream(gpu);
	struct event_ipc_import *import;
	struct event_ipc *event;
	int seen = -1;

	gpu_run(gpu, from, gate_pass, &stage->gate);
	gpu_run(gpu, from, store_42, stage);
	event = record(gpu, from);
	cr_assert(
		zero(int, event_ipc_open(gpu, &event->handle, &import, NULL)));
	cr_expect(eq(ptr, import->event, event->event->handle));
	cr_assert(zero(int, event_ipc_wait(import, gpu, to, NULL)));
	gpu_run(gpu, to, copy_data, &seen);
	cr_expect(eq(int, gpu_query(gpu, to), CUDA_ERROR_NOT_READY));
	event_ipc_close(import);
	sem_post(&stage->gate);
	cr_expect(zero(int, gpu_sync(gpu, to)));
	cr_expect(eq(int, seen, 42));
	event_ipc_drop(event);
	cr_expect(eq(int, n_opened, 0));
	cr_expect(eq(int, n_destroyed, 0));
	expect_none(gpu, from);
}

Test(event_ipc, an_own_event_that_is_open_is_not_reused_when_dropped)
{
	const struct device *gpu = counted_gpu();
	CUstream stream = gpu_stream(gpu);
	struct event_ipc *event = record(gpu, stream), *next;
	struct handle handle = event->handle;
	struct event_ipc_import *import;

	cr_assert(zero(int, event_ipc_open(gpu, &handle, &import, NULL)));
	event_ipc_drop(event);
	next = record(gpu, stream);
	cr_expect(ne(ptr, next->event->handle, import->event));
	event_ipc_close(import);
	event_ipc_drop(next);
}

Test(event_ipc, an_own_event_that_was_dropped_is_stale_even_after_its_reuse)
{
	const struct device *gpu = counted_gpu();
	CUstream stream = gpu_stream(gpu);
	struct event_ipc *event = record(gpu, stream);
	struct handle handle = event->handle;
	struct event_ipc_import *import = NULL;

	event_ipc_drop(event);
	event = record(gpu, stream);
	cr_expect(zero(int, memcmp(&event->handle.event, &handle.event,
				   sizeof(handle.event))),
		  "the cache gives the same event");
	cr_expect(
		eq(int, event_ipc_open(gpu, &handle, &import, NULL), -ESTALE));
	cr_expect(eq(ptr, import, NULL));
	event_ipc_drop(event);
}

/* --- the budget ---------------------------------------------------------- */

/* The reference makes the CPU wait for the device instead. */
Test(event_ipc, the_1001st_event_in_flight_is_refused_at_once)
{
	const struct device *gpu = machine_gpu(0);
	CUstream stream = gpu_stream(gpu);

	/* A thread that waited for this stream would never return. */
	gpu_run(gpu, stream, gate_pass, &stage->gate);
	record_all(gpu, stream);
	expect_full(gpu, stream);
	event_ipc_drop(all[500]);
	all[500] = record(gpu, stream);
	expect_full(gpu, stream);
	for (int i = 0; i < EVENT_IPC_MAX; i++)
		event_ipc_drop(all[i]);
	event_ipc_drop(record(gpu, stream));
	sem_post(&stage->gate);
	cr_expect(zero(int, gpu_sync(gpu, stream)));
	event_ipc_drop(NULL);
}

static _Atomic int n_recorded, n_refused;

static void *record_until_refused(void *stream)
{
	struct event_ipc *event;

	while (n_refused == 0) {
		if (event_ipc_record(machine_gpu(0), stream, &event, NULL) == 0)
			all[n_recorded++ % EVENT_IPC_MAX] = event;
		else
			n_refused++;
	}
	return NULL;
}

Test(event_ipc, threads_share_the_budget_exactly)
{
	const struct device *gpu = machine_gpu(0);
	CUstream stream = gpu_stream(gpu);
	pthread_t threads[8];
	int i;

	for (i = 0; i < 8; i++)
		MUST(pthread_create(&threads[i], NULL, record_until_refused,
				    stream) == 0);
	for (i = 0; i < 8; i++)
		MUST(pthread_join(threads[i], NULL) == 0);
	cr_expect(eq(int, n_recorded, EVENT_IPC_MAX));
	for (i = 0; i < EVENT_IPC_MAX; i++)
		event_ipc_drop(all[i]);
}

/* Let more calls fail than the budget has units. */
static void fail_often(const struct device *gpu, CUstream stream, int code)
{
	struct event_ipc *event = NULL;
	struct error err = ERROR_NULL;

	for (int i = 0; i <= EVENT_IPC_MAX; i++) {
		cr_assert(eq(int, event_ipc_record(gpu, stream, &event, &err),
			     code),
			  "%s", err.msg);
		cr_assert(eq(ptr, event, NULL));
	}
}

Test(event_ipc, an_event_that_cannot_be_recorded_does_not_count)
{
	const struct device *gpu = machine_gpu(0);
	CUstream stream = gpu_stream(gpu);
	const struct driver real = cu;

	cu.EventCreate = fail_create;
	fail_often(gpu, stream, -ENOMEM);
	cu = real;
	real_create = cu.EventCreate;
	cu.EventCreate = count_create;
	cu.EventRecord = fail_record;
	fail_often(gpu, stream, -EINVAL);
	cu.EventRecord = real.EventRecord;
	cu.IpcGetEventHandle = fail_handle;
	fail_often(gpu, stream, -ENOMEM);
	cu = real;
	cr_expect(eq(int, n_created, 1), "and the event is kept");
	expect_none(gpu, stream);
}

static void *record_one(void *stream)
{
	return record(machine_gpu(0), stream);
}

/* If an event were counted after it is made, two threads could exceed the
 * budget by one. */
Test(event_ipc, an_event_is_counted_before_it_is_created)
{
	const struct device *gpu = machine_gpu(0);
	CUstream stream = gpu_stream(gpu);
	pthread_t thread;

	for (int i = 1; i < EVENT_IPC_MAX; i++)
		all[i] = record(gpu, stream);
	cr_assert(zero(int, sem_init(&creating, 0, 0)));
	cr_assert(zero(int, sem_init(&go_on, 0, 0)));
	real_create = cu.EventCreate;
	cu.EventCreate = slow_create;
	MUST(pthread_create(&thread, NULL, record_one, stream) == 0);
	gate_pass(&creating);
	expect_full(gpu, stream);
	sem_post(&go_on);
	MUST(pthread_join(thread, (void **)&all[0]) == 0);
	expect_full(gpu, stream);
}

/* --- refusals ------------------------------------------------------------ */

Test(event_ipc, a_stream_of_another_device_cannot_be_recorded)
{
	const struct device *gpu = machine_gpu(0), *other = machine_gpu(1);
	struct event_ipc *event = NULL;
	struct error err = ERROR_NULL;

	cr_expect(eq(int,
		     event_ipc_record(gpu, gpu_stream(other), &event, &err),
		     -EINVAL));
	cr_expect(ne(ptr, strstr(err.msg, "the stream is of"), NULL));
	cr_expect(eq(ptr, event, NULL));
}

Test(event_ipc, a_device_without_interprocess_events_is_refused)
{
	const struct device *gpu;
	struct event_ipc *event = NULL;
	struct event_ipc_import *import = NULL;
	struct error err = ERROR_NULL;

	need_fake("it must be another machine");
	setenv("FAKECUDA_WITHOUT", "ipc_events", 1);
	gpu = machine_gpu(0);
	cr_expect(eq(int, event_ipc_record(gpu, gpu_stream(gpu), &event, &err),
		     -EOPNOTSUPP));
	cr_expect(ne(ptr, strstr(err.msg, "interprocess"), NULL));
	cr_expect(eq(int, event_ipc_open(gpu, &stage->handle, &import, NULL),
		     -EOPNOTSUPP));
}

Test(event_ipc, a_forked_child_is_refused)
{
	const struct device *gpu = machine_gpu(0);
	CUstream stream = gpu_stream(gpu);
	struct event_ipc *event = record(gpu, stream), *none = NULL;
	struct event_ipc_import *import = NULL;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		if (event_ipc_record(gpu, stream, &none, NULL) != -ECHILD ||
		    event_ipc_open(gpu, &event->handle, &import, NULL) !=
			    -ECHILD)
			_exit(1);
		event_ipc_drop(event);
		_exit(0);
	}
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status));
	event_ipc_drop(event);
}
