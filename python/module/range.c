#include "range.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define N_RANGES 4096

/* Ranges are changed under the lock. The signal handler reads them at any
 * moment without it, so they are never freed. */
struct range {
	_Atomic uintptr_t start; /* 0 if unused */
	uintptr_t end;
	struct handle *handle;
	char name[64]; /* the beginning of the name */
};

static struct range ranges[N_RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t next; /* where the search for an unused range begins */

static void lock_for_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void unlock_after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* Without this, a fork while the lock is held would leave it locked in the
 * child. */
static void __attribute__((constructor)) guard_fork(void)
{
	pthread_atfork(lock_for_fork, unlock_after_fork, unlock_after_fork);
}

static struct range *find_unused(void)
{
	for (uint32_t i = 0; i < N_RANGES; i++) {
		struct range *range = &ranges[next++ % N_RANGES];

		if (!atomic_load(&range->start))
			return range;
	}
	return NULL;
}

struct range *range_new(struct handle *handle, const struct view *view)
{
	struct range *range;

	pthread_mutex_lock(&lock);
	range = find_unused();
	if (range) {
		range->end = (uintptr_t)view->data + view->info.size;
		range->handle = handle;
		snprintf(range->name, sizeof(range->name), "%s",
			 view->info.name);
		atomic_store(&range->start, (uintptr_t)view->data);
	}
	pthread_mutex_unlock(&lock);
	return range;
}

void range_end(struct range *range)
{
	if (!range)
		return;
	pthread_mutex_lock(&lock);
	atomic_store(&range->start, 0);
	pthread_mutex_unlock(&lock);
}

/* The caller has the lock, so the owner of a range cannot end it meanwhile. */
static struct handle *export_at(uintptr_t start, uintptr_t end)
{
	for (uint32_t i = 0; i < N_RANGES; i++)
		if (atomic_load_explicit(&ranges[i].start,
					 memory_order_relaxed) == start &&
		    ranges[i].end == end &&
		    handle_export(ranges[i].handle) == 0)
			return ranges[i].handle;
	return NULL;
}

struct handle *range_find(const void *start, size_t size)
{
	struct handle *handle;

	if (!start)
		return NULL;
	pthread_mutex_lock(&lock);
	handle = export_at((uintptr_t)start, (uintptr_t)start + size);
	pthread_mutex_unlock(&lock);
	return handle;
}

const char *range_name(const void *address)
{
	uintptr_t at = (uintptr_t)address;

	for (uint32_t i = 0; i < N_RANGES; i++) {
		uintptr_t start = atomic_load(&ranges[i].start);

		if (start && at >= start && at < ranges[i].end)
			return ranges[i].name;
	}
	return NULL;
}
