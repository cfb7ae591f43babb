/*
 * Each thread has a cache of events for each device.
 *
 * Caches are never freed, so the cache of an event always exists. There are two
 * kinds of locks: each cache has one for its bins, which is held for a few
 * stores; a global one protects the ownership of caches, and is taken when a
 * thread starts or ends. Neither is held during a driver call.
 */
#include "cuda/event_cache.h"
#include "cuda/context.h"
#include "proto/error.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Unused events, in the order in which they were put back. */
struct bin {
	struct event *first, *last;
	uint32_t n;
};

struct event_cache {
	const struct device *device;
	struct event_cache *next; /* next of all caches */
	/* next of the same thread; only it uses this */
	struct event_cache *next_mine;
	bool is_owned;
	pthread_mutex_t lock; /* protects the bins */
	struct bin bins[EVENT_KINDS];
};

static struct {
	pthread_mutex_t lock; /* protects the list and every `is_owned` */
	struct event_cache *first;
	pthread_once_t once;
	pthread_key_t key; /* refers to a thread's first cache */
	int r;             /* result of making the key */
} caches = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

/* --- bins ---------------------------------------------------------------- */

static void push(struct bin *bin, struct event *event)
{
	event->next = NULL;
	if (bin->last)
		bin->last->next = event;
	else
		bin->first = event;
	bin->last = event;
	bin->n++;
}

/* Takes the oldest event if the bin has more than `n_kept` events. */
static struct event *pop(struct event_cache *cache, enum event_kind kind,
			 uint32_t n_kept)
{
	struct bin *bin = &cache->bins[kind];
	struct event *event = NULL;

	pthread_mutex_lock(&cache->lock);
	if (bin->n > n_kept) {
		event = bin->first;
		bin->first = event->next;
		if (!bin->first)
			bin->last = NULL;
		bin->n--;
	}
	pthread_mutex_unlock(&cache->lock);
	return event;
}

static void unpop(struct event *event)
{
	struct event_cache *cache = event->home;
	struct bin *bin = &cache->bins[event->kind];

	pthread_mutex_lock(&cache->lock);
	event->next = bin->first;
	bin->first = event;
	if (!bin->last)
		bin->last = event;
	bin->n++;
	pthread_mutex_unlock(&cache->lock);
}

void event_cache_put(struct event *event)
{
	struct event_cache *cache;

	/* In a forked child the lock may be held forever. */
	if (!event || driver_load(NULL) < 0)
		return;
	cache = event->home;
	pthread_mutex_lock(&cache->lock);
	push(&cache->bins[event->kind], event);
	pthread_mutex_unlock(&cache->lock);
}

/* --- which cache is a thread's ------------------------------------------- */

static void on_thread_end(void *first)
{
	struct event_cache *cache, *next;

	/* A forked child owns no cache, and the lock may be held forever
	 * there. */
	if (driver_load(NULL) < 0)
		return;
	pthread_mutex_lock(&caches.lock);
	for (cache = first; cache; cache = next) {
		next = cache->next_mine;
		cache->is_owned = false;
	}
	pthread_mutex_unlock(&caches.lock);
}

static void make_key(void)
{
	caches.r = -pthread_key_create(&caches.key, on_thread_end);
}

static struct event_cache *new_cache(const struct device *device)
{
	struct event_cache *cache = calloc(1, sizeof(*cache));

	if (!cache)
		return NULL;
	cache->device = device;
	pthread_mutex_init(&cache->lock, NULL);
	cache->next = caches.first;
	caches.first = cache;
	return cache;
}

/* Returns a cache of a thread that has ended, or a new one, or NULL if there is
 * no memory. */
static struct event_cache *own_some(const struct device *device)
{
	struct event_cache *cache;

	pthread_mutex_lock(&caches.lock);
	for (cache = caches.first; cache; cache = cache->next)
		if (!cache->is_owned && cache->device == device)
			break;
	if (!cache)
		cache = new_cache(device);
	if (cache)
		cache->is_owned = true;
	pthread_mutex_unlock(&caches.lock);
	return cache;
}

static int find_mine(const struct device *device, struct event_cache **ret,
		     struct error *err)
{
	struct event_cache *first, *cache;
	int r;

	pthread_once(&caches.once, make_key);
	if (caches.r < 0)
		return error_errno(
			err, caches.r,
			"cannot make a thread-specific key for events");
	first = pthread_getspecific(caches.key);
	for (cache = first; cache; cache = cache->next_mine)
		if (cache->device == device) {
			*ret = cache;
			return 0;
		}
	cache = own_some(device);
	if (!cache)
		return error_nomem(err, "cached events");
	cache->next_mine = NULL;
	r = -pthread_setspecific(caches.key, cache);
	if (r < 0) {
		on_thread_end(cache);
		return error_errno(err, r, "cannot keep events of this thread");
	}
	cache->next_mine = first;
	*ret = cache;
	return 0;
}

/* --- events -------------------------------------------------------------- */

static const unsigned int flags_of[EVENT_KINDS] = {
	[EVENT_TIMING] = CU_EVENT_DEFAULT,
	[EVENT_NO_TIMING] = CU_EVENT_DISABLE_TIMING,
	[EVENT_INTERPROCESS] = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS,
};

static int make_event(struct event_cache *cache, enum event_kind kind,
		      struct event **ret, struct error *err)
{
	struct event *event = malloc(sizeof(*event));
	CUresult result;
	int r;

	if (!event)
		return error_nomem(err, "an event");
	*event = (struct event){.kind = kind, .home = cache};
	r = context_enter(cache->device, err);
	if (r == 0) {
		result = cu.EventCreate(&event->handle, flags_of[kind]);
		r = driver_error(err, result, "cannot make an event on %s",
				 cache->device->name);
		context_leave();
	}
	if (r < 0) {
		free(event);
		return r;
	}
	*ret = event;
	return 0;
}

/* Destroys surplus events up to the first that is not complete. */
static void trim(struct event_cache *cache, enum event_kind kind)
{
	struct event *event = pop(cache, kind, EVENT_CACHE_MAX);

	if (!event)
		return;
	if (context_enter(cache->device, NULL) < 0) {
		unpop(event);
		return;
	}
	while (event && cu.EventQuery(event->handle) == CUDA_SUCCESS) {
		(void)cu.EventDestroy(event->handle);
		free(event);
		event = pop(cache, kind, EVENT_CACHE_MAX);
	}
	if (event)
		unpop(event);
	context_leave();
}

int event_cache_take(const struct device *device, enum event_kind kind,
		     struct event **ret, struct error *err)
{
	struct event_cache *cache = NULL;
	struct event *event;
	int r = driver_load(err);

	if (r == 0 && kind == EVENT_INTERPROCESS && !device->has_ipc_events)
		r = error_set(err, -EOPNOTSUPP, "%s has no interprocess events",
			      device->name);
	if (r == 0)
		r = find_mine(device, &cache, err);
	if (r < 0)
		return r;
	trim(cache, kind);
	event = pop(cache, kind, 0);
	if (!event)
		return make_event(cache, kind, ret, err);
	*ret = event;
	return 0;
}

int event_query(const struct device *device, CUevent handle, bool *ret,
		struct error *err)
{
	CUresult result;
	int r = context_enter(device, err);

	if (r < 0)
		return r;
	result = cu.EventQuery(handle);
	context_leave();
	*ret = result == CUDA_SUCCESS;
	if (result == CUDA_ERROR_NOT_READY)
		return 0;
	return driver_error(err, result, "cannot query an event on %s",
			    device->name);
}
