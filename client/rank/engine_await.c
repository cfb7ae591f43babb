/*
 * Waits of an engine for its device on the host. In the meantime it asks the
 * broker whether the other ranks are alive.
 */
#include "client/clock.h"
#include "client/pause.h"
#include "client/rank/engine_impl.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include <errno.h>

/* The interval at which the broker is asked whether the other ranks are alive,
 * while a device is waited for. */
#define ASK_MS 20
/* The time in which the library expects the broker to report a death. */
#define DEATH_MS 1000

/* --- failing ------------------------------------------------------------- */

/* Ask the broker to look whether all ranks are alive. */
static int ask_broker(struct fsdp_comm *comm, struct error *err)
{
	struct request request = {
		.kind = MESSAGE_COMM_LOOK,
		.comm_look = {.comm = comm->id, .all = true},
	};
	int r = comm_command(comm, &request, err);

	return r == -ECONNABORTED ? r : 0;
}

/* Give the broker some time to report a death, since NCCL may notice it earlier
 * but does not say which rank has died. */
static void ask_who_died(struct fsdp_comm *comm)
{
	int64_t until_ms = clock_now_ms() + DEATH_MS;
	struct error cause = ERROR_NULL;
	struct pause pause = PAUSE_INIT;

	while (ask_broker(comm, &cause) == 0 && clock_now_ms() < until_ms)
		pause_now(&pause);
}

int engine_fail(struct rank_engine *engine, struct error *err)
{
	struct fsdp_comm *comm = engine->comm;

	if (comm->failure.code == 0)
		ask_who_died(comm);
	if (comm->failure.code == 0) {
		err->code = -ECONNABORTED;
		comm->failure = *err;
		comm_give_up(comm, err);
	}
	engine_abort(engine);
	return error_set(err, -ECONNABORTED, "%s", comm->failure.msg);
}

/* --- waiting ------------------------------------------------------------- */

/* Return 0 if the event is done, and NCCL_COMM_BUSY if not. The stream is
 * checked first, since NCCL reports a failure before it releases the stream. */
static int look(struct rank_engine *engine, const struct event *event,
		struct error *err)
{
	CUresult result = CUDA_SUCCESS;
	int r = context_enter(engine->device, err);

	if (r < 0)
		return r;
	if (event)
		result = cu.EventQuery(event->handle);
	context_leave();
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
		return driver_error(err, result, "cannot wait for a stream");
	/* The watch has the lock while it aborts NCCL, which may take some
	 * seconds. */
	if (pthread_mutex_trylock(&engine->nccl_lock) != 0)
		return NCCL_COMM_BUSY;
	r = nccl_comm_poll(engine->nccl.comm, err);
	pthread_mutex_unlock(&engine->nccl_lock);
	if (r != 0)
		return r;
	return result == CUDA_ERROR_NOT_READY ? NCCL_COMM_BUSY : 0;
}

int engine_await_event(struct rank_engine *engine, const struct event *event,
		       int64_t deadline_ms, struct error *err)
{
	int64_t asked_ms = clock_now_ms();
	struct pause pause = PAUSE_INIT;
	int r;

	for (;;) {
		r = look(engine, event, err);
		if (r < 0)
			return engine_fail(engine, err);
		if (r == 0)
			return 0;
		if (deadline_ms >= 0 && clock_now_ms() >= deadline_ms)
			return error_set(err, -ETIMEDOUT,
					 "the device has not finished it yet");
		if (clock_now_ms() - asked_ms >= ASK_MS) {
			r = ask_broker(engine->comm, err);
			if (r < 0)
				return r;
			asked_ms = clock_now_ms();
		}
		pause_now(&pause);
	}
}

int engine_note(struct rank_engine *engine, void *stream, struct error *err)
{
	/* The stream of copies to the device needs no event, since the other
	 * streams wait for its copies. */
	CUstream streams[ENGINE_NOTED] = {stream, engine->nccl.gather_stream,
					  engine->nccl.reduce_stream,
					  engine->out_stream};
	int r = 0;

	for (size_t i = 0; i < ENGINE_NOTED && r == 0; i++) {
		if (!streams[i])
			continue;
		event_cache_put(engine->noted[i]);
		engine->noted[i] = NULL;
		r = engine_record(engine, streams[i], &engine->noted[i], err);
	}
	return r;
}

int engine_await_noted(struct rank_engine *engine, int64_t deadline_ms,
		       struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < ENGINE_NOTED && r == 0; i++) {
		if (engine->noted[i])
			r = engine_await_event(engine, engine->noted[i],
					       deadline_ms, err);
	}
	return r;
}

int engine_note_and_await(struct rank_engine *engine, struct error *err)
{
	int r = engine_note(engine, NULL, err);

	return r < 0 ? r
		     : engine_await_noted(engine,
					  clock_now_ms() + engine->timeout_ms,
					  err);
}
