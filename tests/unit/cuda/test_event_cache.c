/*
 * Tests which thread owns a cached event, in which order events are reused, and
 * when they are destroyed. Numbers are those of the reference's cases 41, 42
 * and 44.
 */
#include "cuda/event_cache.h"
#include "tests/unit/cuda/cuda_fixture.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>

/* --- the driver, counted ------------------------------------------------- */

static _Atomic int n_made, n_destroyed;
static CUresult create_result;
static __typeof__(cuEventCreate) *real_create;
static __typeof__(cuEventDestroy) *real_destroy;
static __typeof__(cuEventQuery) *real_query;
static __typeof__(cuCtxPushCurrent) *real_push;
static _Thread_local int n_calls; /* of this thread */

static CUresult create(CUevent *event, unsigned int flags)
{
	CUresult result = create_result;

	n_calls++;
	if (result == CUDA_SUCCESS)
		result = real_create(event, flags);
	if (result == CUDA_SUCCESS)
		n_made++;
	return result;
}

static CUresult destroy(CUevent event)
{
	n_calls++;
	n_destroyed++;
	return real_destroy(event);
}

static CUresult query(CUevent event)
{
	n_calls++;
	return real_query(event);
}

static CUresult push(CUcontext context)
{
	n_calls++;
	return real_push(context);
}

static void setup(void)
{
	gpu_open();
}

/* This is not in setup(), because a test may fork before. */
static const struct device *counted_gpu(void)
{
	const struct device *gpu = machine_gpu(0);

	real_create = cu.EventCreate;
	cu.EventCreate = create;
	real_destroy = cu.EventDestroy;
	cu.EventDestroy = destroy;
	real_query = cu.EventQuery;
	cu.EventQuery = query;
	real_push = cu.CtxPushCurrent;
	cu.CtxPushCurrent = push;
	return gpu;
}

TestSuite(event_cache, .init = setup, .fini = gpu_close, .timeout = 300);

/* Tests keep the events that they take here, so that the leak checker finds
 * them. */
static struct event *taken[32768];
static _Atomic uint32_t n_taken;

static struct event *take(const struct device *gpu, enum event_kind kind)
{
	struct event *event;
	struct error err = ERROR_NULL;
	int r = event_cache_take(gpu, kind, &event, &err);

	if (r < 0) {
		fprintf(stderr, "take: %s\n", err.msg);
		abort();
	}
	taken[n_taken++ % 32768] = event;
	return event;
}

static struct event *plain(const struct device *gpu)
{
	return take(gpu, EVENT_NO_TIMING);
}

/* --- reuse --------------------------------------------------------------- */

/* Case 41. */
Test(event_cache, events_that_were_put_back_are_reused)
{
	const struct device *gpu = counted_gpu();
	struct event *a = plain(gpu), *b, *c;

	event_cache_put(a);
	cr_expect(eq(ptr, plain(gpu), a));
	cr_expect(eq(int, n_made, 1));
	b = plain(gpu);
	c = plain(gpu);
	event_cache_put(a);
	event_cache_put(b);
	event_cache_put(c);
	cr_expect(eq(ptr, plain(gpu), a));
	cr_expect(eq(ptr, plain(gpu), b));
	cr_expect(eq(ptr, plain(gpu), c));
	cr_expect(eq(int, n_made, 3));
}

/* Case 42. */
Test(event_cache, events_of_different_kinds_are_kept_apart)
{
	const struct device *gpu = counted_gpu();
	struct event *of[EVENT_KINDS], *again;
	int i;

	for (i = 0; i < EVENT_KINDS; i++)
		event_cache_put(of[i] = take(gpu, i));
	cr_expect(eq(int, n_made, EVENT_KINDS));
	for (i = EVENT_KINDS - 1; i >= 0; i--) {
		again = take(gpu, i);
		cr_expect(eq(ptr, again, of[i]));
		cr_expect(eq(int, again->kind, i));
	}
	cr_expect(eq(int, n_made, EVENT_KINDS));
}

