#include "client/rank/direct.h"
#include "client/rank/comm.h"
#include "collective/plan.h"
#include <errno.h>

bool direct_is_group(const struct fsdp_group *group)
{
	return group->is_in_place && group->comm->verdict;
}

int direct_unshard(struct fsdp_group *group, struct error *err)
{
	int r;

	if (group->open)
		return 0;
	if (!group->step)
		return error_set(err, -ENODATA,
				 "nothing of group '%s' was committed yet: "
				 "write the shards and commit a step first",
				 group->name);
	r = comm_check_run(group->comm, err);
	if (r < 0)
		return r;
	group->open = ++group->n_posted;
	return 0;
}

int direct_wait_unshard(struct fsdp_group *group, uint64_t sequence,
			struct error *err)
{
	int r = group_check_open(group, sequence, err);

	if (r == 0)
		r = comm_check_run(group->comm, err);
	if (r == 0)
		group->whole = sequence;
	return r;
}

/* A reshard to a smaller mesh needs no copy, since all shards are mapped
 * here. */
int direct_reshard(struct fsdp_group *group, uint32_t n_mesh, struct error *err)
{
	const struct plan plan = {.n_shards = group->comm->n_shards};
	int r = n_mesh ? plan_check_mesh(&plan, n_mesh, err) : 0;

	if (r < 0)
		return error_wrap(err, r, "reshard '%s'", group->name);
	group->open = 0;
	return 0;
}

int direct_check_commit(const struct fsdp_comm *comm, struct error *err)
{
	const struct fsdp_group *group = comm->groups;

	while (group && !(group->open && direct_is_group(group)))
		group = group->next;
	if (!group)
		return 0;
	return error_set(err, -EBUSY,
			 "this rank has '%s' unsharded; reshard it before the "
			 "commit",
			 group->name);
}
