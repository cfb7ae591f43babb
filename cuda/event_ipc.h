/*
 * Ordering between streams of different processes by interprocess events, for
 * devices without 64-bit stream memory operations. Other devices use timelines
 * (fence.h), which need no handle for each hand-over and have no limit on their
 * number.
 *
 * The producer records an event after its work and sends the handle; each
 * consumer opens it, makes its stream wait, and closes it. The producer drops
 * the event when it is complete and the broker tells later consumers so. Events
 * come from the event cache.
 *
 * Drivers support some 22,000 recorded events, so a process may have at most
 * EVENT_IPC_MAX in flight, that is, recorded and not dropped. PyTorch has the
 * same limit of 1,000; when it is reached, PyTorch silently blocks the CPU on
 * the stream. Here the caller gets -EAGAIN and can choose.
 *
 * Both processes need the same /dev/shm (observed with driver 580; memory does
 * not need it).
 */
#pragma once
#include "cuda/device.h"
#include "cuda/handle.h"
#include "cuda/shared.h"

#define EVENT_IPC_MAX 1000

/* --- producer ------------------------------------------------------------ */

/* One event in flight. */
struct event_ipc {
	struct shared shared;
	const struct device *device;
	CUstream stream;
	struct handle handle; /* to be sent, as it is */
	struct event *event;
};

/*
 * Record what `stream` has been given so far. Gives an event in flight, for
 * event_ipc_drop(). -EAGAIN: EVENT_IPC_MAX are in flight: drop some first, when
 * they are done. -EOPNOTSUPP: the device has none. -EINVAL: a stream of
 * another context. Never waits for the device.
 */
int event_ipc_record(const struct device *device, CUstream stream,
		     struct event_ipc **ret, struct error *err);

/* Is it done? Never waits; an error: the device has failed. */
int event_ipc_query(const struct event_ipc *event, bool *ret,
		    struct error *err);

/* The event is done, and nobody will look for it. A process that does so all
 * the same is refused, or waits for the event's next use. NULL is fine. */
void event_ipc_drop(struct event_ipc *event);

/* --- consumer ------------------------------------------------------------ */

/* An event of a producer, opened once in this process. */
struct event_ipc_import {
	struct shared shared;
	const struct device *device;
	struct handle handle;
	CUevent event;
	struct event_ipc *own; /* the producer is this process */
};

/*
 * Open an event of `device` (the producer's); in the producer's own process,
 * where drivers refuse that, use it directly. -EINVAL: the driver refuses the
 * handle; -ESTALE: one's own, and dropped.
 */
int event_ipc_open(const struct device *device, const struct handle *handle,
		   struct event_ipc_import **ret, struct error *err);

/* Is it done? -EINVAL: the producer has dropped it. */
int event_ipc_import_query(const struct event_ipc_import *import, bool *ret,
			   struct error *err);

/* Have `stream`, of `device` (any), wait until the event is done. */
int event_ipc_wait(const struct event_ipc_import *import,
		   const struct device *device, CUstream stream,
		   struct error *err);

/* At any time after event_ipc_wait(); the stream goes on waiting. */
void event_ipc_close(struct event_ipc_import *import);
