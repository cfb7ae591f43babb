/*
 * The list of works. A work is admitted by the broker, enqueued, and waited
 * for. Every call that adds to the list, or waits, also enqueues the works that
 * were admitted since then, so a prefetch runs beside the computation.
 */
#include "client/rank/engine.h"
#include "client/clock.h"
#include "client/rank/engine_impl.h"
#include "client/rank/offload.h"
#include "collective/device/device_group.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include <errno.h>
#include <stdlib.h>

static CUdeviceptr address_of(const struct fsdp_tensor *tensor)
{
	return tensor ? (CUdeviceptr)(uintptr_t)tensor->data : 0;
}

static void pump(struct rank_engine *engine);

/* --- the list ------------------------------------------------------------ */

static struct engine_work *work_new(struct fsdp_group *group, uint32_t kind,
				    uint64_t sequence, struct error *err)
{
	struct engine_work *work = calloc(1, sizeof(*work));

	if (!work) {
		error_nomem(err, "one more work");
		return NULL;
	}
	work->group = group;
	work->kind = kind;
	work->sequence = sequence;
	return work;
}

static void append(struct rank_engine *engine, struct engine_work *work)
{
	*(engine->last ? &engine->last->next : &engine->first) = work;
	engine->last = work;
}

static bool is_listed(const struct rank_engine *engine,
		      const struct fsdp_group *group, uint32_t kind,
		      uint64_t sequence)
{
	const struct engine_work *work = engine->first;

	while (work && (work->group != group || work->kind != kind ||
			work->sequence != sequence))
		work = work->next;
	return work;
}

int engine_unshard(struct fsdp_group *group, uint64_t sequence,
		   struct error *err)
{
	struct rank_engine *engine = group->comm->engine;
	struct engine_work *work;

	/* A second unshard of an open group is the same work. */
	if (group->engine->whole == sequence ||
	    is_listed(engine, group, WORK_UNSHARD, sequence))
		return 0;
	work = work_new(group, WORK_UNSHARD, sequence, err);
	if (!work)
		return -ENOMEM;
	append(engine, work);
	pump(engine);
	return 0;
}

static void replace(struct event **at, struct event *event)
{
	event_cache_put(*at);
	*at = event;
}

int engine_reduce(struct fsdp_group *group, const struct reduce_request *asked,
		  uint64_t sequence, void *stream, struct error *err)
{
	struct rank_engine *engine = group->comm->engine;
	struct engine_group *own = group->engine;
	bool is_put_off =
		asked->flags & REDUCE_NO_ALL_REDUCE && own->plan.n_replicas > 1;
	struct engine_work *work = work_new(group, WORK_REDUCE, sequence, err);
	int r = 0;

	/* The broker has planned the reduction, and the other ranks begin
	 * it. */
	if (!work)
		return engine_fail(engine, err);
	if (stream)
		r = engine_record(engine, stream, &work->ready, err);
	if (r < 0) {
		free(work);
		return engine_fail(engine, err);
	}
	work->reduce = (struct device_reduce){
		.flags = (own->has_partial ? DEVICE_REDUCE_PARTIAL_IN : 0u) |
			 (is_put_off ? DEVICE_REDUCE_PARTIAL_OUT : 0u),
		.has_factor = asked->has_factor,
		.is_sum_forced = asked->flags & REDUCE_FORCE_SUM,
		.factor = asked->factor,
	};
	/* Before the first reduction the contents of the gradients are
	 * undefined. */
	if (asked->flags & REDUCE_ACCUMULATE && own->has_grads)
		work->reduce.flags |= DEVICE_REDUCE_ACCUMULATE;
	own->has_partial = is_put_off;
	own->has_grads |= !is_put_off;
	work->input = group->input;
	group->input = NULL;
	append(engine, work);
	pump(engine);
	return 0;
}

/* --- admission ----------------------------------------------------------- */

static int64_t left_ms(int64_t deadline_ms)
{
	int64_t left = deadline_ms - clock_now_ms();

	return left > 0 ? left : 0;
}

static int32_t clamp_ms(int64_t ms)
{
	return ms > INT32_MAX ? INT32_MAX : (int32_t)ms;
}

