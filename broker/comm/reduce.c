#include "broker/comm/reduce.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/group.h"
#include "broker/comm/input.h"
#include "broker/session/session.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "broker/tensor/timeline_file.h"
#include "collective/divide.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* --- submitting ---------------------------------------------------------- */

/* Check that the input is the slot that this rank got for this group, so that a
 * rank can submit neither other memory nor the same input twice. */
static int check_input(const struct group *group, uint32_t rank,
		       const struct slot_ref *input, struct error *err)
{
	uint32_t slot = slot_find(group->comm->comms->store, input, err);
	char name[RANK_TEXT];

	if (!slot)
		return -ESTALE;
	if (slot == group->inputs[rank])
		return 0;
	comm_rank_name(group->comm, rank, name);
	return error_set(err, -EINVAL,
			 "the memory that %s reduces is not its input of '%s'; "
			 "get an input with fsdp_input(), and reduce it once",
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
			return error_wrap(err, r, "cannot reduce '%s'",
					  group->name);
	}
	return 0;
}

/* Check the timeline of the input. Only the worker uses one; the ranks' own
 * streams order their work already. */
static int check_order(const struct group *group, uint32_t rank,
		       const struct reduce_request *request, struct error *err)
{
	const struct session *session = group->comm->ranks[rank].session;

	if (!request->timeline || (comm_is_by_worker(group->comm) &&
				   session->holdings.timelines.pages &&
				   request->timeline < TIMELINES))
		return 0;
	return error_set(err, -EINVAL,
			 "cannot reduce '%s' after timeline %u: fsdp-worker "
			 "cannot wait for it",
			 group->name, request->timeline);
}

/* Check that the rank may begin a reduction that no other rank has begun. */
static int check_new(const struct group *group, uint32_t rank,
		     const struct reduce_request *request, struct error *err)
{
	const struct comm *comm = group->comm;
	char name[RANK_TEXT];

	comm_rank_name(comm, rank, name);
	if (comm->committing)
		return error_set(err, -EINVAL,
				 "%s reduces '%s', but other ranks commit step "
				 "%llu next; all must do the same in the same "
				 "order",
				 name, group->name,
				 (unsigned long long)comm->committing);
	if (calls_count(&comm->reductions) >= REDUCTION_MAX)
		return error_set(err, -EBUSY,
				 "%s is %d reductions ahead of others; wait "
				 "for one of them",
				 name, REDUCTION_MAX);
	return check_factors(group, request, err);
}

/* Returns the option in which the two differ, or NULL. */
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

/* Check that the rank's request matches the reduction that others began. */
static int check_next(const struct group *group, uint32_t rank,
		      const struct reduction *next,
		      const struct reduce_request *request, struct error *err)
{
	const struct comm *comm = group->comm;
	char mine[RANK_TEXT], theirs[RANK_TEXT];
	const char *difference;

	comm_rank_name(comm, rank, mine);
	comm_rank_name(comm, rank_first(next->call.made), theirs);
	if (next->call.group != group)
		return error_set(err, -EINVAL,
				 "%s reduces '%s', but the ranks' next "
				 "reduction is of '%s', which %s began; all "
				 "must reduce in the same order",
				 mine, group->name, next->call.group->name,
				 theirs);
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
		return error_nomem(err, "a reduction");
	reduction->call = (struct call){
		.group = group,
		.sequence = ++group->n_reductions,
		.turn = comm_worker_take_turn(group->comm),
		.since_ms = now_ms(),
	};
	reduction->flags = request->flags;
	reduction->has_factor = request->has_factor;
	reduction->factor = request->factor;
	calls_append(&group->comm->reductions, &reduction->call);
	*ret = reduction;
	return 0;
}

static int check_call(const struct group *group, uint32_t rank,
		      const struct reduce_request *request, struct error *err)
{
	int r;

	r = comm_check_not_committing(group->comm, rank, err);
	if (r < 0)
		return r;
	r = check_input(group, rank, &request->input, err);
	if (r < 0)
		return r;
	return check_order(group, rank, request, err);
}

/* Find the call that the rank makes next: one that others have made, or a new
 * one. */
static int find_next(struct group *group, uint32_t rank,
		     const struct reduce_request *request,
		     struct reduction **ret, struct error *err)
{
	struct call *next = calls_next(&group->comm->reductions, rank);
	int r;

