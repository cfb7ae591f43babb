/*
 * Events, made once and used again (after PyTorch's CUDAEventCache).
 *
 * Making an event takes locks of the driver, and destroying one can block for
 * ever behind a stuck device. So every thread has a cache for each device, with
 * one bin for each kind. An event that is put back goes to the cache it came
 * from, whichever thread puts it, and is used again after those that were put
 * back before it: the oldest are the likeliest to be done.
 *
 * A cache outlives its thread. The next thread that comes to that device
 * without one takes it over, with what is in it and what is still to come
 * back; so there are never more caches than there were threads at once.
 * (PyTorch keeps the cache until its last event is back, and then forgets the
 * events.)
 *
 * A bin keeps up to EVENT_CACHE_MAX. What is over, the thread that owns the
 * cache destroys when it next takes from that bin, oldest first: it is about
 * to use the device anyway. An event that is not done ends that, since the
 * device may be stuck. Threads that only put events back, such as a watchdog or
 * a garbage collector, destroy none, and neither does the end of a thread or of
 * the process. (PyTorch keeps all.)
 */
#pragma once
#include "cuda/device.h"

#define EVENT_CACHE_MAX 256 /* not in use, of one kind, thread and device */

enum event_kind {
	EVENT_TIMING,       /* for cuEventElapsedTime() */
	EVENT_NO_TIMING,    /* cheaper; to wait for and to ask */
	EVENT_INTERPROCESS, /* no timing, and has a handle */
};
#define EVENT_KINDS 3

struct event {
	CUevent handle; /* of the device's primary context */
	enum event_kind kind;
	struct event_cache *home;
	struct event *next; /* while in a bin */
};

/*
 * Take an event, new or used: what it recorded last counts until it is
 * recorded again. Does not call the driver if the bin has one, but for what is
 * over. -EOPNOTSUPP: EVENT_INTERPROCESS on a device without; -ECHILD: in a
 * forked child; or what making one gives.
 */
int event_cache_take(const struct device *device, enum event_kind kind,
		     struct event **ret, struct error *err);

/* Is what it recorded last done? Never waits. A device that failed never is:
 * that is an error. `handle`: of the device's primary context. */
int event_query(const struct device *device, CUevent handle, bool *ret,
		struct error *err);

/* Put it back, from any thread, recorded or not, done or not. Never calls the
 * driver. NULL is fine; in a forked child nothing happens. */
void event_cache_put(struct event *event);