/* Wait until the broker admits the work. If `deadline_ms` is negative, there is
 * no time-out. */
static int await_admission(const struct engine_work *work, int64_t deadline_ms,
			   struct received *ret, struct error *err)
{
	struct fsdp_comm *comm = work->group->comm;
	struct request request = {
		.kind = MESSAGE_WAIT,
		.wait = {.comm = comm->id,
			 .group = work->group->id,
			 .kind = work->kind,
			 .sequence = work->sequence,
			 .timeout_ms = deadline_ms < 0 ? -1
						       : clamp_ms(left_ms(
								 deadline_ms))},
	};

	return comm_call(comm, &request, ret, err);
}

/* --- enqueueing ---------------------------------------------------------- */

/* Take the event of the last reshard of this memory of whole parameters, which
 * the caller then owns. Returns NULL if there is none. */
static struct event *take_use(struct rank_engine *engine,
			      const struct fsdp_tensor *full)
{
	for (struct engine_use **at = &engine->uses; *at; at = &(*at)->next) {
		struct engine_use *use = *at;
		struct event *event = use->event;

		if (use->slot != full->slot ||
		    use->generation != full->generation)
			continue;
		*at = use->next;
		free(use);
		return event;
	}
	return NULL;
}

/* Tell whether this is the copy that a reshard to a smaller mesh kept, and
 * whether it is still whole. */
static bool is_kept(const struct engine_group *own,
		    const struct fsdp_tensor *full)
{
	return own->kept_generation && own->kept_slot == full->slot &&
	       own->kept_generation == full->generation;
}

/* Register the memory with NCCL before NCCL uses it. */
static int announce(struct rank_engine *engine,
		    const struct fsdp_tensor *tensor, struct error *err)
{
	int r = registrations_trim(&engine->registrations, engine->nccl.comm,
				   engine->comm->client, err);

	if (r < 0)
		return r;
	return registrations_add(&engine->registrations, engine->nccl.comm,
				 tensor, err);
}

/* Gather from these shards, on the gather stream. They may be NULL. */
static int gather_from(struct rank_engine *engine, struct fsdp_group *group,
		       const struct fsdp_tensor *shards, struct error *err)
{
	int r = engine_enter_nccl(engine, err);

	if (r < 0)
		return r;
	if (shards)
		r = announce(engine, shards, err);
	if (r == 0)
		r = announce(engine, group->full, err);
	if (r == 0)
		r = device_group_gather(group->engine->work, engine->nccl.comm,
					address_of(shards),
					address_of(group->full),
					engine->nccl.gather_stream, err);
	engine_leave_nccl(engine);
	return r;
}

static int gather(struct rank_engine *engine, struct fsdp_group *group,
		  struct error *err)
{
	const struct fsdp_tensor *shards = group->shards[group->side];
	int r = 0;

	if (group->is_offloaded)
		r = offload_shards_in(engine, group, &shards, err);
	if (r == 0)
		r = gather_from(engine, group, shards, err);
	if (r == 0 && group->is_offloaded)
		r = offload_gathered(engine, err);
	return r;
}

static int enqueue_gather(struct rank_engine *engine, struct fsdp_group *group,
			  struct error *err)
{
	struct engine_group *own = group->engine;
	struct event *use = take_use(engine, group->full);
	struct event *done;
	int r;

	r = engine_follow(engine, engine->nccl.gather_stream, use, err);
	event_cache_put(use);
	if (r == 0 && !is_kept(own, group->full))
		r = gather(engine, group, err);
	own->kept_generation = 0;
	if (r == 0)
		r = engine_record(engine, engine->nccl.gather_stream, &done,
				  err);
	if (r == 0)
		replace(&own->whole_event, done);
	return r;
}

static int begin_unshard(struct rank_engine *engine,
			 const struct engine_work *work,
			 struct received *received, struct error *err)
{
	struct fsdp_group *group = work->group;
	int r;

	r = group_take_full(group, work->sequence, received, err);
	if (r < 0)
		return r;
	r = enqueue_gather(engine, group, err);
	if (r < 0)
		return engine_fail(engine, err);
	group->engine->whole = work->sequence;
	return 0;
}

