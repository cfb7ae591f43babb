/*
 * The list of reductions: the inputs that each has, and its way to the engine.
 *
 * All reductions of a communicator use one stream in the order of the list, so
 * the gradients or partial sums of one are ready for the next: the flags of a
 * job follow from the jobs submitted before it, done or not.
 */
#include "broker/comm/reduce.h"
#include "broker/base/work.h"
#include "broker/broker.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/group.h"
#include "broker/session/session.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/storage.h"
#include "broker/tensor/timeline_file.h"
#include "collective/divide.h"
#include "proto/error.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- inputs -------------------------------------------------------------- */

static uint32_t count_filled(const struct comm *comm, uint32_t rank)
{
	const struct group *group = comm->first_group;
	uint32_t n = 0;

	for (; group; group = group->next)
		n += group->inputs[rank] != 0;
	return n;
}

/* Parameters with gradients may still have no elements. */
static bool has_gradients(const struct group *group)
{
	const struct plan *plan = &group->plan;
	uint32_t i = 0;

	while (i < plan->n_entries && !plan->entries[i].reduce_dtype)
		i++;
	return i < plan->n_entries;
}

int input_check(const struct group *group, uint32_t rank, struct error *err)
{
	const struct comm *comm = group->comm;
	char name[RANK_TEXT];

	if (!has_gradients(group))
		return error_set(err, -EINVAL,
				 "group '%s' has no gradients: all of its "
				 "parameters are frozen",
				 group->name);
	comm_rank_name(comm, rank, name, sizeof(name));
	if (group->inputs[rank])
		return error_set(err, -EBUSY,
				 "%s has an input of '%s' already; reduce it "
				 "first",
				 name, group->name);
	if (comm->ranks[rank].n_inputs < comm->n_inputs)
		return INPUT_OK;
	/* The rank would wait for itself. */
	if (count_filled(comm, rank) >= comm->n_inputs)
		return error_set(err, -EBUSY,
				 "%s fills %u inputs, as many as it may have; "
				 "reduce one first, or join with more",
				 name, comm->n_inputs);
	error_set(err, -ETIMEDOUT,
		  "the inputs that %s may have (%u) are still being reduced",
		  name, comm->n_inputs);
	return INPUT_WAIT;
}

void input_add(struct group *group, uint32_t rank, uint32_t slot)
{
	assert(!group->inputs[rank]);
	group->inputs[rank] = slot;
	group->comm->ranks[rank].n_inputs++;
}

/* --- the list ------------------------------------------------------------ */

static void append(struct comm *comm, struct reduction *reduction)
{
	if (comm->last_reduction)
		comm->last_reduction->next = reduction;
	else
		comm->first_reduction = reduction;
	comm->last_reduction = reduction;
}

static void take_out(struct comm *comm, struct reduction *reduction)
{
	struct reduction *prev = NULL, *at = comm->first_reduction;

	while (at != reduction) {
		prev = at;
		at = at->next;
	}
	if (prev)
		prev->next = reduction->next;
	else
		comm->first_reduction = reduction->next;
	if (comm->last_reduction == reduction)
		comm->last_reduction = prev;
}

static struct reduction *find(const struct group *group, uint64_t sequence)
{
	struct reduction *reduction = group->comm->first_reduction;

	while (reduction &&
	       (reduction->group != group || reduction->sequence != sequence))
		reduction = reduction->next;
	return reduction;
}

/* The first reduction that others have submitted and the rank has not. */
static struct reduction *find_next(const struct comm *comm, uint32_t rank)
{
	struct reduction *reduction = comm->first_reduction;

	while (reduction && (reduction->submitted & rank_bit(rank)))
		reduction = reduction->next;
	return reduction;
}

static uint32_t count(const struct comm *comm)
{
	const struct reduction *reduction = comm->first_reduction;
	uint32_t n = 0;

	for (; reduction; reduction = reduction->next)
		n++;
	return n;
}

/* --- submitting ---------------------------------------------------------- */

/* The input must be the slot that was given to this rank for this group, so
 * that a rank can submit neither foreign memory nor the same input twice. */
static int check_input(const struct group *group, uint32_t rank,
		       const struct slot_ref *input, struct error *err)
{
	uint32_t slot = slot_find(group->comm->broker, input, err);
	char name[RANK_TEXT];

	if (!slot)
		return -ESTALE;
	if (slot == group->inputs[rank])
		return 0;
	comm_rank_name(group->comm, rank, name, sizeof(name));
	return error_set(err, -EINVAL,
			 "%s hands in memory that is not its input of '%s'; "
			 "ask for one, and hand it in once",
			 name, group->name);
}

