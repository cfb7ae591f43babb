/*
 * unshard, reshard, input, reduce, the two waits for such work, and memory for
 * ranks that do the work without the broker.
 *
 * These functions record the request of the rank and then reply; the resulting
 * work begins between transactions (comm_progress()). Only the memory of an
 * input is made at once, since the reply contains its location.
 *
 * A rank that releases unsharded parameters or an input does so just before one
 * of these requests, and does not ring.
 */
#include "broker/broker.h"
#include "broker/comm/comm.h"
#include "broker/comm/gather.h"
#include "broker/comm/gather_buffers.h"
#include "broker/comm/gather_late.h"
#include "broker/comm/group.h"
#include "broker/comm/input.h"
#include "broker/comm/reduce.h"
#include "broker/comm/reduce_late.h"
#include "broker/comm/run_record.h"
#include "broker/session/session.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/slot.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "collective/wire.h"
#include "proto/error.h"
#include <errno.h>

/* Find a group of the session that all ranks have registered. */
static int find_group(const struct verb_call *call, uint64_t id,
		      struct group **ret, uint32_t *ret_rank, struct error *err)
{
	int r;

	r = group_find(&call->broker->comms, call->session, id, ret, ret_rank,
		       err);
	if (r < 0 || (*ret)->is_ready)
		return r;
	return error_set(err, -EINVAL,
			 "group '%s' is not registered by all ranks yet",
			 (*ret)->name);
}

int verb_unshard(struct verb_call *call, struct error *err)
{
	struct group *group;
	uint32_t rank;
	int r;

	r = find_group(call, call->request->unshard.group, &group, &rank, err);
	if (r < 0)
		return r;
	/* The engine may not have the group's plan. */
	if (group->comm->direct & COMM_DIRECT_GATHER)
		return error_set(err, -EINVAL,
				 "cannot unshard '%s': the ranks of "
				 "communicator '%s' gather themselves",
				 group->name, group->comm->name);
	return gather_start(group, rank, &call->reply->work.sequence, err);
}

int verb_reshard(struct verb_call *call, struct error *err)
{
	const struct reshard_request *request = &call->request->reshard;
	struct group *group;
	uint32_t rank;
	int r;

	session_collect(call->session);
	r = find_group(call, request->group, &group, &rank, err);
	if (r < 0)
		return r;
	return gather_stop(group, rank, request->n_mesh, err);
}

/* --- inputs -------------------------------------------------------------- */

static int park_for(struct verb_call *call, const struct comm *comm,
		    int32_t timeout_ms)
{
	call->wait_name = comm->key;
	call->wait_ms = timeout_ms;
	return VERB_PARK_NAME;
}

static int find_credit(struct verb_call *call, const struct group *group,
		       uint32_t rank, struct error *err)
{
	int32_t timeout_ms = call->request->input.timeout_ms;
	struct error cause = ERROR_NULL;
	int r;

	if (group->comm->direct & COMM_DIRECT_REDUCE)
		return input_check_kept(group, rank, err);
	r = input_check(group, rank, &cause);
	if (r == INPUT_OK)
		return VERB_DONE;
	if (r == INPUT_WAIT && timeout_ms && !call->is_timed_out)
		return park_for(call, group->comm, timeout_ms);
	return error_set(err, cause.code, "%s", cause.msg);
}

/* Wait for memory if necessary. `r` is an enum pool_outcome or a negative
 * errno, and `cause` its error. */
static int await_room(struct verb_call *call, int r, int32_t timeout_ms,
		      const struct error *cause, struct error *err)
{
	call->wait_ms = timeout_ms;
	if (r == POOL_OK)
		return VERB_DONE;
	if (r == POOL_WAIT)
		return VERB_PARK_ROOM;
	if (r == POOL_FULL && timeout_ms && !call->is_timed_out)
		return VERB_PARK_ROOM;
	return error_set(err, r == POOL_FULL ? -ETIMEDOUT : r, "%s",
			 cause->msg);
}

