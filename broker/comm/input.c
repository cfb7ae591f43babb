#include "broker/comm/input.h"
#include "broker/comm/group.h"
#include "broker/comm/run_record.h"
#include "broker/tensor/slot_state.h"
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

/* Returns whether the group has gradients. Parameters with gradients may still
 * have no elements. */
static bool has_gradients(const struct group *group)
{
	const struct plan *plan = &group->plan;
	uint32_t i = 0;

	while (i < plan->n_entries && !plan->entries[i].reduce_dtype)
		i++;
	return i < plan->n_entries;
}

static int check_gradients(const struct group *group, struct error *err)
{
	if (has_gradients(group))
		return 0;
	return error_set(err, -EINVAL,
			 "group '%s' has no gradients: all of its parameters "
			 "are frozen",
			 group->name);
}

int input_check(const struct group *group, uint32_t rank, struct error *err)
{
	const struct comm *comm = group->comm;
	char name[RANK_TEXT];
	int r = check_gradients(group, err);

	if (r < 0)
		return r;
	comm_rank_name(comm, rank, name);
	if (group->inputs[rank])
		return error_set(err, -EBUSY,
				 "%s has an input of '%s' already; reduce it "
				 "first",
				 name, group->name);
	if (comm->ranks[rank].n_inputs < comm->n_inputs)
		return INPUT_OK;
	/* Without this check, the rank would wait for itself. */
	if (count_filled(comm, rank) >= comm->n_inputs)
		return error_set(err, -EBUSY,
				 "%s has %u inputs that it has not reduced, "
				 "which is its limit; reduce one first, or "
				 "join with a larger n_inputs",
				 name, comm->n_inputs);
	error_set(err, -ETIMEDOUT,
		  "all inputs that %s may have (%u) are still being reduced; "
		  "wait for a reduction",
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
	assert(comm->ranks[rank].n_inputs > 0);
	(void)slot_unpin(comm->comms->store, group->inputs[rank]);
	group->inputs[rank] = 0;
	comm->ranks[rank].n_inputs--;
}

/* --- where the ranks reduce without the broker --------------------------- */

int input_check_kept(const struct group *group, uint32_t rank,
		     struct error *err)
{
	const struct comm *comm = group->comm;
	char name[RANK_TEXT];
	int r = check_gradients(group, err);

	if (r < 0 || run_record_of(comm)->ranks[rank].n_inputs < comm->n_inputs)
		return r;
	comm_rank_name(comm, rank, name);
	return error_set(
		err, -EBUSY,
		"%s has %u inputs, which is its limit; give one back first",
		name, comm->n_inputs);
}

/* Returns the entry of the slot among the rank's inputs, or NULL. */
static uint32_t *find_kept(struct run_rank *member, uint32_t slot)
{
	for (uint32_t i = 0; i < member->n_inputs; i++) {
		if (member->inputs[i] == slot)
			return &member->inputs[i];
	}
	return NULL;
}

void input_keep(struct comm *comm, uint32_t rank, uint32_t slot)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	struct run_rank *member = &run_record_of(comm)->ranks[rank];

	assert(member->n_inputs < BOARD_MAX_AHEAD);
	catalog_set(catalog, member->inputs[member->n_inputs], slot);
	catalog_set(catalog, member->n_inputs, member->n_inputs + 1);
}

bool input_is_kept(const struct comm *comm, uint32_t slot)
{
	uint32_t rank = 0;

	while (rank < comm->n_ranks &&
	       !find_kept(&run_record_of(comm)->ranks[rank], slot))
		rank++;
	return rank < comm->n_ranks;
}

/* Remove the last input of the rank, and unpin it. */
static void release_last(struct comm *comm, struct run_rank *member)
{
	assert(member->n_inputs > 0);
	catalog_set(&comm->comms->store->catalog, member->n_inputs,
		    member->n_inputs - 1);
	(void)slot_unpin(comm->comms->store, member->inputs[member->n_inputs]);
}

int input_end(struct comm *comm, uint32_t rank, uint32_t slot,
	      struct error *err)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	struct run_rank *member = &run_record_of(comm)->ranks[rank];
	uint32_t *place = find_kept(member, slot);
	char name[RANK_TEXT];

	if (!place)
		return error_set(err, -ENOENT,
				 "the tensor is not an input of %s",
				 comm_rank_name(comm, rank, name));
	catalog_set(catalog, *place, member->inputs[member->n_inputs - 1]);
	catalog_set(catalog, member->inputs[member->n_inputs - 1], slot);
	release_last(comm, member);
	return 0;
}

/* --- the end ------------------------------------------------------------- */

void inputs_release(struct comm *comm)
{
	struct group *group = comm->first_group;

	for (; group; group = group->next) {
		for (uint32_t rank = 0; rank < comm->n_ranks; rank++)
			release(group, rank);
	}
	for (uint32_t rank = 0; comm->run && rank < comm->n_ranks; rank++) {
		struct run_rank *member = &run_record_of(comm)->ranks[rank];

		while (member->n_inputs > 0)
			release_last(comm, member);
	}
}