static int reduce_input(struct rank_engine *engine,
			const struct engine_work *work, struct error *err)
{
	int r = engine_enter_nccl(engine, err);

	if (r < 0)
		return r;
	r = announce(engine, work->input, err);
	if (r == 0)
		r = device_group_reduce(work->group->engine->work,
					engine->nccl.comm, &work->reduce,
					engine->nccl.reduce_stream, err);
	engine_leave_nccl(engine);
	return r;
}

/* Enqueue a reduction with its addresses. `*ret_stream` is the stream on which
 * it ends. */
static int reduce(struct rank_engine *engine, struct engine_work *work,
		  CUstream *ret_stream, struct error *err)
{
	struct fsdp_group *group = work->group;
	int r = 0;

	work->reduce.input = address_of(work->input);
	work->reduce.grads = address_of(group->grads);
	work->reduce.partial = address_of(group->engine->partial);
	if (group->is_offloaded)
		r = offload_grads_in(engine, group, &work->reduce, err);
	if (r == 0)
		r = reduce_input(engine, work, err);
	*ret_stream = engine->nccl.reduce_stream;
	if (r == 0 && group->is_offloaded)
		r = offload_grads_out(engine, group, &work->reduce, ret_stream,
				      err);
	return r;
}

static int begin_reduce(struct rank_engine *engine, struct engine_work *work,
			struct error *err)
{
	struct fsdp_group *group = work->group;
	struct engine_group *own = group->engine;
	struct event *done = NULL;
	CUstream stream;
	int r;

	r = engine_follow(engine, engine->nccl.reduce_stream, work->ready, err);
	if (r == 0)
		r = reduce(engine, work, &stream, err);
	if (r == 0)
		r = engine_record(engine, stream, &done, err);
	if (r == 0 && work->input->data)
		r = fsdp_release_on(work->input, engine->nccl.reduce_stream);
	if (done)
		replace(&own->reduced_event, done);
	if (r < 0)
		return engine_fail(engine, err);
	own->reduced = work->sequence;
	return 0;
}

/* Begin the first work of the list. */
static int begin_first(struct rank_engine *engine, int64_t deadline_ms,
		       struct error *err)
{
	struct engine_work *work = engine->first;
	struct received received;
	int r;

	r = await_admission(work, deadline_ms, &received, err);
	if (r < 0)
		return r;
	if (work->kind == WORK_UNSHARD)
		r = begin_unshard(engine, work, &received, err);
	else
		r = begin_reduce(engine, work, err);
	received_deinit(&received);
	if (r == 0)
		engine_drop_first(engine);
	return r;
}

static int begin_until(struct rank_engine *engine,
		       const struct fsdp_group *group, uint32_t kind,
		       uint64_t sequence, int64_t deadline_ms,
		       struct error *err)
{
	int r = 0;

	while (r == 0 && is_listed(engine, group, kind, sequence))
		r = begin_first(engine, deadline_ms, err);
	return r;
}

/* Enqueue works that may begin now, so that they run beside the caller's next
 * work. Their errors are returned by the waits for them. */
static void pump(struct rank_engine *engine)
{
	int64_t now_ms = clock_now_ms();
	struct error err = ERROR_NULL;

	while (engine->first && begin_first(engine, now_ms, &err) == 0)
		;
}

/* --- waiting ------------------------------------------------------------- */

/* What was enqueued before the run ended may be undefined. */
static int check_verdict(struct fsdp_comm *comm, struct error *err)
{
	return comm->verdict ? comm_check_run(comm, err) : 0;
}

static int check_known(const struct fsdp_work *work, struct error *err)
{
	const struct engine_group *own = work->group->engine;
	uint64_t last = work->kind == WORK_UNSHARD ? own->whole : own->reduced;

	if (work->sequence && work->sequence <= last)
		return 0;
	return error_set(err, -EINVAL,
			 "this rank has not begun this work of the group");
}

/* Wait for the event in parts, since the caller may be interrupted and wait
 * again. */