Test(event_cache, events_of_each_kind_have_the_features_of_the_kind)
{
	const struct device *gpu = machine_gpu(0);
	CUstream stream = gpu_stream(gpu);
	struct event *begin = take(gpu, EVENT_TIMING);
	struct event *end = take(gpu, EVENT_TIMING);
	struct event *sent = take(gpu, EVENT_INTERPROCESS);
	struct event *fast = plain(gpu);
	CUipcEventHandle handle;
	float ms;

	cr_assert(zero(int, context_enter(gpu, NULL)));
	cr_assert(zero(int, cu.EventRecord(begin->handle, stream)));
	cr_assert(zero(int, cu.EventRecord(end->handle, stream)));
	cr_assert(zero(int, cu.EventRecord(fast->handle, stream)));
	cr_assert(zero(int, cu.StreamSynchronize(stream)));
	cr_expect(zero(int,
		       cu.EventElapsedTime(&ms, begin->handle, end->handle)));
	cr_expect(ne(int, cu.EventElapsedTime(&ms, begin->handle, fast->handle),
		     0));
	cr_expect(zero(int, cu.IpcGetEventHandle(&handle, sent->handle)));
	cr_expect(ne(int, cu.IpcGetEventHandle(&handle, fast->handle), 0));
	context_leave();
}

static CUresult fail_query(CUevent event)
{
	(void)event;
	return CUDA_ERROR_LAUNCH_FAILED;
}

Test(event_cache, an_event_on_a_failed_device_is_not_complete)
{
	const struct device *gpu = machine_gpu(0);
	struct event *event = plain(gpu);
	struct error err = ERROR_NULL;
	bool is_done = true;

	cr_assert(zero(int, event_query(gpu, event->handle, &is_done, NULL)));
	cr_expect(is_done, "nothing was recorded");
	cu.EventQuery = fail_query;
	cr_expect(lt(int, event_query(gpu, event->handle, &is_done, &err), 0));
	cr_expect(not(is_done));
	cr_expect(ne(str, err.msg, ""));
}

/* --- threads ------------------------------------------------------------- */

/* Run `fn` in a thread of its own, to its end. */
static void *run(void *(*fn)(void *), void *data)
{
	pthread_t thread;
	void *ret;

	MUST(pthread_create(&thread, NULL, fn, data) == 0);
	MUST(pthread_join(thread, &ret) == 0);
	return ret;
}

static void *take_one(void *gpu)
{
	return plain(gpu);
}

static void *take_and_put_one(void *gpu)
{
	struct event *event = plain(gpu);

	event_cache_put(event);
	return event;
}

Test(event_cache, events_of_different_devices_are_kept_apart)
{
	const struct device *gpu = counted_gpu(), *other = machine_gpu(1);
	struct event *a = plain(gpu), *b;

	event_cache_put(a);
	b = plain(other);
	cr_expect(ne(ptr, b, a));
	event_cache_put(b);
	cr_expect(eq(ptr, plain(gpu), a));
	cr_expect(eq(ptr, plain(other), b));
	event_cache_put(b);
	/* Events of threads that ended are not destroyed either. */
	a = run(take_and_put_one, (void *)other);
	cr_expect(ne(ptr, run(take_one, (void *)gpu), a));
	cr_expect(eq(ptr, run(take_one, (void *)other), a));
}

static void *put(void *event)
{
	n_calls = 0;
	event_cache_put(event);
	return (void *)(intptr_t)n_calls;
}

/* A thread does its first work, and then lives until `end`. */
struct visitor {
	const struct device *gpu;
	struct event *event;
	sem_t ready, go, end;
};

static void *visit(void *data)
{
	struct visitor *visitor = data;

	visitor->event = plain(visitor->gpu);
	sem_post(&visitor->ready);
	gate_pass(&visitor->go);
	visitor->event = plain(visitor->gpu);
	sem_post(&visitor->ready);
	gate_pass(&visitor->end);
	return NULL;
}

static pthread_t visitor_start(struct visitor *visitor,
			       const struct device *gpu)
{
	pthread_t thread;

	visitor->gpu = gpu;
	MUST(sem_init(&visitor->ready, 0, 0) == 0);
	MUST(sem_init(&visitor->go, 0, 0) == 0);
	MUST(sem_init(&visitor->end, 0, 0) == 0);
	MUST(pthread_create(&thread, NULL, visit, visitor) == 0);
	gate_pass(&visitor->ready);
	return thread;
}

static void visitor_end(struct visitor *visitor, pthread_t thread)
{
	sem_post(&visitor->end);
	MUST(pthread_join(thread, NULL) == 0);
}

/* Case 42. */
Test(event_cache, a_thread_does_not_get_free_events_of_another_thread)
{
	const struct device *gpu = counted_gpu();
	struct event *mine = plain(gpu), *its;

	event_cache_put(mine);
	its = run(take_one, (void *)gpu);
	cr_expect(ne(ptr, its, mine));
	cr_expect(eq(int, n_made, 2));
}

