#include "broker/comm/full_memory.h"
#include "broker/comm/gather.h"
#include "broker/comm/group.h"
#include "broker/tensor/store.h"
#include "collective/wire.h"
#include <stdlib.h>

/* Device memory of former unsharded parameters, kept pinned for reuse. */
struct full_aside {
	struct rank_memory memory;
	uint64_t size; /* bytes of each slot */
	struct full_aside *next;
};

uint64_t full_memory_size(const struct group *group)
{
	const struct plan *plan = &group->plan;

	if (plan->is_in_place)
		return 0;
	if (group->comm->is_on_devices)
		return plan->full_size + wire_gather_tail(plan).size;
	return plan->full_size * plan->n_replicas;
}

/* Keep the memory for reuse. If the ranks do the work themselves, their streams
 * order the accesses to memory that was unsharded before, so it can be reused
 * at once, without waiting for them. Returns false if that is not possible
 * here. */
static bool put_aside(const struct gather *gather)
{
	struct comm *comm = gather->call.group->comm;
	struct full_aside *aside;

	if (!comm->is_by_ranks || !rank_memory_is_whole(comm, &gather->full))
		return false;
	aside = malloc(sizeof(*aside));
	if (!aside)
		return false;
	*aside = (struct full_aside){
		.memory = gather->full,
		.size = full_memory_size(gather->call.group),
		.next = comm->first_aside,
	};
	comm->first_aside = aside;
	return true;
}

/* Take kept memory that fits and is at most twice too large. Returns false if
 * there is none. */
static bool take_aside(struct gather *gather)
{
	struct comm *comm = gather->call.group->comm;
	uint64_t size = full_memory_size(gather->call.group);
	struct full_aside **at = &comm->first_aside, *aside;

	while (*at && ((*at)->size < size || (*at)->size / 2 > size))
		at = &(*at)->next;
	aside = *at;
	if (!aside)
		return false;
	*at = aside->next;
	gather->full = aside->memory;
	free(aside);
	return true;
}

static bool drop_aside(struct comm *comm)
{
	struct full_aside *aside;
	bool is_dropped = comm->first_aside;

	while ((aside = comm->first_aside)) {
		comm->first_aside = aside->next;
		rank_memory_unpin(comm, &aside->memory);
		free(aside);
	}
	return is_dropped;
}

void full_memory_release(struct gather *gather)
{
	struct group *group = gather->call.group;
	struct comm *comm = group->comm;
	bool is_kept = gather->n_mesh && !group->plan.is_in_place &&
		       gather->state == GATHER_DONE &&
		       !rank_memory_is_whole(comm, &group->kept_full);

	if (is_kept)
		group->kept_full = gather->full;
	else if (!put_aside(gather))
		rank_memory_unpin(comm, &gather->full);
	gather->full = (struct rank_memory){.slots = {0}};
}

static bool drop_kept(struct group *group)
{
	if (!rank_memory_is_whole(group->comm, &group->kept_full))
		return false;
	rank_memory_unpin(group->comm, &group->kept_full);
	return true;
}

bool full_memory_drop_kept(struct comm *comm)
{
	struct group *group = comm->first_group;
	bool is_dropped = false;

	for (; group; group = group->next)
		is_dropped |= drop_kept(group);
	return is_dropped;
}

bool full_memory_drop(struct comm *comm)
{
	bool is_dropped = drop_aside(comm);

	return full_memory_drop_kept(comm) || is_dropped;
}

int full_memory_make(struct gather *gather, struct error *err)
{
	struct comm *comm = gather->call.group->comm;
	uint64_t size = full_memory_size(gather->call.group);
	int r;

	if (take_aside(gather))
		return POOL_OK;
	r = rank_memory_make(comm, size, &gather->full, err);
	if (r == POOL_FULL && full_memory_drop(comm))
		r = rank_memory_make(comm, size, &gather->full, err);
	return r;
}