static int await_slowly(struct rank_engine *engine, const struct event *event,
			int64_t deadline_ms, struct error *err)
{
	const struct interrupt *interrupt =
		&engine->comm->client->connection.self.interrupt;
	int64_t until_ms;
	int r;

	do {
		until_ms = deadline_ms;
		if (interrupt->fn)
			until_ms =
				clock_now_ms() +
				interrupt_slice(interrupt,
						deadline_ms < 0
							? -1
							: left_ms(deadline_ms));
		r = engine_await_event(engine, event, until_ms, err);
		if (r == -ETIMEDOUT && interrupt_is_asked(interrupt))
			return interrupt_refuse(err);
	} while (r == -ETIMEDOUT &&
		 (deadline_ms < 0 || left_ms(deadline_ms) > 0));
	return r;
}

int engine_wait(const struct fsdp_work *work, void *stream, int32_t timeout_ms,
		struct error *err)
{
	struct rank_engine *engine = work->comm->engine;
	struct fsdp_group *group = work->group;
	int64_t deadline_ms = timeout_ms < 0 ? -1 : clock_now_ms() + timeout_ms;
	const struct event *event;
	int r = check_verdict(work->comm, err);

	if (r == 0 && stream)
		r = context_check_stream(engine->device, stream, err);
	if (r < 0)
		return r;
	r = begin_until(engine, group, work->kind, work->sequence, deadline_ms,
			err);
	if (r == 0)
		r = check_known(work, err);
	if (r < 0)
		return r;
	event = work->kind == WORK_UNSHARD ? group->engine->whole_event
					   : group->engine->reduced_event;
	if (stream)
		r = engine_follow(engine, stream, event, err);
	else
		r = await_slowly(engine, event, deadline_ms, err);
	if (r == 0)
		pump(engine);
	return r;
}

/* --- resharding ---------------------------------------------------------- */

/* Let the next gather into this memory wait for the current work of
 * `stream`. */
static int note_use(struct rank_engine *engine, const struct fsdp_tensor *full,
		    CUstream stream, struct error *err)
{
	struct engine_use *use = calloc(1, sizeof(*use));
	int r;

	if (!use)
		return error_nomem(err, "a reshard");
	r = engine_record(engine, stream, &use->event, err);
	if (r < 0) {
		free(use);
		return r;
	}
	use->slot = full->slot;
	use->generation = full->generation;
	use->next = engine->uses;
	engine->uses = use;
	return 0;
}

/* Release the memory after the gather stream, which wrote it, and after the
 * caller's stream, which may still read it. */
static int release(struct rank_engine *engine, struct fsdp_group *group,
		   CUstream stream, struct error *err)
{
	CUstream last = stream ? stream : engine->nccl.gather_stream;
	int r = 0;

	if (stream)
		r = engine_follow(engine, stream, group->engine->whole_event,
				  err);
	if (r == 0)
		r = note_use(engine, group->full, last, err);
	if (r == 0 && group->full->data)
		r = fsdp_release_on(group->full, last);
	if (r < 0)
		return r;
	fsdp_free(group->full);
	group->full = NULL;
	return 0;
}

int engine_begin(struct fsdp_group *group, struct error *err)
{
	struct rank_engine *engine = group->comm->engine;
	int r = check_verdict(group->comm, err);

	return r < 0 ? r
		     : begin_until(engine, group, WORK_UNSHARD, group->open,
				   clock_now_ms() + engine->timeout_ms, err);
}

int engine_begin_reductions(struct rank_engine *engine, struct error *err)
{
	const struct engine_work *work;

	pump(engine);
	for (work = engine->first; work; work = work->next) {
		if (work->kind == WORK_REDUCE)
			return error_set(
				err, -EBUSY,
				"gradients that this rank handed in are being "
				"reduced; wait for them before the commit");
	}
	return 0;
}

int engine_reshard(struct fsdp_group *group, uint32_t n_mesh, void *stream,
		   struct error *err)
{
	struct rank_engine *engine = group->comm->engine;
	struct engine_group *own = group->engine;
	int r;

	if (!group->full)
		return 0;
	if (stream) {
		r = context_check_stream(engine->device, stream, err);
		if (r < 0)
			return r;
	}
	own->kept_slot = group->full->slot;
	own->kept_generation = n_mesh ? group->full->generation : 0;
	return release(engine, group, stream, err);
}