Test(event_cache, an_event_returns_to_its_cache_from_any_thread)
{
	const struct device *gpu = counted_gpu();
	struct visitor visitor;
	pthread_t thread = visitor_start(&visitor, gpu);
	struct event *its = visitor.event, *mine = plain(gpu);

	event_cache_put(its); /* put by this thread */
	cr_expect(ne(ptr, plain(gpu), its));
	sem_post(&visitor.go);
	gate_pass(&visitor.ready);
	cr_expect(eq(ptr, visitor.event, its));
	visitor_end(&visitor, thread);
	run(put, mine);
	cr_expect(eq(ptr, plain(gpu), mine));
	cr_expect(eq(int, n_made, 3));
}

Test(event_cache, putting_events_back_never_calls_the_driver)
{
	const struct device *gpu = counted_gpu();
	struct event *events[EVENT_CACHE_MAX + 10];
	int i;

	for (i = 0; i < EVENT_CACHE_MAX + 10; i++)
		events[i] = plain(gpu);
	for (i = 0; i < EVENT_CACHE_MAX + 10; i++)
		cr_expect(zero(long, (long)run(put, events[i])));
	cr_expect(eq(int, n_destroyed, 0));
	event_cache_put(NULL);
}

Test(event_cache, the_cache_of_a_thread_that_ended_is_reused_by_another)
{
	const struct device *gpu = counted_gpu();
	struct event *mine = plain(gpu);
	struct event *late = run(take_one, (void *)gpu);

	event_cache_put(late); /* its thread has ended */
	cr_expect(ne(ptr, plain(gpu), late));
	cr_expect(eq(ptr, run(take_one, (void *)gpu), late));
	event_cache_put(mine);
	cr_expect(eq(int, n_made, 3));
}

Test(event_cache, a_live_thread_keeps_its_cache)
{
	const struct device *gpu = counted_gpu();
	struct visitor visitor;
	pthread_t thread = visitor_start(&visitor, gpu);
	struct event *its = visitor.event;

	event_cache_put(its);
	cr_expect(ne(ptr, run(take_one, (void *)gpu), its));
	sem_post(&visitor.go);
	gate_pass(&visitor.ready);
	cr_expect(eq(ptr, visitor.event, its));
	visitor_end(&visitor, thread);
}

Test(event_cache, successive_threads_share_one_event)
{
	const struct device *gpu = counted_gpu();

	for (int i = 0; i < 100; i++)
		run(take_and_put_one, (void *)gpu);
	cr_expect(eq(int, n_made, 1));
	cr_expect(eq(int, n_destroyed, 0));
}

static void *churn(void *data)
{
	const struct device *gpu = data;
	struct event *held[8] = {NULL};

	for (int i = 0; i < 4000; i++) {
		event_cache_put(held[i % 8]);
		held[i % 8] = take(gpu, i % EVENT_KINDS);
	}
	for (int i = 0; i < 8; i++)
		event_cache_put(held[i]);
	return NULL;
}

Test(event_cache, concurrent_threads_lose_no_event)
{
	const struct device *gpu = counted_gpu();
	pthread_t threads[6];
	int round, i;

	for (round = 0; round < 3; round++) {
		for (i = 0; i < 6; i++)
			MUST(pthread_create(&threads[i], NULL, churn,
					    (void *)gpu) == 0);
		for (i = 0; i < 6; i++)
			MUST(pthread_join(threads[i], NULL) == 0);
		/* There are at most six caches, each with up to eight events of
		 * a kind. */
		cr_expect(le(int, n_made, 6 * 8 * EVENT_KINDS));
	}
	cr_expect(eq(int, n_destroyed, 0));
}

/* --- the bound ----------------------------------------------------------- */

#define BURST 500

static struct event *burst[BURST];

static void make_burst(const struct device *gpu)
{
	for (int i = 0; i < BURST; i++)
		burst[i] = plain(gpu);
}

static void put_burst(void)
{
	for (int i = 0; i < BURST; i++)
		event_cache_put(burst[i]);
}

/* Case 44: the reference never destroys any of the 500. */
Test(event_cache,
     after_a_burst_the_oldest_events_beyond_the_limit_are_destroyed)
{
	const struct device *gpu = counted_gpu();
	struct event *first_kept;

	make_burst(gpu);
	first_kept = burst[BURST - EVENT_CACHE_MAX];
	put_burst();
	cr_expect(eq(int, n_destroyed, 0));
	cr_expect(eq(ptr, plain(gpu), first_kept));
	cr_expect(eq(int, n_destroyed, BURST - EVENT_CACHE_MAX));
	for (int i = 1; i < EVENT_CACHE_MAX; i++)
		plain(gpu);
	cr_expect(eq(int, n_made, BURST));
	plain(gpu);
	cr_expect(eq(int, n_made, BURST + 1));
}