static int check_factors(const struct group *group,
			 const struct reduce_request *request,
			 struct error *err)
{
	const struct plan *plan = &group->plan;
	struct divide_input input = {
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
		.has_factor = request->has_factor,
		.factor = request->factor,
		.is_sum_forced = request->flags & REDUCE_FORCE_SUM,
	};
	uint64_t seen = 0;
	struct divide divide;
	int r;

	for (uint32_t i = 0; i < plan->n_entries; i++) {
		input.dtype = plan->entries[i].reduce_dtype;
		if (!input.dtype || (seen >> input.dtype & 1))
			continue;
		seen |= UINT64_C(1) << input.dtype;
		r = divide_make(&input, &divide, err);
		if (r < 0)
			return error_wrap(err, r, "reduce '%s'", group->name);
	}
	return 0;
}

/* Only the worker is told of it; the ranks' own streams need no telling. */
static int check_order(const struct group *group, uint32_t rank,
		       const struct reduce_request *request, struct error *err)
{
	const struct session *session = group->comm->ranks[rank].session;

	if (!request->timeline ||
	    (comm_is_by_worker(group->comm) && session->timelines.pages &&
	     request->timeline < TIMELINES))
		return 0;
	return error_set(err, -EINVAL,
			 "'%s' is reduced after timeline %u, which is none "
			 "that fsdp-worker could wait for",
			 group->name, request->timeline);
}

/* May the rank begin a reduction that no other rank has begun? */
static int check_new(const struct group *group, uint32_t rank,
		     const struct reduce_request *request, struct error *err)
{
	const struct comm *comm = group->comm;
	char name[RANK_TEXT];

	comm_rank_name(comm, rank, name, sizeof(name));
	if (comm->committing)
		return error_set(err, -EINVAL,
				 "%s reduces '%s', but other ranks commit step "
				 "%llu next; all must do the same in the same "
				 "order",
				 name, group->name,
				 (unsigned long long)comm->committing);
	if (count(comm) >= REDUCTION_MAX)
		return error_set(err, -EBUSY,
				 "%s is %d reductions ahead of others; wait "
				 "for one of them",
				 name, REDUCTION_MAX);
	return check_factors(group, request, err);
}

/* The option in which the two differ; NULL: none. */
static const char *differs(const struct reduction *reduction,
			   const struct reduce_request *request)
{
	uint32_t flags = reduction->flags ^ request->flags;

	if (flags & REDUCE_ACCUMULATE)
		return "whether to accumulate";
	if (flags & REDUCE_NO_ALL_REDUCE)
		return "whether to all-reduce";
	if (flags)
		return "whether to force sums";
	if (reduction->has_factor != request->has_factor ||
	    (request->has_factor && reduction->factor != request->factor))
		return "the divide factor";
	return NULL;
}

/* Does the rank's request match the reduction that others began? */
static int check_next(const struct group *group, uint32_t rank,
		      const struct reduction *next,
		      const struct reduce_request *request, struct error *err)
{
	const struct comm *comm = group->comm;
	char mine[RANK_TEXT], theirs[RANK_TEXT];
	const char *difference;

	comm_rank_name(comm, rank, mine, sizeof(mine));
	comm_rank_name(comm, rank_first(next->submitted), theirs,
		       sizeof(theirs));
	if (next->group != group)
		return error_set(err, -EINVAL,
				 "%s reduces '%s', but the ranks' next "
				 "reduction is of '%s', which %s began; all "
				 "must reduce in the same order",
				 mine, group->name, next->group->name, theirs);
	difference = differs(next, request);
	if (difference)
		return error_set(err, -EINVAL,
				 "%s reduces '%s' with other options than %s: "
				 "they differ in %s",
				 mine, group->name, theirs, difference);
	return 0;
}

static int begin(struct group *group, const struct reduce_request *request,
		 struct reduction **ret, struct error *err)
{
	struct reduction *reduction = calloc(1, sizeof(*reduction));

	if (!reduction)
		return error_set(err, -ENOMEM, "no memory for a reduction");
	reduction->group = group;
	reduction->sequence = ++group->n_reductions;
	reduction->turn = comm_worker_take_turn(group->comm);
	reduction->flags = request->flags;
	reduction->has_factor = request->has_factor;
	reduction->factor = request->factor;
	reduction->since_ms = now_ms();
	append(group->comm, reduction);
	*ret = reduction;
	return 0;
}

