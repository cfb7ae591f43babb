#include "broker/comm/group_progress.h"
#include "broker/comm/group.h"
#include "broker/comm/run_record.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <string.h>

static bool is_any_held(const struct comm *comm, const uint32_t *slots)
{
	uint32_t i = 0;

	while (i < rank_memory_count(comm) &&
	       !slot_is_held(comm->comms->store, slots[i]))
		i++;
	return i < rank_memory_count(comm);
}

/* Take the kept shards. The side to be written is made again if a rank of an
 * earlier run might still write to it. */
static void take_shards(struct group *group)
{
	const struct comm *comm = group->comm;
	const struct group_record *record =
		catalog_group(&comm->comms->store->catalog, group->record);
	uint32_t next = !group->side;

	memcpy(group->shards[group->side].slots, record->slots[group->side],
	       sizeof(record->slots[0]));
	if (!group->is_fresh[next] && !is_any_held(comm, record->slots[next]))
		memcpy(group->shards[next].slots, record->slots[next],
		       sizeof(record->slots[0]));
}

static int make_shards(struct group *group, uint32_t side, struct error *err)
{
	struct rank_memory *shards = &group->shards[side];

	if (!group->is_fresh[side] && rank_memory_is_whole(group->comm, shards))
		return POOL_OK;
	group->is_fresh[side] = true;
	return rank_memory_make(group->comm,
				group_size(group, group->plan.shards_size),
				shards, err);
}

/* Make the memory of the group. Returns an enum pool_outcome; memory that was
 * made is kept for the next attempt. On devices `partial` is made now, since
 * the ranks get its location in the reply. */
static int make_memory(struct group *group, struct error *err)
{
	const struct plan *plan = &group->plan;
	struct comm *comm = group->comm;
	int r = POOL_OK;

	if (group->record)
		take_shards(group);
	for (uint32_t i = 0; i < 2 && r == POOL_OK; i++)
		r = make_shards(group, i, err);
	if (r == POOL_OK && plan->grads_size)
		r = rank_memory_make(comm, group_size(group, plan->grads_size),
				     &group->grads, err);
	if (r == POOL_OK && plan->partial_size && comm->is_on_devices)
		r = rank_memory_make(comm,
				     group_size(group, plan->partial_size),
				     &group->partial, err);
	return r;
}

static int record_new(struct group *group, struct error *err)
{
	struct group_record_options options = {
		.comm = group->comm->record,
		.side = group->side,
		.plan_hash = group->plan.hash,
	};
	int r;

	if (group->record)
		return 0;
	r = group_record_make(group->comm->comms, &group->spec, &options,
			      &group->record, err);
	if (r == 0)
		group->n_charged = 0; /* the record is charged from here on */
	return r;
}

/* Complete the registration of a group that has everything it needs. */
static void make_ready(struct group *group)
{
	struct comms *comms = group->comm->comms;

	for (uint32_t i = 0; i < 2; i++) {
		if (group->is_fresh[i])
			group_record_set_slots(comms, group->record, i,
					       group->shards[i].slots,
					       rank_memory_count(group->comm));
	}
	group->is_ready = true;
	group->index = group->comm->n_ready++;
	group->comm->n_registering--;
	run_record_note_group(group);
	catalog_commit(&comms->store->catalog);
	failpoint("group.stored");
	for (uint32_t i = 0; i < 2; i++) {
		struct rank_memory pinned = group->shards[i];

		if (group->is_fresh[i])
			rank_memory_unpin(group->comm, &pinned);
		group->is_fresh[i] = false;
	}
	comm_wake(group->comm);
}

static void progress(struct group *group)
{
	struct error err = ERROR_NULL;
	int r;

	r = make_memory(group, &err);
	if (r == POOL_WAIT)
		return;
	if (r == POOL_FULL) {
		group->shortage = err;
		return;
	}
	if (r == POOL_OK)
		r = record_new(group, &err);
	if (r == 0) {
		make_ready(group);
		return;
	}
	error_wrap(&err, r, "cannot register group '%s'", group->name);
	group_withdraw(group, &err);
}

void groups_progress(struct comm *comm)
{
	struct group *group = comm->first_group;

	for (; group && comm->n_registering; group = group->next) {
		if (group_is_registering(group) &&
		    group->registered == comm_all(comm))
			progress(group);
	}
	groups_free_told(comm);
}
