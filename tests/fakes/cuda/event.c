/* Events within a process, and the driver's interface to all events. */
#include "tests/fakes/cuda/event.h"
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/event_ipc.h"
#include "tests/fakes/cuda/handle.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALL_FLAGS                                                              \
	(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |                    \
	 CU_EVENT_INTERPROCESS)

struct mark_work {
	struct work work;
	struct mark *mark; /* a reference */
};

static void unref_mark(struct mark *mark)
{
	if (mark && --mark->n_refs == 0)
		free(mark);
}

/* --- life ---------------------------------------------------------------- */

CUresult event_new(struct context *context, unsigned int flags,
		   struct event_share *share, CUevent *ret)
{
	struct event *event = calloc(1, sizeof(*event));

	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	event->context = context;
	event->made_in = context->handle;
	event->flags = flags;
	event->share = share;
	*ret = (CUevent)(uintptr_t)handle_new(HANDLE_EVENT, event);
	return CUDA_SUCCESS;
}

struct event *event_find(CUevent handle)
{
	return handle_find(HANDLE_EVENT, (uintptr_t)handle);
}

static CUresult create(struct context *context, unsigned int flags,
		       CUevent *ret)
{
	struct event_share *share = NULL;
	CUresult r = CUDA_SUCCESS;

	if (flags & CU_EVENT_INTERPROCESS)
		r = event_share_create(&share);
	if (r)
		return r;
	r = event_new(context, flags, share, ret);
	if (r && share)
		event_share_destroy(share);
	return r;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_EventCreate, &context);

	if (r)
		return r;
	if (!event || flags & ~(unsigned int)ALL_FLAGS ||
	    ((flags & CU_EVENT_INTERPROCESS) &&
	     !(flags & CU_EVENT_DISABLE_TIMING)))
		return call_end(CUDA_ERROR_INVALID_VALUE);
	if ((flags & CU_EVENT_INTERPROCESS) && !device_has(FEATURE_IPC_EVENTS))
		return call_end(CUDA_ERROR_NOT_SUPPORTED);
	return call_end(create(context, flags, event));
}

/* This does not disturb waits and records of this process that still run. It
 * does disturb those of other processes. */
CUresult cuEventDestroy(CUevent handle)
{
	CUresult r = call_begin(CALL_EventDestroy);
	struct event *event;

	if (r)
		return r;
	event = event_find(handle);
	if (!event)
		return call_end(CUDA_ERROR_INVALID_HANDLE);
	handle_free(HANDLE_EVENT, (uintptr_t)handle);
	unref_mark(event->mark);
	if (event->share)
		event_share_destroy(event->share);
	r = event->made_in == event->context->handle
		    ? context_check(event->context)
		    : CUDA_ERROR_CONTEXT_IS_DESTROYED;
	free(event);
	return call_end(r);
}

/* --- recording ----------------------------------------------------------- */

static CUresult run_record(struct work *work)
{
	(void)work;
	return CUDA_SUCCESS;
}

/* The record is done even if it did not run, so that no thread waits forever.
 * The context's error tells the waiters. */
static void end_record(struct work *work, bool is_done)
{
	struct mark *mark = ((struct mark_work *)work)->mark;
	struct timespec now;

	(void)is_done;
	clock_gettime(CLOCK_MONOTONIC, &now);
	mark->ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	mark->is_done = true;
	unref_mark(mark);
	free(work);
}