/* Transfer the input's pin to the reduction. */
static void hand_in(struct reduction *reduction, uint32_t rank,
		    const struct reduce_request *request)
{
	struct group *group = reduction->group;

	reduction->orders[rank] = (struct engine_order){
		.timeline = request->timeline, .value = request->value};

	reduction->inputs[rank] = group->inputs[rank];
	group->inputs[rank] = 0;
	reduction->submitted |= rank_bit(rank);
	if (reduction->next)
		reduction->next->since_ms = now_ms();
	comm_wake(group->comm);
}

int reduction_submit(struct group *group, uint32_t rank,
		     const struct reduce_request *request,
		     uint64_t *ret_sequence, struct error *err)
{
	struct reduction *reduction = find_next(group->comm, rank);
	int r;

	r = comm_check_not_committing(group->comm, rank, err);
	if (r == 0)
		r = check_input(group, rank, &request->input, err);
	if (r == 0)
		r = check_order(group, rank, request, err);
	if (r == 0 && reduction)
		r = check_next(group, rank, reduction, request, err);
	if (r == 0 && !reduction) {
		r = check_new(group, rank, request, err);
		if (r == 0)
			r = begin(group, request, &reduction, err);
	}
	if (r < 0)
		return r;
	hand_in(reduction, rank, request);
	*ret_sequence = reduction->sequence;
	return 0;
}

/* --- waiting ------------------------------------------------------------- */

int reduction_refuse_wait(const struct group *group, uint64_t sequence,
			  struct error *err)
{
	const struct reduction *reduction = find(group, sequence);
	char missing[RANK_TEXT];

	assert(reduction);
	if (reduction->submitted != comm_all(group->comm)) {
		comm_name_missing(group->comm, reduction->submitted, missing,
				  sizeof(missing));
		return error_set(err, -ETIMEDOUT,
				 "'%s' is not reduced yet: %s has not handed "
				 "in its gradients",
				 group->name, missing);
	}
	if (reduction->shortage.code)
		return error_set(err, -ETIMEDOUT,
				 "'%s' is not reduced yet: it waits for "
				 "memory: %s",
				 group->name, reduction->shortage.msg);
	return error_set(err, -ETIMEDOUT, "'%s' is still being reduced",
			 group->name);
}

int reduction_look(const struct group *group, uint32_t rank, uint64_t sequence,
		   struct error *err)
{
	const struct reduction *reduction = find(group, sequence);
	char name[RANK_TEXT];

	if (sequence && sequence <= group->n_reduced)
		return REDUCTION_DONE;
	if (reduction && (reduction->submitted & rank_bit(rank)))
		return REDUCTION_PENDING;
	comm_rank_name(group->comm, rank, name, sizeof(name));
	return error_set(err, -EINVAL, "%s has begun no reduction %llu of '%s'",
			 name, (unsigned long long)sequence, group->name);
}

int reductions_check_commit(const struct comm *comm, uint32_t rank,
			    struct error *err)
{
	const struct reduction *first = comm->first_reduction;
	const struct reduction *next = find_next(comm, rank);
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	comm_rank_name(comm, rank, mine, sizeof(mine));
	if (first && (first->submitted & rank_bit(rank)))
		return error_set(err, -EBUSY,
				 "gradients of '%s' that %s handed in are "
				 "being reduced; wait for them before the "
				 "commit",
				 first->group->name, mine);
	if (!next)
		return 0;
	comm_rank_name(comm, rank_first(next->submitted), theirs,
		       sizeof(theirs));
	return error_set(err, -EINVAL,
			 "%s commits, but the ranks' next step is to reduce "
			 "'%s', which %s began",
			 mine, next->group->name, theirs);
}

/* --- lateness ------------------------------------------------------------ */

struct late {
	const struct reduction *reduction; /* NULL: no reduction waits */
	uint64_t since_ms;
	bool is_waiting; /* for memory */
};

static void note_late(struct late *late, const struct reduction *reduction,
		      uint64_t since_ms, bool is_waiting)
{
	if (late->reduction && late->since_ms <= since_ms)
		return;
	*late = (struct late){reduction, since_ms, is_waiting};
}

/* For each rank only the first reduction that it has not submitted counts. */
static struct late find_late(const struct comm *comm)
{
	const struct reduction *reduction = comm->first_reduction;
	struct late late = {0};
	uint64_t behind = 0;

	for (; reduction; reduction = reduction->next) {
		if (comm_all(comm) & ~reduction->submitted & ~behind)
			note_late(&late, reduction, reduction->since_ms, false);
		behind |= ~reduction->submitted;
		if (reduction->waits_since_ms)
			note_late(&late, reduction, reduction->waits_since_ms,
				  true);
	}
	return late;
}

