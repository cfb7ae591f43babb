/*
 * Interprocess events in flight, and open events of other processes.
 */
#include "cuda/event_ipc.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include "proto/error.h"
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

static _Atomic uint32_t n_in_flight;

/* The check and the addition are one atomic step; otherwise several threads
 * could take the last place. */
static int take_budget(struct error *err)
{
	/* This and the accesses below are relaxed: the count orders no other
	 * access. */
	uint32_t n = atomic_load_explicit(&n_in_flight, memory_order_relaxed);

	while (n < EVENT_IPC_MAX)
		if (atomic_compare_exchange_weak_explicit(
			    &n_in_flight, &n, n + 1, memory_order_relaxed,
			    memory_order_relaxed))
			return 0;
	return error_set(
		err, -EAGAIN,
		"%d interprocess events of this process are in flight, which "
		"is the limit: the streams have not reached them; wait for one "
		"of the streams, then publish",
		EVENT_IPC_MAX);
}

static void give_budget(void)
{
	atomic_fetch_sub_explicit(&n_in_flight, 1, memory_order_relaxed);
}

/* --- producer ------------------------------------------------------------ */

static int record(struct event_ipc *made, struct error *err)
{
	CUresult result;
	int r;

	r = context_enter(made->device, err);
	if (r < 0)
		return r;
	result = cu.EventRecord(made->event->handle, made->stream);
	if (result == CUDA_SUCCESS)
		result = cu.IpcGetEventHandle(&made->handle.event,
					      made->event->handle);
	context_leave();
	return driver_error(err, result,
			    "cannot record an interprocess event on %s",
			    made->device->name);
}

static int take_event(struct event_ipc *made, struct error *err)
{
	int r;

	r = event_cache_take(made->device, EVENT_INTERPROCESS, &made->event,
			     err);
	if (r < 0)
		return r;
	r = record(made, err);
	if (r < 0)
		event_cache_put(made->event);
	return r;
}

static int open_made(struct shared *shared, struct error *err)
{
	int r = take_budget(err);

	if (r < 0)
		return r;
	r = take_event((struct event_ipc *)shared, err);
	if (r < 0)
		give_budget();
	return r;
}

static void close_made(struct shared *shared)
{
	event_cache_put(((struct event_ipc *)shared)->event);
	give_budget();
}

static const struct shared_kind made_kind = {
	.size = sizeof(struct event_ipc),
	.open = open_made,
	.close = close_made,
};
static struct shared_list made_list = SHARED_LIST_INIT(&made_kind);

int event_ipc_record(const struct device *device, CUstream stream,
		     struct event_ipc **ret, struct error *err)
{
	static _Atomic uint64_t serial;
	struct event_ipc made = {
		.device = device,
		.stream = stream,
		.handle = {.version = HANDLE_VERSION, .kind = HANDLE_EVENT},
	};
	struct shared *shared;
	int r;

	r = context_check_stream(device, stream, err);
	if (r == 0)
		r = handle_origin(&made.handle.origin, err);
	if (r < 0)
		return r;
	/* It is relaxed, because the values only have to be different. */
	made.handle.generation =
		atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed) + 1;
	r = shared_open(&made_list, &made.shared, &shared, err);
	if (r < 0)
		return r;
	*ret = (struct event_ipc *)shared;
	return 0;
}

int event_ipc_query(const struct event_ipc *event, bool *ret, struct error *err)
{
	return event_query(event->device, event->event->handle, ret, err);
}

void event_ipc_drop(struct event_ipc *event)
{
	if (event)
		shared_close(&made_list, &event->shared);
}

static bool is_made(const struct shared *shared, const void *handle)
{
	const struct event_ipc *made = (const struct event_ipc *)shared;

	return memcmp(&made->handle, handle, sizeof(made->handle)) == 0;
}

/* --- consumer ------------------------------------------------------------ */

static int open_own(struct event_ipc_import *import, struct error *err)
{
	struct shared *shared =
		shared_find(&made_list, is_made, &import->handle);

	if (!shared)
		return error_set(err, -ESTALE,
				 "this process recorded the event, and dropped "
				 "it because it is complete");
	import->own = (struct event_ipc *)shared;
	import->event = import->own->event->handle;
	return 0;
}

static int open_import(struct shared *shared, struct error *err)
{
	struct event_ipc_import *import = (struct event_ipc_import *)shared;
	uint64_t origin = 0;
	CUresult result;
	int r;

	r = handle_origin(&origin, err);
	if (r < 0)
		return r;
	if (import->handle.origin == origin)
		return open_own(import, err);
	r = context_enter(import->device, err);
	if (r < 0)
		return r;
	result = cu.IpcOpenEventHandle(&import->event, import->handle.event);
	context_leave();
	return driver_error(err, result,
			    "cannot open another process's event on %s (both "
			    "processes need the same /dev/shm, and the other "
			    "must be alive)",
			    import->device->name);
}

static void close_import(struct shared *shared)
{
	struct event_ipc_import *import = (struct event_ipc_import *)shared;

	if (import->own) {
		event_ipc_drop(import->own);
		return;
	}
	if (context_enter(import->device, NULL) < 0)
		return;
	(void)cu.EventDestroy(import->event);
	context_leave();
}

static bool is_same_import(const struct shared *a, const struct shared *b)
{
	const struct event_ipc_import *one = (const struct event_ipc_import *)a;
	const struct event_ipc_import *two = (const struct event_ipc_import *)b;

	return one->device == two->device &&
	       memcmp(&one->handle, &two->handle, sizeof(one->handle)) == 0;
}

static const struct shared_kind import_kind = {
	.size = sizeof(struct event_ipc_import),
	.is_same = is_same_import,
	.open = open_import,
	.close = close_import,
};
static struct shared_list import_list = SHARED_LIST_INIT(&import_kind);

int event_ipc_open(const struct device *device, const struct handle *handle,
		   struct event_ipc_import **ret, struct error *err)
{
	struct event_ipc_import import = {.device = device, .handle = *handle};
	struct shared *shared;
	int r;

	if (!device->has_ipc_events)
		return error_set(err, -EOPNOTSUPP,
				 "%s has no interprocess events", device->name);
	r = shared_open(&import_list, &import.shared, &shared, err);
	if (r < 0)
		return r;
	*ret = (struct event_ipc_import *)shared;
	return 0;
}

int event_ipc_import_query(const struct event_ipc_import *import, bool *ret,
			   struct error *err)
{
	return event_query(import->device, import->event, ret, err);
}

int event_ipc_wait(const struct event_ipc_import *import,
		   const struct device *device, CUstream stream,
		   struct error *err)
{
	CUresult result;
	int r;

	r = context_check_stream(device, stream, err);
	if (r == 0)
		r = context_enter(device, err);
	if (r < 0)
		return r;
	result = cu.StreamWaitEvent(stream, import->event, 0);
	context_leave();
	return driver_error(
		err, result,
		"cannot make a stream on %s wait for another process's "
		"event",
		device->name);
}

void event_ipc_close(struct event_ipc_import *import)
{
	shared_close(&import_list, &import->shared);
}
