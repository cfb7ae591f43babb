/*
 * All reductions of a communicator use one stream in the order of the list, so
 * the gradients or partial sums of one are ready for the next. The flags of a
 * job therefore follow from the jobs submitted before it, whether they are done
 * or not.
 */
#include "broker/comm/reduce_progress.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/group.h"
#include "broker/comm/reduce.h"
#include "broker/comm/work.h"
#include "broker/tensor/storage.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <stdlib.h>
#include <string.h>

static void finish(struct reduction *reduction)
{
	struct group *group = reduction->call.group;

	group->n_reduced = reduction->call.sequence;
	reduction_release_inputs(reduction);
	calls_remove(&group->comm->reductions, &reduction->call);
	free(reduction);
	comm_wake(group->comm);
}

static void on_reduced(void *data, const struct job_done *done)
{
	struct work *work = data;
	struct comms *comms = work->comms;
	struct call *call = work_end(work, WORK_STREAM_REDUCE);

	if (!call)
		return;
	if (done->code < 0)
		work_fail(call->group, WORK_STREAM_REDUCE, done->sentence);
	else
		finish(reduction_of(call));
	catalog_commit(&comms->store->catalog);
	failpoint("reduce.done");
}

/* Returns whether the all-reduce is deferred. Without replicas there is
 * none. */
static bool is_put_off(const struct reduction *reduction)
{
	return (reduction->flags & REDUCE_NO_ALL_REDUCE) &&
	       reduction->call.group->plan.n_replicas > 1;
}

static uint32_t job_flags(const struct reduction *reduction)
{
	const struct group *group = reduction->call.group;
	uint32_t flags = 0;

	if (is_put_off(reduction))
		flags |= JOB_PARTIAL_OUT;
	if (group->has_partial)
		flags |= JOB_PARTIAL_IN;
	/* Before the first reduction the contents of the gradients
	 * are undefined. */
	if ((reduction->flags & REDUCE_ACCUMULATE) && group->has_grads)
		flags |= JOB_ACCUMULATE;
	return flags;
}

static void count_work(const struct group *group)
{
	struct engine *engine = group->comm->comms->engine;

	engine->n_reductions++;
	engine->bytes_reduced += group->plan.input_size * group->comm->n_ranks;
}

static void note_submitted(struct reduction *reduction)
{
	struct group *group = reduction->call.group;

	reduction->is_running = true;
	reduction->call.waits_since_ms = 0;
	reduction->call.shortage = ERROR_NULL;
	group->has_partial = is_put_off(reduction);
	group->has_grads |= !group->has_partial;
	failpoint("reduce.submitted");
}

/* Submit the job of a reduction in host memory, where all ranks share the
 * gradients. */
static int submit_shared(const struct reduction *reduction, struct work *work,
			 struct error *err)
{
	const struct group *group = reduction->call.group;
	struct engine_slots slots = {
		.grads = group->grads.slots[0],
		.partial = group->partial.slots[0],
	};
	struct job job = {
		.kind = JOB_REDUCE,
		.stream = work_stream(group, WORK_STREAM_REDUCE),
		.flags = job_flags(reduction),
		.has_factor = reduction->has_factor,
		.is_sum_forced = !!(reduction->flags & REDUCE_FORCE_SUM),
		.factor = reduction->factor,
	};

	memcpy(slots.inputs, reduction->inputs, sizeof(slots.inputs));
	return engine_submit(work->comms->engine, &job, group->engine_plan,
			     &slots, on_reduced, work, err);
}

static int submit_each(struct reduction *reduction, struct work *work,
		       struct error *err)
{
	const struct group *group = reduction->call.group;
	struct engine_rank_slots slots = {
		.n_ranks = group->comm->n_ranks,
		.inputs = reduction->inputs,
		.grads = group->grads.slots,
		.partial = group->partial.slots,
		.fences = reduction->fences,
	};
	struct job_device job = {
		.kind = JOB_DEVICE_REDUCE,
		.comm = group->comm->id,
		.flags = job_flags(reduction),
		.has_factor = reduction->has_factor,
		.is_sum_forced = !!(reduction->flags & REDUCE_FORCE_SUM),
		.factor = reduction->factor,
	};

	return engine_submit_device(work->comms->engine, &job,
				    group->engine_plan, &slots, on_reduced,
				    work, err);
}

static int submit(struct reduction *reduction, struct error *err)
{
	struct group *group = reduction->call.group;
	struct work *work;
	int r;

	r = work_new(group, reduction->call.sequence, &work, err);
	if (r < 0)
		return r;
	r = group->comm->is_on_devices ? submit_each(reduction, work, err)
				       : submit_shared(reduction, work, err);
	if (r < 0) {
		free(work);
		return r;
	}
	comm_worker_end_turn(group->comm);
	note_submitted(reduction);
	return 0;
}

/* Get capacity at the engine, and memory for sums that wait for an all-reduce.
 * Returns an enum pool_outcome. */
static int make_room(struct reduction *reduction, struct error *err)
{
	struct group *group = reduction->call.group;
	int r = POOL_OK;

	if (!group->comm->is_by_ranks &&
	    engine_check_room(group->comm->comms->engine, err) < 0)
		r = POOL_FULL;
	else if (is_put_off(reduction))
		r = rank_memory_make(
			group->comm,
			group_size(group, group->plan.partial_size),
			&group->partial, err);
	if (r > 0 && !reduction->call.waits_since_ms)
		reduction->call.waits_since_ms = now_ms();
	if (r > 0)
		reduction->call.shortage = *err;
	return r;
}

/* Start one reduction. Returns false if it waits for memory or its turn, or if
 * the communicator has failed. */
static bool start_one(struct reduction *reduction)
{
	struct error err = ERROR_NULL;
	int r;

	if (!comm_worker_is_turn(reduction->call.group, reduction->call.turn))
		return false;
	r = make_room(reduction, &err);
	if (r == POOL_OK && !reduction->call.group->comm->is_by_ranks)
		r = submit(reduction, &err);
	if (r < 0)
		work_fail(reduction->call.group, WORK_STREAM_REDUCE, err.msg);
	return r == 0;
}

/* Let the ranks do the work in the order of the list. For the broker a
 * reduction is then done. */
static void hand_to_ranks(struct comm *comm)
{
	struct reduction *reduction;

	while ((reduction = reduction_of(comm->reductions.first)) &&
	       reduction->call.made == comm_all(comm) && start_one(reduction)) {
		note_submitted(reduction);
		count_work(reduction->call.group);
		finish(reduction);
	}
}

void reductions_progress(struct comm *comm)
{
	struct reduction *reduction = reduction_of(comm->reductions.first);
	uint32_t n_running = 0;

	if (comm->is_by_ranks) {
		hand_to_ranks(comm);
		catalog_commit(&comm->comms->store->catalog);
		return;
	}
	while (reduction && n_running < REDUCTION_MAX_RUNNING) {
		if (!reduction->is_running &&
		    (reduction->call.made != comm_all(comm) ||
		     !start_one(reduction)))
			break;
		n_running++;
		reduction = reduction_of(reduction->call.next);
	}
	catalog_commit(&comm->comms->store->catalog);
}
