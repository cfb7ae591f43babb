#include "broker/comm/gather_progress.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/full_memory.h"
#include "broker/comm/gather.h"
#include "broker/comm/group.h"
#include "broker/comm/work.h"
#include "broker/engine/engine.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <stdlib.h>

static void finish(struct gather *gather)
{
	struct group *group = gather->call.group;

	gather->state = GATHER_DONE;
	gathers_restart_waits(group->comm);
	gather_end_if_over(gather);
	comm_wake(group->comm);
}

static void on_gathered(void *data, const struct job_done *done)
{
	struct work *work = data;
	struct comms *comms = work->comms;
	struct call *call = work_end(work, WORK_STREAM_GATHER);

	if (!call)
		return;
	if (done->code < 0)
		work_fail(call->group, WORK_STREAM_GATHER, done->sentence);
	else
		finish(gather_of(call));
	catalog_commit(&comms->store->catalog);
	failpoint("gather.done");
}

/* Submit the job of a gather in host memory, which all ranks share. */
static int submit_shared(const struct gather *gather, struct work *work,
			 struct error *err)
{
	const struct group *group = gather->call.group;
	struct engine_slots slots = {
		.shards = group->shards[group->side].slots[0],
		.full = gather->full.slots[0],
	};
	struct job job = {
		.kind = JOB_GATHER,
		.stream = work_stream(group, WORK_STREAM_GATHER),
	};

	return engine_submit(work->comms->engine, &job, group->engine_plan,
			     &slots, on_gathered, work, err);
}

static int submit_each(const struct gather *gather, struct work *work,
		       struct error *err)
{
	const struct group *group = gather->call.group;
	struct engine_rank_slots slots = {
		.n_ranks = group->comm->n_ranks,
		.shards = group->shards[group->side].slots,
		.full = gather->full.slots,
	};
	struct job_device job = {
		.kind = JOB_DEVICE_GATHER,
		.comm = group->comm->id,
	};

	return engine_submit_device(work->comms->engine, &job,
				    group->engine_plan, &slots, on_gathered,
				    work, err);
}

static int submit(struct gather *gather, struct error *err)
{
	struct group *group = gather->call.group;
	struct work *work;
	int r;

	r = work_new(group, gather->call.sequence, &work, err);
	if (r < 0)
		return r;
	r = group->comm->is_on_devices ? submit_each(gather, work, err)
				       : submit_shared(gather, work, err);
	if (r < 0) {
		free(work);
		return r;
	}
	comm_worker_end_turn(group->comm);
	gather->state = GATHER_RUNNING;
	gather->call.waits_since_ms = 0;
	failpoint("gather.submitted");
	return 0;
}

/* Get capacity at the engine, and memory for the unsharded parameters. Returns
 * an enum pool_outcome. */
static int make_room(struct gather *gather, struct error *err)
{
	struct comm *comm = gather->call.group->comm;
	int r = POOL_FULL;

	gather->call.shortage = ERROR_NULL;
	if (comm->is_by_ranks ||
	    engine_check_room(comm->comms->engine, err) == 0)
		r = full_memory_make(gather, err);
	if (r == POOL_FULL)
		gather->call.shortage = *err;
	if (r > 0 && !gather->call.waits_since_ms)
		gather->call.waits_since_ms = now_ms();
	return r;
}

/* Let the ranks do the work. For the broker the gather is then done. */
static void hand_to_ranks(struct gather *gather)
{
	struct group *group = gather->call.group;
	struct engine *engine = group->comm->comms->engine;

	engine->n_gathers++;
	engine->bytes_gathered += group->plan.full_size * group->comm->n_ranks;
	gather->state = GATHER_DONE;
	gather->call.waits_since_ms = 0;
	comm_wake(group->comm);
}

/* Start one gather. Returns false if it waits for memory or its turn, or if the
 * communicator has failed. */
static bool start_one(struct gather *gather)
{
	struct error err = ERROR_NULL;
	int r;

	if (!comm_worker_is_turn(gather->call.group, gather->call.turn))
		return false;
	r = make_room(gather, &err);
	if (r == POOL_OK && gather->call.group->comm->is_by_ranks)
		hand_to_ranks(gather);
	else if (r == POOL_OK)
		r = submit(gather, &err);
	if (r < 0)
		work_fail(gather->call.group, WORK_STREAM_GATHER, err.msg);
	return r == 0;
}

/* Admit a gather. If it needs no memory, it is done. It stays in the list,
 * since a gather that was limited cannot have been resharded by all ranks. */
static void admit(struct gather *gather)
{
	struct group *group = gather->call.group;

	gather->state = GATHER_DONE;
	if (group->plan.is_in_place) {
		gather->full = group->shards[group->side];
		rank_memory_pin(group->comm, &gather->full);
	} else if (rank_memory_is_whole(group->comm, &group->kept_full)) {
		gather->full = group->kept_full;
		group->kept_full = (struct rank_memory){.slots = {0}};
	} else {
		gather->state = GATHER_WANTS_ROOM;
	}
	gather->call.waits_since_ms = 0;
	gather_free_ticket_if_due(gather);
	if (gather->state == GATHER_DONE)
		comm_wake(group->comm);
}

/* Admit gathers in order, so that an event that one enqueues is available to
 * the next. Those after the first that is not admitted wait. Returns whether
 * some need memory. */
static bool admit_all(struct comm *comm)
{
	struct gather *gather = gathers_first(comm);
	bool is_room_wanted = false;

	for (; gather; gather = gather_next(gather)) {
		if (gather->state == GATHER_LIMITED) {
			if (!limiter_is_admitted(comm->limiter, gather->ticket))
				break;
			admit(gather);
		}
		is_room_wanted |= gather->state == GATHER_WANTS_ROOM;
	}
	return is_room_wanted;
}

/* Start gathers in order. If there is no memory for one, those after it wait,
 * since smaller ones might otherwise starve it. */
static void start_all(struct comm *comm)
{
	struct gather *gather = gathers_first(comm);
	uint32_t n_running = 0;

	for (; gather && n_running < GATHER_MAX_RUNNING;
	     gather = gather_next(gather)) {
		if (gather->state == GATHER_WANTS_ROOM && !start_one(gather))
			return;
		n_running += gather->state == GATHER_RUNNING;
	}
}

void gathers_progress(struct comm *comm)
{
	if (!admit_all(comm))
		return;
	collect_released(comm->comms->store);
	start_all(comm);
	catalog_commit(&comm->comms->store->catalog);
}
