/* Streams: the driver's interface, and work that calls a host function. */
#include "tests/fakes/cuda/call.h"
#include "tests/fakes/cuda/capture.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/cuda/guard.h"
#include "tests/fakes/cuda/handle.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/settings.h"
#include "tests/fakes/cuda/stream.h"
#include <stdlib.h>

struct host_work {
	struct work work;
	CUhostFn fn;
	void *data;
};

struct fake_work {
	struct work work;
	void (*fn)(void *);
	void *data;
	bool was_called;
};

/* A thread's own streams, by device, for CU_STREAM_PER_THREAD. */
struct own {
	CUcontext context; /* the context's handle when the stream was made */
	struct stream *stream;
};

/* FAKE_MAX_DEVICES entries; NULL if none was used yet */
static __thread struct own *own;
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

/* With some dozens of streams, cuStreamCreate() of an H200's driver waited for
 * a host function that blocked one of them. The exact limit is unknown; this is
 * the number of queues that a process can have. */
#define STREAMS_AT_ONCE 32

/* Number of host functions that run now. */
static unsigned int n_callbacks;

/* The stream for which fake work is called; fake_is_stopping() uses it. */
static __thread struct stream *fake_stream;
static __thread bool fake_is_dropped;

static void drop_own(struct own *entry)
{
	if (!entry->stream)
		return;
	stream_end(entry->stream);
	stream_unref(entry->stream);
	entry->stream = NULL;
}

static void end_own(void *data)
{
	struct own *entries = data;

	process_lock();
	for (int i = 0; i < FAKE_MAX_DEVICES; i++)
		drop_own(&entries[i]);
	process_unlock();
	free(entries);
}

static void make_own_key(void)
{
	if (pthread_key_create(&own_key, end_own) != 0)
		settings_refuse("no key for per-thread streams");
}

static CUresult find_own(struct context *context, struct stream **ret)
{
	struct own *entry;
	CUresult r = CUDA_SUCCESS;

	pthread_once(&own_once, make_own_key);
	if (!own) {
		own = calloc(FAKE_MAX_DEVICES, sizeof(*own));
		if (!own || pthread_setspecific(own_key, own) != 0)
			settings_refuse("no memory for per-thread streams");
	}
	entry = &own[context->device];
	if (entry->context != context->handle)
		drop_own(entry);
	if (!entry->stream) {
		r = stream_new(context, true, &entry->stream);
		entry->context = context->handle;
	}
	*ret = entry->stream;
	return r;
}

static CUresult find_legacy(struct context *context, struct stream **ret)
{
	CUresult r = CUDA_SUCCESS;

	if (!context->legacy)
		r = stream_new(context, false, &context->legacy);
	*ret = context->legacy;
	return r;
}

static struct stream *find_made(CUstream handle)
{
	struct stream *stream = handle_find(HANDLE_STREAM, (uintptr_t)handle);

	if (!stream)
		settings_refuse("%s got a stream that was destroyed or never "
				"made; a driver crashes then",
				call_current());
	return stream;
}

CUresult stream_find(struct context *context, CUstream handle,
		     struct stream **ret)
{
	struct stream *stream;
	CUresult r;

	if (!handle || handle == CU_STREAM_LEGACY)
		return find_legacy(context, ret);
	if (handle == CU_STREAM_PER_THREAD)
		return find_own(context, ret);
	stream = find_made(handle);
	if (stream->is_dropped)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	r = context_check(stream->context);
	if (r == CUDA_SUCCESS)
		*ret = stream;
	return r;
}

/* --- life ---------------------------------------------------------------- */

/* An invalid priority becomes the nearest valid one. */
static CUresult create(CUstream *ret, unsigned int flags, int priority,
		       struct context *context)
{
	struct stream *stream;
	CUresult r;