static int make_input(struct verb_call *call, const struct group *group,
		      uint32_t rank, uint32_t *ret_slot, struct error *err)
{
	uint64_t size = group->plan.input_size;
	struct error cause = ERROR_NULL;
	int r;

	if (group->comm->is_on_devices)
		size += wire_reduce_tail(&group->plan);
	r = rank_memory_make_one(group->comm, rank, size, ret_slot, &cause);
	return await_room(call, r, call->request->input.timeout_ms, &cause,
			  err);
}

int verb_input(struct verb_call *call, struct error *err)
{
	struct group *group;
	uint32_t rank, slot;
	int r;

	session_collect(call->session);
	r = find_group(call, call->request->input.group, &group, &rank, err);
	if (r == 0)
		r = comm_check_not_committing(group->comm, rank, err);
	if (r == 0)
		r = find_credit(call, group, rank, err);
	if (r != VERB_DONE)
		return r;
	r = grant_check_room(&call->session->holdings, 1, err);
	if (r < 0)
		return r;
	r = make_input(call, group, rank, &slot, err);
	if (r != VERB_DONE)
		return r;
	if (group->comm->direct & COMM_DIRECT_REDUCE)
		input_keep(group->comm, rank, slot);
	else
		input_add(group, rank, slot);
	verb_reply_places(call, &slot, 1);
	return VERB_DONE;
}

int verb_input_end(struct verb_call *call, struct error *err)
{
	const struct input_end_request *request = &call->request->input_end;
	struct comm *comm;
	uint32_t rank, slot;
	int r;

	session_collect(call->session);
	r = comm_find(&call->broker->comms, call->session, request->comm, &comm,
		      &rank, err);
	if (r < 0)
		return r;
	slot = slot_find(&call->broker->store, &request->input, err);
	if (!slot)
		return -ESTALE;
	if (comm->direct & COMM_DIRECT_REDUCE)
		return input_end(comm, rank, slot, err);
	return error_set(err, -EINVAL,
			 "cannot give back an input of communicator '%s': it "
			 "ends with its reduction, so reduce it",
			 comm->name);
}

/* --- other memory of ranks that do the work ------------------------------ */

/* Find a group whose ranks do this work themselves (enum comm_direct), and
 * check that one more grant can be made. */
static int find_direct(struct verb_call *call, uint64_t id, uint32_t direct,
		       struct group **ret, struct error *err)
{
	uint32_t rank;
	int r;

	r = find_group(call, id, ret, &rank, err);
	if (r == 0)
		r = grant_check_room(&call->session->holdings, 1, err);
	if (r < 0 || (*ret)->comm->direct & direct)
		return r;
	return error_set(err, -EINVAL,
			 "the ranks of communicator '%s' do not %s themselves",
			 (*ret)->comm->name,
			 direct == COMM_DIRECT_GATHER ? "gather" : "reduce");
}

static int make_partial(struct verb_call *call, struct group *group,
			uint32_t *ret_slot, struct error *err)
{
	struct error cause = ERROR_NULL;
	int r;

	if (!group->plan.partial_size || group->plan.n_replicas == 1)
		return error_set(err, -EINVAL, "group '%s' has no partial sums",
				 group->name);
	r = rank_memory_make(group->comm,
			     group_size(group, group->plan.partial_size),
			     &group->partial, &cause);
	run_record_note_group(group);
	*ret_slot = group->partial.slots[0];
	return await_room(call, r, call->request->comm_place.timeout_ms, &cause,
			  err);
}

static int find_kept(struct verb_call *call, const struct group *group,
		     uint32_t *ret_slot, struct error *err)
{
	*ret_slot = slot_find(&call->broker->store,
			      &call->request->comm_place.input, err);
	if (!*ret_slot)
		return -ESTALE;
	if (input_is_kept(group->comm, *ret_slot))
		return VERB_DONE;
	return error_set(
		err, -ENOENT,
		"no rank of communicator '%s' has this tensor as an input",
		group->comm->name);
}

