/*
 * The part of an engine that needs no request: comm.c aborts the engine when
 * the broker has ended the communicator.
 */
#include "client/rank/engine_impl.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include <errno.h>
#include <stdlib.h>

/* --- streams ------------------------------------------------------------- */

CUstream engine_stream(const struct rank_engine *engine)
{
	return engine->nccl.gather_stream;
}

int engine_check_stream(const struct rank_engine *engine, void *stream,
			struct error *err)
{
	return context_check_stream(engine->device, stream, err);
}

int engine_record(struct rank_engine *engine, CUstream stream,
		  struct event **ret, struct error *err)
{
	struct event *event;
	int r = event_cache_take(engine->device, EVENT_NO_TIMING, &event, err);

	if (r < 0)
		return r;
	r = context_enter(engine->device, err);
	if (r == 0) {
		r = driver_error(err, cu.EventRecord(event->handle, stream),
				 "cannot record an event on a stream");
		context_leave();
	}
	if (r < 0) {
		event_cache_put(event);
		return r;
	}
	*ret = event;
	return 0;
}

int engine_follow(struct rank_engine *engine, CUstream stream,
		  const struct event *event, struct error *err)
{
	int r;

	if (!event)
		return 0;
	r = context_enter(engine->device, err);
	if (r < 0)
		return r;
	r = driver_error(err, cu.StreamWaitEvent(stream, event->handle, 0),
			 "cannot make a stream wait for another");
	context_leave();
	return r;
}

/* --- failing ------------------------------------------------------------- */

void engine_drop_first(struct rank_engine *engine)
{
	struct engine_work *work = engine->first;

	engine->first = work->next;
	if (!engine->first)
		engine->last = NULL;
	event_cache_put(work->ready);
	fsdp_free(work->input);
	free(work);
}

static bool is_ending(const struct rank_engine *engine)
{
	return !engine->nccl.comm || engine->nccl.comm->is_ending;
}

int engine_enter_nccl(struct rank_engine *engine, struct error *err)
{
	pthread_mutex_lock(&engine->nccl_lock);
	if (!is_ending(engine))
		return 0;
	pthread_mutex_unlock(&engine->nccl_lock);
	return error_set(err, -ECONNABORTED, "NCCL was aborted");
}

void engine_leave_nccl(struct rank_engine *engine)
{
	pthread_mutex_unlock(&engine->nccl_lock);
}

int engine_abort_nccl(struct rank_engine *engine, struct error *err)
{
	int r = nccl_comm_abort(&engine->nccl.comm, err);

	if (r == 0)
		registrations_end(&engine->registrations, engine->comm->client);
	return r;
}

void engine_abort_once(struct rank_engine *engine)
{
	if (!is_ending(engine))
		(void)engine_abort_nccl(engine, &engine->stuck);
}

/* NCCL is waited for only once, because a call that fails may find that the
 * engine has failed already. */
void engine_abort(struct rank_engine *engine)
{
	struct error *failure = &engine->comm->failure;
	struct error cause = *failure, stuck;

	pthread_mutex_lock(&engine->nccl_lock);
	engine_abort_once(engine);
	stuck = engine->stuck;
	if (cause.code < 0)
		engine->stuck.code = 0;
	pthread_mutex_unlock(&engine->nccl_lock);
	if (stuck.code < 0 && cause.code < 0)
		error_set(failure, cause.code, "%.300s; %s", cause.msg,
			  stuck.msg);
}