	if (!ret || (flags & ~(unsigned int)CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	if (n_callbacks > 0 && handle_count(HANDLE_STREAM) >= STREAMS_AT_ONCE)
		settings_refuse("%s: there are %u streams, and a host function "
				"holds up one; a driver may wait for it",
				call_current(), handle_count(HANDLE_STREAM));
	r = stream_new(context, !(flags & CU_STREAM_NON_BLOCKING), &stream);
	if (r)
		return r;
	if (priority > 0)
		priority = 0;
	if (priority < STREAM_PRIORITY_GREATEST)
		priority = STREAM_PRIORITY_GREATEST;
	stream->priority = priority;
	stream->handle = (CUstream)(uintptr_t)handle_new(HANDLE_STREAM, stream);
	*ret = stream->handle;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	struct context *context;
	CUresult r = call_begin_context(CALL_StreamCreate, &context);

	if (r)
		return r;
	return call_end(create(stream, flags, 0, context));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags,
				    int priority)
{
	struct context *context;
	CUresult r =
		call_begin_context(CALL_StreamCreateWithPriority, &context);

	if (r)
		return r;
	return call_end(create(stream, flags, priority, context));
}

int fake_stream_priority(CUstream handle)
{
	const struct stream *stream;
	int priority;

	process_lock();
	stream = handle_find(HANDLE_STREAM, (uintptr_t)handle);
	priority = stream ? stream->priority : 0;
	process_unlock();
	return priority;
}

/* The driver owns the legacy stream and a thread's streams, so a program cannot
 * destroy them. Queued work is still done. */
CUresult cuStreamDestroy(CUstream handle)
{
	CUresult r = call_begin(CALL_StreamDestroy);
	struct stream *stream;

	if (r)
		return r;
	if (!handle || handle == CU_STREAM_LEGACY ||
	    handle == CU_STREAM_PER_THREAD)
		return call_end(CUDA_ERROR_INVALID_HANDLE);
	stream = find_made(handle);
	handle_free(HANDLE_STREAM, (uintptr_t)handle);
	r = stream->is_dropped ? CUDA_ERROR_CONTEXT_IS_DESTROYED
			       : context_check(stream->context);
	stream_end(stream);
	stream_unref(stream);
	return call_end(r);
}

/* --- questions ----------------------------------------------------------- */

static CUresult begin(enum call call, CUstream handle, struct stream **ret)
{
	struct context *context;
	CUresult r = call_begin_context(call, &context);

	if (r)
		return r;
	r = stream_find(context, handle, ret);
	return r ? call_end(r) : CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle)
{
	struct stream *stream;
	CUresult r = begin(CALL_StreamQuery, handle, &stream);

	if (r)
		return r;
	return call_end(stream_is_idle(stream) ? CUDA_SUCCESS
					       : CUDA_ERROR_NOT_READY);
}

CUresult cuStreamSynchronize(CUstream handle)
{
	struct stream *stream;
	CUresult r = begin(CALL_StreamSynchronize, handle, &stream);

	if (r)
		return r;
	return call_end(stream_synchronize(stream));
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
	struct stream *stream;
	CUresult r = begin(CALL_StreamGetCtx, handle, &stream);

	if (r)
		return r;
	if (!context)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*context = stream->context->handle;
	return call_end(CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
	struct stream *stream;
	CUresult r = begin(CALL_StreamIsCapturing, handle, &stream);

	if (r)
		return r;
	if (!status)
		return call_end(CUDA_ERROR_INVALID_VALUE);
	*status = capture_status(handle);
	return call_end(CUDA_SUCCESS);
}

/* --- host functions ------------------------------------------------------ */

/* Runs the function without the lock and without access to device memory, and
 * restores both afterwards. A host function is not work of the device, so an
 * invalid access by it crashes the program. */
static void end_host(struct work *work, bool is_done)
{
	struct host_work *host = (struct host_work *)work;

	while (is_done && settings()->has_one_callback && n_callbacks > 0 &&
	       !process.is_stopping)
		process_wait();
	if (is_done) {
		n_callbacks++;
		process_unlock();
		guard_allow(false);
		stream_set_host_function(true);
		host->fn(host->data);
		stream_set_host_function(false);
		guard_allow(true);
		process_lock();
		n_callbacks--;
		process_wake();
	}
	free(work);
}

static CUresult run_nothing(struct work *work)
{
	(void)work;
	return CUDA_SUCCESS; /* it is done after the delay */
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *data)
{
	struct stream *stream;
	CUresult r = begin(CALL_LaunchHostFunc, handle, &stream);
	struct host_work *host;

	if (r)
		return r;
	host = fn ? calloc(1, sizeof(*host)) : NULL;
	if (!host)
		return call_end(fn ? CUDA_ERROR_OUT_OF_MEMORY
				   : CUDA_ERROR_INVALID_VALUE);
	host->work.run = run_nothing;
	host->work.end = end_host;
	host->work.is_wait = true; /* it waits for the CPU */
	host->fn = fn;
	host->data = data;
	stream_enqueue(stream, &host->work);
	return call_end(CUDA_SUCCESS);
}

/* --- work of the NCCL double --------------------------------------------- */

static CUresult run_fake(struct work *work)
{
	struct fake_work *fake = (struct fake_work *)work;

	fake->was_called = true;
	fake_stream = work->stream;
	fake->fn(fake->data);
	return CUDA_SUCCESS;
}

static void end_fake(struct work *work, bool is_done)
{
	struct fake_work *fake = (struct fake_work *)work;

	(void)is_done;
	if (!fake->was_called) {
		process_unlock();
		fake_is_dropped = true;
		fake->fn(fake->data);
		fake_is_dropped = false;
		process_lock();
	}
	free(work);
}

bool fake_is_stopping(void)
{
	return fake_is_dropped || stream_is_stopping(fake_stream);
}

CUresult fake_stream_enqueue(CUstream handle, void (*fn)(void *), void *data)
{
	struct stream *stream;
	struct context *context;
	struct fake_work *fake;
	CUresult r;

	process_lock();
	r = context_current(&context);
	if (r == CUDA_SUCCESS)
		r = stream_find(context, handle, &stream);
	if (r)
		return call_end(r);
	fake = calloc(1, sizeof(*fake));
	if (!fake)
		return call_end(CUDA_ERROR_OUT_OF_MEMORY);
	fake->work.run = run_fake;
	fake->work.end = end_fake;
	fake->fn = fn;
	fake->data = data;
	stream_enqueue(stream, &fake->work);
	return call_end(CUDA_SUCCESS);
}
