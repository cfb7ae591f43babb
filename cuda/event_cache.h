/*
 * A cache of CUDA events, like PyTorch's CUDAEventCache.
 *
 * Creating an event takes locks of the driver, and destroying one can block
 * without limit on a stuck device. So each thread has a cache for each device,
 * with one bin for each kind of event. An event that is put back, by any
 * thread, returns to the cache from which it was taken. It is reused in
 * first-in, first-out order, because the oldest events are the most likely to
 * be complete.
 *
 * A cache outlives its thread. The next thread that uses that device and has no
 * cache takes it over, with the events in it and those that are still to be put
 * back. So there are never more caches than there were threads at one time.
 * (PyTorch keeps such a cache until its last event is put back, and then drops
 * it with its events.)
 *
 * A bin keeps up to EVENT_CACHE_MAX events. The owning thread destroys the
 * surplus when it next takes an event from that bin, oldest first, because it
 * is about to use the device anyway. It stops at the first event that is not
 * complete, since the device may be stuck. Threads that only put events back,
 * such as a watchdog or a garbage collector, destroy no events; neither does
 * the end of a thread or of the process. (PyTorch keeps all events.)
 */
#pragma once
#include "cuda/device.h"

#define EVENT_CACHE_MAX 256 /* unused events of a kind, thread and device */

enum event_kind {
	EVENT_TIMING,       /* can be passed to cuEventElapsedTime() */
	EVENT_NO_TIMING,    /* cheaper; can be waited for and queried */
	EVENT_INTERPROCESS, /* has no timing, but can be opened elsewhere */
};
#define EVENT_KINDS 3

struct event {
	CUevent handle; /* in the device's primary context */
	enum event_kind kind;
	struct event_cache *home;
	struct event *next; /* next event in the bin */
};

/*
 * Takes a new or used event. A used event keeps its previous recording until it
 * is recorded again. If the bin has an event, this calls the driver only to
 * destroy surplus events. Returns -EOPNOTSUPP for EVENT_INTERPROCESS on a
 * device that has none, -ECHILD in a forked child, or an error of the creation.
 */
int event_cache_take(const struct device *device, enum event_kind kind,
		     struct event **ret, struct error *err);

/* Sets `ret` to whether the event's last recording is complete. This never
 * blocks. If the device has failed, it returns an error. `handle` belongs to
 * the device's primary context. */
int event_query(const struct device *device, CUevent handle, bool *ret,
		struct error *err);

/* Puts the event back, from any thread, recorded or not, complete or not. This
 * never calls the driver. `event` may be NULL. It does nothing in a forked
 * child. */
void event_cache_put(struct event *event);