uint64_t reductions_deadline(const struct comm *comm)
{
	struct late late = find_late(comm);

	if (!late.reduction)
		return UINT64_MAX;
	return late.since_ms + (uint64_t)comm->timeout_ms;
}

void reductions_describe_late(const struct comm *comm, struct error *ret)
{
	struct late late = find_late(comm);
	char missing[RANK_TEXT];

	assert(late.reduction);
	if (late.is_waiting) {
		error_set(ret, -ECONNABORTED,
			  "group '%s' was not reduced within %d ms for want of "
			  "memory: %s",
			  late.reduction->group->name, comm->timeout_ms,
			  late.reduction->shortage.msg);
		return;
	}
	comm_name_missing(comm, late.reduction->submitted, missing,
			  sizeof(missing));
	error_set(ret, -ECONNABORTED,
		  "%s has not handed in gradients of '%s' within %d ms",
		  missing, late.reduction->group->name, comm->timeout_ms);
}

/* --- progress ------------------------------------------------------------ */

static void fail(const struct group *group, const struct error *cause)
{
	comm_fail(group->comm, -ECONNABORTED,
		  "the work stopped while group '%s' of communicator '%s' was "
		  "reduced: %s",
		  group->name, group->comm->name, cause->msg);
}

static void release_inputs(struct reduction *reduction)
{
	struct comm *comm = reduction->group->comm;

	for (uint32_t rank = 0; rank < comm->n_ranks; rank++) {
		if (!reduction->inputs[rank])
			continue;
		(void)slot_unpin(comm->broker, reduction->inputs[rank]);
		comm->ranks[rank].n_inputs--;
	}
}

static void finish(struct reduction *reduction)
{
	struct group *group = reduction->group;

	group->n_reduced = reduction->sequence;
	release_inputs(reduction);
	take_out(group->comm, reduction);
	free(reduction);
	comm_wake(group->comm);
}

static void on_reduced(void *data, const struct job_done *done)
{
	struct work *work = data;
	struct broker *broker = work->broker;
	struct group *group = work_find_group(work);
	struct error cause = ERROR_NULL;
	struct reduction *reduction;

	reduction = group ? find(group, work->sequence) : NULL;
	free(work);
	if (!reduction)
		return;
	if (done->code < 0) {
		error_set(&cause, done->code, "%s", done->sentence);
		fail(group, &cause);
	} else {
		finish(reduction);
	}
	catalog_commit(&broker->catalog);
	point("reduce.done");
}

/* Without replicas there is no all-reduce to defer. */
static bool is_put_off(const struct reduction *reduction)
{
	return (reduction->flags & REDUCE_NO_ALL_REDUCE) &&
	       reduction->group->plan.n_replicas > 1;
}

static uint32_t job_flags(const struct reduction *reduction)
{
	const struct group *group = reduction->group;
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
	struct engine *engine = &group->comm->broker->engine;

	engine->n_reductions++;
	engine->bytes_reduced += group->plan.input_size * group->comm->n_ranks;
}

static void note_submitted(struct reduction *reduction)
{
	struct group *group = reduction->group;

	reduction->is_running = true;
	reduction->waits_since_ms = 0;
	reduction->shortage = ERROR_NULL;
	group->has_partial = is_put_off(reduction);
	group->has_grads |= !group->has_partial;
	point("reduce.submitted");
}

/* All ranks share one gradient memory. */
static int submit_shared(const struct reduction *reduction, struct work *work,
			 struct error *err)
{
	const struct group *group = reduction->group;
	struct engine_slots slots = {
		.grads = group->grads.slots[0],
		.partial = group->partial.slots[0],
	};
	struct job job = {
		.kind = JOB_REDUCE,
		.stream = work_stream(group, WORK_STREAM_REDUCE),
		.plan = group->engine_plan,
		.flags = job_flags(reduction),
		.has_factor = reduction->has_factor,
		.is_sum_forced = !!(reduction->flags & REDUCE_FORCE_SUM),
		.factor = reduction->factor,
	};

	memcpy(slots.inputs, reduction->inputs, sizeof(slots.inputs));
	return engine_submit(&work->broker->engine, &job, &slots, on_reduced,
			     work, err);
}

/* The worker gets the files of those that it must wait for. A session that has
 * ended took its communicator with it. */
