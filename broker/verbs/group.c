/*
 * group: a rank registers parameters, and is told where they lie.
 */
#include "broker/group.h"
#include "broker/grant.h"
#include "broker/storage.h"
#include "broker/verbs.h"
#include "proto/error.h"
#include <errno.h>

/* Offsets of one parameter, for one rank, in memory that all ranks share. */
static void fill_entry(const struct plan *plan, const struct plan_entry *from,
		       uint32_t rank, struct group_entry *ret)
{
	uint64_t replica = rank / plan->n_shards;
	uint64_t shard = rank % plan->n_shards;
	uint64_t shards = replica * plan->shards_size + from->shard_offset;

	*ret = (struct group_entry){
		.full_dtype = from->full_dtype,
		.shard_dim = from->shard.dim,
		.shard_size = shard_size_of(&from->shard, (uint32_t)shard),
		.shard_offset = shards + shard * from->shard_stride,
		.full_offset = replica * plan->full_size + from->full_offset,
		.input_offset = from->input_offset,
	};
	/* Then what an unshard gives are the shards themselves. */
	if (plan->is_in_place)
		ret->full_offset = shards;
	if (from->reduce_dtype)
		ret->grad_offset = replica * plan->grads_size +
				   from->grad_offset +
				   shard * from->grad_stride;
}

static int reply(struct verb_call *call, struct group *group, uint32_t rank,
		 struct error *err)
{
	const struct plan *plan = &group->plan;
	struct group_reply *ret = &call->reply->group;
	const uint32_t slots[] = {group->shards[0], group->shards[1],
				  group->grads};
	struct group_entry *entries;
	int r;

	entries = verb_alloc(call, plan->n_entries * sizeof(*entries));
	if (!entries)
		return error_set(err, -ENOMEM, "no memory for the entries");
	r = grant_check_room(call->session, 3, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < plan->n_entries; i++)
		fill_entry(plan, &plan->entries[i], rank, &entries[i]);
	ret->group = group->id;
	ret->hash = plan->hash;
	ret->step = group->step;
	ret->side = group->side;
	ret->entries = entries;
	ret->n_entries = plan->n_entries;
	ret->n_places = group->grads ? 3 : 2;
	storage_grant(call, slots, ret->n_places, ret->places);
	group->answered |= UINT64_C(1) << rank;
	return VERB_DONE;
}

int verb_group(struct verb_call *call, struct error *err)
{
	const struct group_request *request = &call->request->group;
	struct group *group;
	struct comm *comm;
	uint32_t rank;
	int r;

	r = comm_find(call->session, request->comm, &comm, &rank, err);
	if (r == 0)
		r = group_register(comm, rank, request, &group, err);
	if (r < 0)
		return r;
	if (r == GROUP_READY)
		return reply(call, group, rank, err);
	call->wait_name = comm->key;
	call->wait_ms = -1; /* the communicator's own time-out */
	return VERB_PARK_NAME;
}
