/*
 * How engines and their groups are opened and closed, and how values are
 * compared that must be equal on all ranks of the world.
 */
#include "client/clock.h"
#include "client/device.h"
#include "client/rank/engine_impl.h"
#include "client/rank/offload.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include "cuda/staging.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* The time in which the other ranks are expected to leave together with us. */
#define CLOSE_MS      2000
#define STOP_PAUSE_NS 1000000
/* the size of each of the two buffers for copies from and to the host */
#define STAGING_SIZE (UINT64_C(1) << 20)

/* --- comparing ----------------------------------------------------------- */

static int await_gather_stream(struct rank_engine *engine, struct error *err)
{
	struct event *done;
	int r = engine_record(engine, engine->nccl.gather_stream, &done, err);

	if (r < 0)
		return r;
	r = engine_await_event(engine, done,
			       clock_now_ms() + engine->timeout_ms, err);
	event_cache_put(done);
	return r;
}

/* Check that all ranks of all nodes have the same value. Returns -EINVAL, with
 * the name of a rank that has another. On one node the broker has checked this
 * already. */
static int verify_equal(struct rank_engine *engine, uint64_t value,
			const char *what, struct error *err)
{
	int r;

	if (!engine->nccl.words)
		return 0;
	r = engine_enter_nccl(engine, err);
	if (r == 0) {
		r = nccl_rank_begin_verify(&engine->nccl, value, err);
		engine_leave_nccl(engine);
	}
	if (r == 0)
		r = await_gather_stream(engine, err);
	if (r == 0)
		r = nccl_rank_end_verify(&engine->nccl, value, what, err);
	return r;
}

/* --- opening ------------------------------------------------------------- */

static int open_nccl(struct rank_engine *engine,
		     const struct comm_join_request *joined,
		     const uint8_t *nccl_id, struct error *err)
{
	const struct nccl_comm_options options = {
		.name = engine->comm->name,
		.device = engine->device,
		.id = nccl_id,
		.n_shards = joined->n_shards,
		.n_replicas = joined->n_ranks / joined->n_shards,
		.rank = joined->rank,
		.timeout_ms = (uint32_t)joined->timeout_ms,
		.is_cancelled = &engine->watch.is_over,
	};
	int r = nccl_rank_open(&options, joined->n_local < joined->n_ranks,
			       &engine->nccl, err);

	/* NCCL enforces the time-out; in the meantime the broker is asked
	 * whether all ranks are alive. */
	return r < 0 ? r : engine_await_event(engine, NULL, -1, err);
}

int engine_new(struct fsdp_comm *comm, const struct comm_join_request *joined,
	       const uint8_t *nccl_id, struct rank_engine **ret,
	       struct error *err)
{
	struct rank_engine *engine = calloc(1, sizeof(*engine));
	int r;

	if (!engine)
		return error_nomem(err, "an engine");
	engine->comm = comm;
	engine->timeout_ms = joined->timeout_ms;
	engine->registrations.is_wanted =
		joined->memory == COMM_MEMORY_REGISTERED;
	pthread_mutex_init(&engine->nccl_lock, NULL);
	engine_watch_init(&engine->watch);
	/* Errors after this point fail the communicator. */
	comm->engine = engine;
	r = device_find(&joined->device, &engine->device, err);
	if (r == 0)
		r = open_nccl(engine, joined, nccl_id, err);
	if (r == 0)
		r = verify_equal(engine, comm->step, "the last committed step",
				 err);
	if (r == 0)
		r = verify_equal(engine, joined->memory,
				 "the kind of memory (enum fsdp_memory)", err);
	if (r == 0)
		r = engine_watch_start(engine, err);
	if (r < 0) {
		engine_abort(engine);
		engine_free(engine);
		comm->engine = NULL;
		return r;
	}
	*ret = engine;
	return 0;
}

/* --- ends ---------------------------------------------------------------- */

static void free_uses(struct rank_engine *engine)
{
	while (engine->uses) {
		struct engine_use *use = engine->uses;

		engine->uses = use->next;
		event_cache_put(use->event);
		free(use);
	}
}

static void free_on_device(struct rank_engine *engine)
{
	staging_free(engine->staging);
	if (context_enter(engine->device, NULL) < 0)
		return;
	offload_end_streams(engine);
	context_leave();
}

/* Tell whether the caller's stream has passed the event (may be NULL), or the
 * device has failed. */
static bool is_passed(const struct event *event)
{
	return !event || cu.EventQuery(event->handle) != CUDA_ERROR_NOT_READY;
}

/* Tell whether our streams are idle, and the caller's have written inputs and
 * shards. They also count as idle if the device has failed. */
static bool has_idle_streams(const struct rank_engine *engine)
{
	CUstream streams[] = {engine->in_stream, engine->out_stream};
	const struct engine_work *work = engine->first;
	bool are_idle = nccl_rank_is_idle(&engine->nccl);

	if (context_enter(engine->device, NULL) < 0)
		return true;
	for (size_t i = 0; i < 2 && are_idle; i++)
		are_idle = !streams[i] ||
			   cu.StreamQuery(streams[i]) != CUDA_ERROR_NOT_READY;
	for (size_t i = 0; i < ENGINE_NOTED && are_idle; i++)
		are_idle = is_passed(engine->noted[i]);
	for (; work && are_idle; work = work->next)
		are_idle = is_passed(work->ready);
	context_leave();
	return are_idle;
}

