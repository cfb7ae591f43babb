/*
 * Interprocess events order streams of different processes on devices without
 * 64-bit stream memory operations. Other devices use timelines (fence.h), which
 * need no handle for each hand-over and are not limited in number.
 *
 * The producer records an event after its work and sends the handle. Each
 * consumer opens it, makes its stream wait, and closes it. The producer drops
 * the event when it is complete and the broker tells later consumers so. The
 * events come from the event cache.
 *
 * Drivers support some 22,000 recorded events, so a process may have at most
 * EVENT_IPC_MAX events in flight, that is, recorded and not dropped. PyTorch
 * has the same limit of 1,000; when it is reached, PyTorch silently blocks the
 * CPU on the stream. Here the caller gets -EAGAIN and can choose.
 *
 * Both processes need the same /dev/shm (observed with driver 580; shared
 * memory does not need it).
 */
#pragma once
#include "cuda/device.h"
#include "cuda/handle.h"
#include "cuda/shared.h"

#define EVENT_IPC_MAX 1000

/* --- producer ------------------------------------------------------------ */

/* An event in flight. */
struct event_ipc {
	struct shared shared;
	const struct device *device;
	CUstream stream;
	struct handle handle; /* sent to consumers unchanged */
	struct event *event;
};

/*
 * Records the work that was enqueued on `stream` so far, and returns an event
 * in flight, which the caller drops with event_ipc_drop(). Returns -EAGAIN if
 * EVENT_IPC_MAX events are in flight: the caller must drop complete events
 * first. Returns -EOPNOTSUPP if the device has no interprocess events, and
 * -EINVAL if the stream belongs to another context. This never waits for the
 * device.
 */
int event_ipc_record(const struct device *device, CUstream stream,
		     struct event_ipc **ret, struct error *err);

/* Sets `ret` to whether the event is complete. This never blocks. It returns an
 * error if the device has failed. */
int event_ipc_query(const struct event_ipc *event, bool *ret,
		    struct error *err);

/* Drops a complete event that no process will open any more. A process that
 * still has it is refused, or waits for the next use of the event. `event` may
 * be NULL. */
void event_ipc_drop(struct event_ipc *event);

/* --- consumer ------------------------------------------------------------ */

/* An event of a producer that is open in this process. It is opened once. */
struct event_ipc_import {
	struct shared shared;
	const struct device *device;
	struct handle handle;
	CUevent event;
	struct event_ipc *own; /* set if this process is the producer */
};

/*
 * Opens an event of `device`, which is the producer's device. In the producer's
 * own process, where drivers refuse this, the event itself is used. Returns
 * -EINVAL if the driver refuses the handle, and -ESTALE if the event is of this
 * process and was dropped.
 */
int event_ipc_open(const struct device *device, const struct handle *handle,
		   struct event_ipc_import **ret, struct error *err);

/* Sets `ret` to whether the event is complete. Returns -EINVAL if the producer
 * has dropped it. */
int event_ipc_import_query(const struct event_ipc_import *import, bool *ret,
			   struct error *err);

/* Makes `stream` wait until the event is complete. `device` is the stream's,
 * and can be any device. */
int event_ipc_wait(const struct event_ipc_import *import,
		   const struct device *device, CUstream stream,
		   struct error *err);

/* Closes the event, at any time after event_ipc_wait(); the stream still
 * waits. */
void event_ipc_close(struct event_ipc_import *import);
