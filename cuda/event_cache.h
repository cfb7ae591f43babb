/*
 * A cache of CUDA events, after PyTorch's CUDAEventCache.
 *
 * Creating an event takes locks of the driver, and destroying one can block
 * without limit on a stuck device. So every thread has a cache for each device,
 * with one bin for each kind of event. An event that is put back returns to the
 * cache that it came from, whichever thread puts it back, and is reused in
 * first-in, first-out order: the oldest events are the most likely to be
 * complete.
 *
 * A cache outlives its thread. The next thread that uses that device and has no
 * cache takes it over, with the events in it and those that are still to be put
 * back; so there are never more caches than there were threads at one time.
 * (PyTorch keeps such a cache until its last event is back, and then forgets
 * the events.)
 *
 * A bin keeps up to EVENT_CACHE_MAX events. The owning thread destroys the
 * surplus when it next takes an event from that bin, oldest first, because it
 * is about to use the device anyway. It stops at the first event that is not
 * complete, since the device may be stuck. Threads that only put events back,
 * such as a watchdog or a garbage collector, destroy none; neither does the end
 * of a thread or of the process. (PyTorch keeps all events.)
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
