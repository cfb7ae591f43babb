/*
 * Tests the event cache with threads that come, go, and put back each other's
 * events. At any time an event must belong to one thread. A thread that has
 * taken an event writes a mark into it, with plain stores, and leaves it on a
 * table from which another thread puts it back. If an event had two owners at
 * the same time, they would see each other's mark, and would be a race under
 * ThreadSanitizer. At the end the program exits with full caches, which must
 * not destroy any event.
 */
#include "cuda/event_cache.h"
#include "proto/error.h"
#include "tests/stress/stress.h"

#define N_THREADS 4
#define N_ROUNDS  20   /* in each of them all threads start anew */
#define N_TAKEN   2000 /* by each thread */
#define N_SEATS   64

static const struct device *gpu;
static _Atomic(struct event *) table[N_SEATS];

/* The event is not in a cache, so its link may be written. */
static void mark(struct event *event)
{
	event->next = event;
}

static void unmark_and_put(struct event *event)
{
	check(event->next == event, "an event had two owners");
	event->next = NULL;
	event_cache_put(event);
}

static bool is_ending;
static __typeof__(cuEventDestroy) *real_destroy;

static CUresult destroy(CUevent event)
{
	check(!is_ending, "an event was destroyed at the end of the process");
	return real_destroy(event);
}

static void *work(void *data)
{
	unsigned int seed = (unsigned int)(uintptr_t)data;
	struct event *event;
	int i;

	for (i = 0; i < N_TAKEN; i++) {
		check(event_cache_take(gpu, i % EVENT_KINDS, &event, NULL) == 0,
		      "there is no event");
		check(event->kind == (enum event_kind)(i % EVENT_KINDS),
		      "an event is of another kind");
		mark(event);
		event = atomic_exchange(&table[rand_r(&seed) % N_SEATS], event);
		if (event)
			unmark_and_put(event);
	}
	return NULL;
}

int main(void)
{
	pthread_t threads[N_THREADS];
	struct error err = ERROR_NULL;
	uint32_t n, round, i;

	if (device_list(&gpu, &n, &err) < 0) {
		fprintf(stderr, "event_cache_stress: %s\n", err.msg);
		return EXIT_FAILURE;
	}
	real_destroy = cu.EventDestroy;
	cu.EventDestroy = destroy;
	for (round = 0; round < N_ROUNDS; round++) {
		for (i = 0; i < N_THREADS; i++)
			check(pthread_create(&threads[i], NULL, work,
					     (void *)(uintptr_t)(round * 100 +
								 i)) == 0,
			      "there is no thread");
		for (i = 0; i < N_THREADS; i++)
			pthread_join(threads[i], NULL);
	}
	for (i = 0; i < N_SEATS; i++)
		if (table[i])
			unmark_and_put(table[i]);
	is_ending = true;
	return EXIT_SUCCESS;
}
