#include "broker/comm/input.h"
#include "broker/comm/group.h"
#include "broker/tensor/slot.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

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

static void release(struct group *group, uint32_t rank)
{
	struct comm *comm = group->comm;

	if (!group->inputs[rank])
		return;
	(void)slot_unpin(comm->comms->store, group->inputs[rank]);
	group->inputs[rank] = 0;
	comm->ranks[rank].n_inputs--;
}

void inputs_release(struct comm *comm)
{
	struct group *group = comm->first_group;

	for (; group; group = group->next) {
		for (uint32_t rank = 0; rank < comm->n_ranks; rank++)
			release(group, rank);
	}
}