static CUresult record(struct event *event, struct stream *stream)
{
	struct mark *mark = calloc(1, sizeof(*mark));
	struct mark_work *work = calloc(1, sizeof(*work));

	if (!mark || !work) {
		free(mark);
		free(work);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	unref_mark(event->mark);
	mark->n_refs = 2;
	event->mark = mark;
	work->mark = mark;
	work->work.run = run_record;
	work->work.end = end_record;
	stream_enqueue(stream, &work->work);
	return CUDA_SUCCESS;
}

/* Begins a function of an event and, if it has one, a stream. */
static CUresult begin(enum call call, CUevent handle, struct event **ret,
		      struct context **ret_context)
{
	CUresult r = call_begin_context(call, ret_context);
	struct event *event;

	if (r)
		return r;
	event = event_find(handle);
	if (!event)
		return call_end(CUDA_ERROR_INVALID_HANDLE);
	if (event->made_in != event->context->handle)
		return call_end(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	if (event->share && event->share->page->is_destroyed)
		return call_end(CUDA_ERROR_INVALID_HANDLE);
	*ret = event;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
	struct context *context;
	struct stream *stream;
	struct event *event;
	CUresult r = begin(CALL_EventRecord, handle, &event, &context);

	if (r)
		return r;
	r = stream_find(context, stream_handle, &stream);
	if (r)
		return call_end(r);
	if (stream->context != event->context)
		return call_end(CUDA_ERROR_INVALID_HANDLE);
	return call_end(event->share ? event_share_record(event->share, stream)
				     : record(event, stream));
}

/* --- waiting ------------------------------------------------------------- */

static CUresult run_wait(struct work *work)
{
	const struct mark *mark = ((struct mark_work *)work)->mark;

	process_lock();
	while (!mark->is_done && !stream_is_useless(work->stream))
		process_wait();
	process_unlock();
	return CUDA_SUCCESS;
}

static void end_wait(struct work *work, bool is_done)
{
	(void)is_done;
	unref_mark(((struct mark_work *)work)->mark);
	free(work);
}

static CUresult wait_for(struct mark *mark, struct stream *stream)
{
	struct mark_work *work;

	if (!mark || mark->is_done)
		return CUDA_SUCCESS;
	work = calloc(1, sizeof(*work));
	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	mark->n_refs++;
	work->mark = mark;
	work->work.run = run_wait;
	work->work.end = end_wait;
	work->work.is_wait = true;
	work->work.is_quick = true;
	stream_enqueue(stream, &work->work);
	return CUDA_SUCCESS;
}

/* The event may belong to another context. */
CUresult cuStreamWaitEvent(CUstream stream_handle, CUevent handle,
			   unsigned int flags)
{
	struct context *context;
	struct stream *stream;
	struct event *event;
	CUresult r = begin(CALL_StreamWaitEvent, handle, &event, &context);

	if (r)
		return r;
	if (flags)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	r = stream_find(context, stream_handle, &stream);
	if (r)
		return call_end(r);
	return call_end(event->share ? event_share_wait(event->share, stream)
				     : wait_for(event->mark, stream));
}

static bool is_done(const struct event *event)
{
	if (event->share)
		return event_share_is_done(event->share, 0);
	return !event->mark || event->mark->is_done;
}

CUresult cuEventQuery(CUevent handle)
{
	struct context *context;
	struct event *event;
	CUresult r = begin(CALL_EventQuery, handle, &event, &context);

	if (r)
		return r;
	return call_end(is_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

/* Waits for the record that was the last when the call was made, even if
 * another record follows. */
static CUresult synchronize_mark(struct context *context, struct mark *mark)
{
	if (!mark)
		return CUDA_SUCCESS;
	mark->n_refs++;
	while (!mark->is_done && !process.is_stopping)
		process_wait();
	unref_mark(mark);
	return process.is_stopping ? CUDA_ERROR_DEINITIALIZED
				   : context_check(context);
}

static CUresult synchronize_share(struct context *context,
				  struct event_share *share)
{
	uint64_t n = share->page->n_recorded;
	unsigned int us = 0;
	CUresult r = CUDA_SUCCESS;

	share->n_refs++;
	while (r == CUDA_SUCCESS && !event_share_is_done(share, n)) {
		process_unlock();
		stream_back_off(&us);
		process_lock();
		r = process.is_stopping ? CUDA_ERROR_DEINITIALIZED
					: context_check(context);
	}
	event_share_unref(share);
	return r;
}

CUresult cuEventSynchronize(CUevent handle)
{
	struct context *context;
	struct event *event;
	CUresult r = begin(CALL_EventSynchronize, handle, &event, &context);

	if (r)
		return r;
	if (event->share)
		r = synchronize_share(event->context, event->share);
	else
		r = synchronize_mark(event->context, event->mark);
	return call_end(r);
}

static CUresult elapsed(const struct event *begin_event,
			const struct event *end_event, float *ms)
{
	if (!begin_event->mark || !end_event->mark ||
	    ((begin_event->flags | end_event->flags) & CU_EVENT_DISABLE_TIMING))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!begin_event->mark->is_done || !end_event->mark->is_done)
		return CUDA_ERROR_NOT_READY;
	*ms = (float)(int64_t)(end_event->mark->ns - begin_event->mark->ns) /
	      1e6f;
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent begin_handle, CUevent end_handle)
{
	struct context *context;
	struct event *begin_event, *end_event;
	CUresult r = begin(CALL_EventElapsedTime, begin_handle, &begin_event,
			   &context);

	if (r)
		return r;
	end_event = event_find(end_handle);
	if (!ms || !end_event)
		return call_end(ms ? CUDA_ERROR_INVALID_HANDLE
				   : CUDA_ERROR_INVALID_VALUE);
	return call_end(elapsed(begin_event, end_event, ms));
}