int verb_comm_place(struct verb_call *call, struct error *err)
{
	const struct comm_place_request *request = &call->request->comm_place;
	struct group *group;
	uint32_t slot;
	int r;

	r = find_direct(call, request->group, COMM_DIRECT_REDUCE, &group, err);
	if (r < 0)
		return r;
	r = request->is_input ? find_kept(call, group, &slot, err)
			      : make_partial(call, group, &slot, err);
	if (r == VERB_DONE)
		verb_reply_places(call, &slot, 1);
	return r;
}

int verb_gather_buffer(struct verb_call *call, struct error *err)
{
	const struct gather_buffer_request *request =
		&call->request->gather_buffer;
	struct error cause = ERROR_NULL;
	struct group *group;
	uint32_t slot;
	int r;

	r = find_direct(call, request->group, COMM_DIRECT_GATHER, &group, err);
	if (r < 0)
		return r;
	r = gather_buffer_make(group, request->buffer, request->version, &slot,
			       &cause);
	r = await_room(call, r, request->timeout_ms, &cause, err);
	if (r == -ETIMEDOUT)
		return error_wrap(err, r, "waits for memory for '%s'",
				  group->name);
	if (r == VERB_DONE)
		verb_reply_places(call, &slot, 1);
	return r;
}

int verb_reduce(struct verb_call *call, struct error *err)
{
	const struct reduce_request *request = &call->request->reduce;
	struct group *group;
	uint32_t rank;
	int r;

	r = find_group(call, request->group, &group, &rank, err);
	if (r < 0)
		return r;
	return reduction_submit(group, rank, request,
				&call->reply->work.sequence, err);
}

/* --- waiting ------------------------------------------------------------- */

/* Find the group whose work the rank waits for. A failed communicator is looked
 * up first, so that the rank gets the message of its failure. */
static int find_awaited(const struct verb_call *call, struct group **ret,
			uint32_t *ret_rank, struct error *err)
{
	const struct wait_request *request = &call->request->wait;
	struct comm *comm;
	int r;

	r = comm_find(&call->broker->comms, call->session, request->comm, &comm,
		      ret_rank, err);
	if (r < 0)
		return r;
	r = find_group(call, request->group, ret, ret_rank, err);
	if (r < 0)
		return r;
	if ((*ret)->comm == comm)
		return 0;
	return error_set(err, -EINVAL,
			 "group '%s' is of communicator '%s', not of '%s'",
			 (*ret)->name, (*ret)->comm->name, comm->name);
}

/* Returns whether a request whose work is not done may wait. */
static bool may_wait(const struct verb_call *call)
{
	return call->request->wait.timeout_ms && !call->is_timed_out;
}

static int keep_waiting(struct verb_call *call, const struct comm *comm)
{
	return park_for(call, comm, call->request->wait.timeout_ms);
}

int verb_wait_unshard(struct verb_call *call, struct error *err)
{
	struct gather *gather;
	struct group *group;
	uint32_t rank, slot;
	int r;

	r = find_awaited(call, &group, &rank, err);
	if (r == 0)
		r = gather_find(group, rank, call->request->wait.sequence,
				&gather, err);
	if (r < 0)
		return r;
	if (gather->state != GATHER_DONE)
		return may_wait(call) ? keep_waiting(call, group->comm)
				      : gather_refuse_wait(gather, err);
	r = grant_check_room(&call->session->holdings, 1, err);
	if (r < 0)
		return r;
	slot = rank_memory_slot(group->comm, &gather->full, rank);
	verb_reply_places(call, &slot, 1);
	return VERB_DONE;
}

int verb_wait_reduce(struct verb_call *call, struct error *err)
{
	uint64_t sequence = call->request->wait.sequence;
	struct group *group;
	uint32_t rank;
	int r;

	session_collect(call->session);
	r = find_awaited(call, &group, &rank, err);
	if (r < 0)
		return r;
	r = reduction_look(group, rank, sequence, err);
	if (r != REDUCTION_PENDING)
		return r;
	return may_wait(call) ? keep_waiting(call, group->comm)
			      : reduction_refuse_wait(group, sequence, err);
}