static int give_timelines(struct reduction *reduction, struct error *err)
{
	struct comm *comm = reduction->group->comm;
	int fd, r = 0;

	for (uint32_t i = 0; i < comm->n_ranks && r == 0; i++) {
		struct engine_order *order = &reduction->orders[i];
		struct session *session = comm->ranks[i].session;

		if (!order->timeline)
			continue;
		if (!session ||
		    timeline_file_has_reached(session, order->timeline,
					      order->value)) {
			order->timeline = 0;
			continue;
		}
		r = timeline_file_fd(session, false, &fd, err);
		if (r == 0)
			r = engine_add_timelines(&comm->broker->engine,
						 comm->id, i, fd, err);
	}
	return r;
}

static int submit_each(struct reduction *reduction, struct work *work,
		       struct error *err)
{
	const struct group *group = reduction->group;
	struct engine_rank_slots slots = {
		.n_ranks = group->comm->n_ranks,
		.inputs = reduction->inputs,
		.grads = group->grads.slots,
		.partial = group->partial.slots,
		.orders = reduction->orders,
	};
	struct job_device job = {
		.kind = JOB_DEVICE_REDUCE,
		.comm = group->comm->id,
		.plan = group->engine_plan,
		.flags = job_flags(reduction),
		.has_factor = reduction->has_factor,
		.is_sum_forced = !!(reduction->flags & REDUCE_FORCE_SUM),
		.factor = reduction->factor,
	};
	int r = give_timelines(reduction, err);

	if (r < 0)
		return r;
	return engine_submit_device(&work->broker->engine, &job, &slots,
				    on_reduced, work, err);
}

static int submit(struct reduction *reduction, struct error *err)
{
	struct group *group = reduction->group;
	struct work *work;
	int r;

	r = work_new(group, reduction->sequence, &work, err);
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
 * Returns enum pool_outcome. */
static int make_room(struct reduction *reduction, struct error *err)
{
	struct group *group = reduction->group;
	int r = POOL_OK;

	if (!group->comm->is_by_ranks &&
	    engine_check_room(&group->comm->broker->engine, err) < 0)
		r = POOL_FULL;
	else if (is_put_off(reduction))
		r = rank_memory_make(
			group->comm,
			group_size(group, group->plan.partial_size),
			&group->partial, err);
	if (r > 0 && !reduction->waits_since_ms)
		reduction->waits_since_ms = now_ms();
	if (r > 0)
		reduction->shortage = *err;
	return r;
}

/* False: it waits for memory or its turn, or the communicator has failed. */
static bool start_one(struct reduction *reduction)
{
	struct error err = ERROR_NULL;
	int r;

	if (!comm_worker_is_turn(reduction->group, reduction->turn))
		return false;
	r = make_room(reduction, &err);
	if (r == POOL_OK && !reduction->group->comm->is_by_ranks)
		r = submit(reduction, &err);
	if (r < 0)
		fail(reduction->group, &err);
	return r == 0;
}

/* The ranks do the work, in the order of the list: for the broker it is done
 * when it may begin. */
static void hand_to_ranks(struct comm *comm)
{
	struct reduction *reduction;

	while ((reduction = comm->first_reduction) &&
	       reduction->submitted == comm_all(comm) && start_one(reduction)) {
		note_submitted(reduction);
		count_work(reduction->group);
		finish(reduction);
	}
}

void reductions_progress(struct comm *comm)
{
	struct reduction *reduction = comm->first_reduction;
	uint32_t n_running = 0;

	if (comm->is_by_ranks) {
		hand_to_ranks(comm);
		catalog_commit(&comm->broker->catalog);
		return;
	}
	while (reduction && n_running < REDUCTION_MAX_RUNNING) {
		if (!reduction->is_running &&
		    (reduction->submitted != comm_all(comm) ||
		     !start_one(reduction)))
			break;
		n_running++;
		reduction = reduction->next;
	}
	catalog_commit(&comm->broker->catalog);
}

void reductions_free(struct comm *comm)
{
	struct group *group = comm->first_group;
	struct reduction *reduction;

	while ((reduction = comm->first_reduction)) {
		comm->first_reduction = reduction->next;
		release_inputs(reduction);
		free(reduction);
	}
	comm->last_reduction = NULL;
	for (; group; group = group->next) {
		for (uint32_t rank = 0; rank < comm->n_ranks; rank++) {
			if (!group->inputs[rank])
				continue;
			(void)slot_unpin(comm->broker, group->inputs[rank]);
			group->inputs[rank] = 0;
			comm->ranks[rank].n_inputs--;
		}
	}
}