Test(event_cache, the_limit_applies_to_each_kind)
{
	const struct device *gpu = counted_gpu();

	make_burst(gpu);
	put_burst();
	event_cache_put(take(gpu, EVENT_TIMING));
	cr_expect(eq(int, n_destroyed, 0));
}

Test(event_cache, events_that_are_not_complete_are_not_destroyed)
{
	const struct device *gpu = counted_gpu();
	CUstream stream = gpu_stream(gpu);
	sem_t gate;

	cr_assert(zero(int, sem_init(&gate, 0, 0)));
	make_burst(gpu);
	gpu_run(gpu, stream, gate_pass, &gate);
	cr_assert(zero(int, context_enter(gpu, NULL)));
	cr_assert(zero(int, cu.EventRecord(burst[100]->handle, stream)));
	context_leave();
	put_burst();
	/* The hundred events before this one are done. */
	cr_expect(eq(ptr, plain(gpu), burst[100]));
	cr_expect(eq(int, n_destroyed, 100));
	event_cache_put(burst[100]);

	sem_post(&gate);
	cr_expect(zero(int, gpu_sync(gpu, stream)));
	plain(gpu);
	cr_expect(eq(int, n_destroyed, BURST - EVENT_CACHE_MAX));
}

static void *idle(void *data)
{
	make_burst(data);
	put_burst();
	return NULL;
}

/* tests/stress/event_cache_stress tests the end of the process. */
Test(event_cache, the_end_of_a_thread_destroys_no_event)
{
	const struct device *gpu = counted_gpu();

	run(idle, (void *)gpu);
	cr_expect(eq(int, n_destroyed, 0));
	cr_expect(eq(ptr, plain(gpu), burst[BURST - EVENT_CACHE_MAX]),
		  "the next owner does, when it takes");
	cr_expect(eq(int, n_destroyed, BURST - EVENT_CACHE_MAX));
}

/* --- refusals ------------------------------------------------------------ */

Test(event_cache, an_event_that_cannot_be_created_leaves_no_state)
{
	const struct device *gpu = counted_gpu();
	struct event *event = NULL;
	struct error err = ERROR_NULL;

	create_result = CUDA_ERROR_OUT_OF_MEMORY;
	cr_expect(eq(int, event_cache_take(gpu, EVENT_TIMING, &event, &err),
		     -ENOMEM));
	cr_expect(ne(ptr, strstr(err.msg, "event"), NULL), "%s", err.msg);
	cr_expect(eq(ptr, event, NULL));
	create_result = CUDA_SUCCESS;
	cr_expect(zero(int, event_cache_take(gpu, EVENT_TIMING, &event, NULL)));
	event_cache_put(event);
}

Test(event_cache, a_device_without_interprocess_events_is_refused)
{
	struct event *event = NULL;
	const struct device *gpu;

	need_fake("it must be another machine");
	setenv("FAKECUDA_WITHOUT", "ipc_events", 1);
	gpu = machine_gpu(0);
	cr_expect(eq(int,
		     event_cache_take(gpu, EVENT_INTERPROCESS, &event, NULL),
		     -EOPNOTSUPP));
	cr_expect(ne(ptr, plain(gpu), NULL));
}

static _Atomic bool is_over;
static _Atomic(struct event *) hammers;

static void *hammer(void *gpu)
{
	hammers = plain(gpu);
	while (!is_over)
		event_cache_put(plain(gpu));
	return NULL;
}

/* This runs in a child that was forked at a random moment, so any lock may be
 * held. */
static void *be_forked(void *gpu)
{
	struct event *event = NULL;
	int r = event_cache_take(gpu, EVENT_NO_TIMING, &event, NULL);

	return (void *)(intptr_t)(r == -ECHILD && !event);
}

Test(event_cache, a_forked_child_is_refused_and_never_waits)
{
	const struct device *gpu = machine_gpu(0);
	pthread_t thread;
	int status, i;
	pid_t pid;

	MUST(pthread_create(&thread, NULL, hammer, (void *)gpu) == 0);
	while (!hammers)
		sched_yield();
	for (i = 0; i < 50; i++) {
		pid = fork();
		if (pid == 0) {
			event_cache_put(hammers);
			_exit(be_forked((void *)gpu) ? 0 : 1);
		}
		cr_assert(eq(int, waitpid(pid, &status, 0), pid));
		cr_expect(zero(int, status));
	}
	is_over = true;
	MUST(pthread_join(thread, NULL) == 0);
}
