/*
 * group: registers the parameters of a rank and returns their locations.
 */
#include "broker/comm/group.h"
#include "broker/broker.h"
#include "broker/comm/group_register.h"
#include "broker/comm/run_record.h"
#include "broker/session/session.h"
#include "broker/tensor/grant.h"
#include "broker/verbs/places.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"

/* Fill in the offsets of one parameter in a rank's own memory. */
static void fill_own(const struct plan_entry *from, uint32_t shard,
		     struct group_entry *ret)
{
	*ret = (struct group_entry){
		.full_dtype = from->full_dtype,
		.input_dtype = from->input_dtype,
		.shard_dim = from->shard.dim,
		.shard_size = shard_size_of(&from->shard, shard),
		.shard_offset = from->shard_offset,
		.full_offset = from->full_offset,
		.input_offset = from->input_offset,
		.grad_offset = from->grad_offset,
	};
}

/* Fill in the offsets of one parameter for one rank, in memory that all ranks
 * share, or on devices in the rank's own memory. */
static void fill_entry(const struct plan *plan, const struct plan_entry *from,
		       uint32_t rank, struct group_entry *ret)
{
	uint64_t replica = rank / plan->n_shards;
	uint64_t shard = rank % plan->n_shards;
	uint64_t shards = replica * plan->shards_size + from->shard_offset;

	if (plan->policy.is_per_rank) {
		fill_own(from, (uint32_t)shard, ret);
		return;
	}
	*ret = (struct group_entry){
		.full_dtype = from->full_dtype,
		.input_dtype = from->input_dtype,
		.shard_dim = from->shard.dim,
		.shard_size = shard_size_of(&from->shard, (uint32_t)shard),
		.shard_offset = shards + shard * from->shard_stride,
		.full_offset = replica * plan->full_size + from->full_offset,
		.input_offset = from->input_offset,
	};
	/* The unsharded parameters are the shards themselves. */
	if (plan->is_in_place)
		ret->full_offset = shards;
	if (from->reduce_dtype)
		ret->grad_offset = replica * plan->grads_size +
				   from->grad_offset +
				   shard * from->grad_stride;
}

/* Returns the number of locations in the reply. Partial sums are internal, so
 * their location is only for ranks that do the worker's work. */
static uint32_t count_places(const struct group *group, const uint32_t *slots)
{
	if (!slots[2])
		return 2;
	return group->comm->is_by_ranks && slots[3] ? 4 : 3;
}

/* Returns whether the ranks may unshard the group without the broker. They may
 * not with the FSDP1 limiter, which counts every unshard. */
static bool is_in_place(const struct group *group)
{
	return group->plan.is_in_place && !group->comm->is_on_devices &&
	       group->comm->asked.limiter != COMM_LIMITER_FSDP1;
}

static int reply(struct verb_call *call, struct group *group, uint32_t rank,
		 struct error *err)
{
	const struct plan *plan = &group->plan;
	struct group_reply *ret = &call->reply->group;
	const struct rank_memory *memory[] = {&group->shards[0],
					      &group->shards[1], &group->grads,
					      &group->partial};
	uint32_t slots[GROUP_REPLY_PLACES];
	uint32_t world = group->comm->ranks[rank].rank;
	struct group_entry *entries;
	int r;

	entries = verb_scratch(call, plan->n_entries * sizeof(*entries));
	if (!entries)
		return error_nomem(err, "the entries");
	r = grant_check_room(&call->session->holdings, GROUP_REPLY_PLACES, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < GROUP_REPLY_PLACES; i++)
		slots[i] = rank_memory_slot(group->comm, memory[i], rank);
	for (uint32_t i = 0; i < plan->n_entries; i++)
		fill_entry(plan, &plan->entries[i], world, &entries[i]);
	ret->group = group->id;
	ret->hash = plan->hash;
	ret->step = group->step;
	ret->side = group->side;
	ret->is_in_place = is_in_place(group);
	ret->index = group->index;
	ret->entries = entries;
	ret->n_entries = plan->n_entries;
	ret->n_places = count_places(group, slots);
	verb_grant_places(call, slots, ret->n_places, ret->places);
	group->answered |= UINT64_C(1) << rank;
	run_record_note_group(group);
	return VERB_DONE;
}

int verb_group(struct verb_call *call, struct error *err)
{
	const struct group_request *request = &call->request->group;
	struct group *group;
	struct comm *comm;
	uint32_t rank;
	int r;

	r = comm_find(&call->broker->comms, call->session, request->comm, &comm,
		      &rank, err);
	if (r == 0)
		r = group_register(comm, rank, request, &group, err);
	if (r < 0)
		return r;
	if (r == GROUP_READY)
		return reply(call, group, rank, err);
	call->wait_name = comm->key;
	call->wait_ms = -1; /* the communicator's time-out applies */
	return VERB_PARK_NAME;
}