	if (next) {
		*ret = reduction_of(next);
		return check_next(group, rank, *ret, request, err);
	}
	r = check_new(group, rank, request, err);
	if (r < 0)
		return r;
	return begin(group, request, ret, err);
}

/* If the input is not written yet, set `*ret`, and give the engine the rank's
 * timelines. This is done while the session exists, since the rank may leave
 * before the others have submitted their inputs. */
static int take_fence(const struct comm *comm, uint32_t rank,
		      const struct reduce_request *request,
		      struct engine_fence *ret, struct error *err)
{
	struct session *session = comm->ranks[rank].session;
	int fd, r;

	if (!request->timeline ||
	    timeline_file_has_reached(&session->holdings, request->timeline,
				      request->value))
		return 0;
	r = timeline_file_fd(&session->holdings, false, &fd, err);
	if (r < 0)
		return r;
	ret->timeline = request->timeline;
	ret->value = request->value;
	return engine_add_timelines(comm->comms->engine, comm->id, rank, fd,
				    err);
}

/* Submit the rank's input. The reduction takes over its pin. */
static void hand_in(struct reduction *reduction, uint32_t rank,
		    const struct engine_fence *fence)
{
	struct group *group = reduction->call.group;

	reduction->fences[rank] = *fence;
	reduction->inputs[rank] = group->inputs[rank];
	group->inputs[rank] = 0;
	call_note_made(&reduction->call, rank);
}

int reduction_submit(struct group *group, uint32_t rank,
		     const struct reduce_request *request,
		     uint64_t *ret_sequence, struct error *err)
{
	struct reduction *reduction = NULL;
	struct engine_fence fence = {0};
	int r;

	r = check_call(group, rank, request, err);
	if (r == 0)
		r = take_fence(group->comm, rank, request, &fence, err);
	if (r == 0)
		r = find_next(group, rank, request, &reduction, err);
	if (r < 0)
		return r;
	hand_in(reduction, rank, &fence);
	*ret_sequence = reduction->call.sequence;
	return 0;
}

/* --- waiting ------------------------------------------------------------- */

int reduction_look(const struct group *group, uint32_t rank, uint64_t sequence,
		   struct error *err)
{
	const struct call *call =
		calls_find(&group->comm->reductions, group, sequence);
	char name[RANK_TEXT];

	if (sequence && sequence <= group->n_reduced)
		return REDUCTION_DONE;
	if (call && (call->made & rank_bit(rank)))
		return REDUCTION_PENDING;
	comm_rank_name(group->comm, rank, name);
	return error_set(err, -EINVAL, "%s has begun no reduction %llu of '%s'",
			 name, (unsigned long long)sequence, group->name);
}

int reductions_check_commit(const struct comm *comm, uint32_t rank,
			    struct error *err)
{
	const struct call *first = comm->reductions.first;
	const struct call *next = calls_next(&comm->reductions, rank);
	char mine[RANK_TEXT], theirs[RANK_TEXT];

	comm_rank_name(comm, rank, mine);
	if (first && (first->made & rank_bit(rank)))
		return error_set(err, -EBUSY,
				 "gradients of '%s' that %s handed in are "
				 "being reduced; wait for them before the "
				 "commit",
				 first->group->name, mine);
	if (!next)
		return 0;
	comm_rank_name(comm, rank_first(next->made), theirs);
	return error_set(err, -EINVAL,
			 "%s commits, but the ranks' next step is to reduce "
			 "'%s', which %s began",
			 mine, next->group->name, theirs);
}

/* --- ends ---------------------------------------------------------------- */

void reduction_release_inputs(struct reduction *reduction)
{
	struct comm *comm = reduction->call.group->comm;

	for (uint32_t rank = 0; rank < comm->n_ranks; rank++) {
		if (!reduction->inputs[rank])
			continue;
		/* It was counted by input_add(). */
		assert(comm->ranks[rank].n_inputs > 0);
		(void)slot_unpin(comm->comms->store, reduction->inputs[rank]);
		comm->ranks[rank].n_inputs--;
	}
}

void reductions_free(struct comm *comm)
{
	struct call *call;

	while ((call = comm->reductions.first)) {
		calls_remove(&comm->reductions, call);
		reduction_release_inputs(reduction_of(call));
		free(reduction_of(call));
	}
	inputs_release(comm);
}
