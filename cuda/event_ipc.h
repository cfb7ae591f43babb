/*
 * Order between streams of different processes by interprocess events, for
 * devices without 64-bit stream memory operations; others use timelines
 * (order.h), which cost neither a handle for each hand-over nor a limit.
 *
 * The producer records an event behind its work and sends the handle along;
 * every consumer opens it, has its stream wait, and closes it. The producer
 * drops it once it is done and those who come later are told so by others (the
 * broker). Events come from the event cache.
 *
 * Drivers bear some 22,000 recorded events, so at most EVENT_IPC_MAX are in
 * flight in a process: between being recorded and dropped. PyTorch has the
 * same budget of 1,000 and, when it is used up, blocks the CPU behind the
 * stream without a word. Here the caller gets -EAGAIN and chooses.
 *
 * Both processes need the same /dev/shm (seen on driver 580; memory does not).
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

/* It is done, and nobody will look for it; who does so all the same is refused,
 * or waits for what it is used for next. NULL is fine. */
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