static int await_streams(const struct rank_engine *engine, int64_t deadline_ms,
			 struct error *err)
{
	const struct timespec pause = {.tv_nsec = STOP_PAUSE_NS};
	char text[DEVICE_TEXT_SIZE];

	while (!has_idle_streams(engine)) {
		if (clock_now_ms() >= deadline_ms) {
			device_format(&engine->device->uuid, text);
			return error_set(err, -ETIMEDOUT,
					 "collectives on %s wait for work that "
					 "has not finished",
					 text);
		}
		(void)nanosleep(&pause, NULL);
	}
	return 0;
}

/* Finalize NCCL if nothing has failed and the other ranks do the same now;
 * otherwise abort it. */
static int end_nccl(struct rank_engine *engine, struct error *err)
{
	struct nccl_comm_options *options;
	/* the error of the communicator must not change */
	struct error failure;
	int r;

	if (engine->comm->failure.code < 0 ||
	    engine_note_and_await(engine, &failure) < 0)
		return engine_abort_nccl(engine, err);
	options = &engine->nccl.comm->options;
	if (options->timeout_ms > CLOSE_MS)
		options->timeout_ms = CLOSE_MS;
	r = nccl_comm_close(&engine->nccl.comm, err);
	return engine->nccl.comm ? r : engine_abort_nccl(engine, err);
}

/* Finish the work that another rank waits for, unless that rank is late,
 * because our last data may not have reached it yet. */
int engine_quiesce(struct rank_engine *engine, struct error *err)
{
	int64_t deadline_ms = clock_now_ms() + engine->timeout_ms;
	int r;

	engine_watch_stop(engine);
	r = end_nccl(engine, err);
	if (r < 0)
		return r;
	/* NCCL's work ends shortly after NCCL was ended. */
	if (deadline_ms < clock_now_ms() + CLOSE_MS)
		deadline_ms = clock_now_ms() + CLOSE_MS;
	r = await_streams(engine, deadline_ms, err);
	if (r < 0)
		return r;
	while (engine->first)
		engine_drop_first(engine);
	offload_free_areas(engine);
	return 0;
}

void engine_free(struct rank_engine *engine)
{
	if (!engine)
		return;
	free_uses(engine);
	for (size_t i = 0; i < ENGINE_NOTED; i++)
		event_cache_put(engine->noted[i]);
	if (engine->device)
		free_on_device(engine);
	nccl_rank_free(&engine->nccl);
	engine_watch_deinit(&engine->watch);
	pthread_mutex_destroy(&engine->nccl_lock);
	free(engine);
}

int engine_verify_step(struct rank_engine *engine, uint64_t step,
		       struct error *err)
{
	return verify_equal(engine, step, "the step to commit", err);
}

/* --- groups -------------------------------------------------------------- */

int engine_group_new(struct fsdp_group *group, struct plan *plan,
		     struct error *err)
{
	struct rank_engine *engine = group->comm->engine;
	struct engine_group *own = calloc(1, sizeof(*own));
	int r;

	if (!own) {
		plan_deinit(plan);
		return error_nomem(err, "a group");
	}
	own->plan = *plan;
	group->engine = own;
	r = verify_equal(engine, plan->hash, "the plan of the group", err);
	if (r == 0)
		r = device_group_new(&own->plan, engine->device,
				     group->comm->rank, &own->work, err);
	if (r < 0) {
		engine_group_free(own);
		group->engine = NULL;
	}
	return r;
}

void engine_group_free(struct engine_group *group)
{
	if (!group)
		return;
	device_group_free(group->work);
	offload_close(group);
	plan_deinit(&group->plan);
	event_cache_put(group->whole_event);
	event_cache_put(group->reduced_event);
	free(group);
}

int engine_group_take_memory(struct fsdp_group *group,
			     struct fsdp_tensor *partial, struct error *err)
{
	group->engine->partial = partial;
	return group->is_offloaded ? offload_open(group, err) : 0;
}

void engine_group_end_handles(struct engine_group *group)
{
	offload_close(group);
	fsdp_free(group->partial);
	group->partial = NULL;
}

/* --- bytes of the host --------------------------------------------------- */

static int want_staging(struct rank_engine *engine, struct error *err)
{
	if (engine->staging)
		return 0;
	return staging_new(engine->device, STAGING_SIZE, &engine->staging, err);
}

int engine_put(struct rank_engine *engine, void *to, const void *from,
	       uint64_t size, struct error *err)
{
	int r = want_staging(engine, err);

	if (r == 0)
		r = staging_put_bytes(engine->staging,
				      (CUdeviceptr)(uintptr_t)to, from, size,
				      err);
	return r < 0 ? r : staging_finish(engine->staging, err);
}

int engine_get(struct rank_engine *engine, void *to, const void *from,
	       uint64_t size, struct error *err)
{
	int r = want_staging(engine, err);

	return r < 0 ? r
		     : staging_get(engine->staging, to,
				   (CUdeviceptr)(uintptr_t)from, size, err);
}
