#include "broker/comm/comm_commit.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/gather.h"
#include "broker/comm/group.h"
#include "broker/comm/reduce.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/point.h"
#include <errno.h>

static int check_step(const struct comm *comm, uint64_t step, struct error *err)
{
	if (step <= comm->step)
		return error_set(err, -EINVAL,
				 "step %llu is not above the last one that was "
				 "committed, %llu",
				 (unsigned long long)step,
				 (unsigned long long)comm->step);
	if (comm->committing && comm->committing != step)
		return error_set(err, -EINVAL,
				 "other ranks commit step %llu, not %llu",
				 (unsigned long long)comm->committing,
				 (unsigned long long)step);
	return 0;
}

static int check(const struct comm *comm, uint32_t rank, uint64_t step,
		 struct error *err)
{
	int r;

	r = comm_check_not_committing(comm, rank, err);
	if (r < 0)
		return r;
	r = check_step(comm, step, err);
	if (r < 0)
		return r;
	r = groups_check_commit(comm, rank, err);
	if (r < 0)
		return r;
	r = gathers_check_commit(comm, rank, err);
	if (r < 0)
		return r;
	return reductions_check_commit(comm, rank, err);
}

int comm_commit(struct comm *comm, uint32_t rank, uint64_t step,
		struct error *err)
{
	int r;

	r = check(comm, rank, step, err);
	if (r < 0)
		return r;
	if (!comm->committing)
		comm->committing_since_ms = now_ms();
	comm->committing = step;
	comm->ranks[rank].step = step;
	comm_wake(comm);
	return 0;
}

uint64_t comm_committed(const struct comm *comm)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].step)
			mask |= rank_bit(i);
	}
	return mask;
}

/* All ranks have committed: one transaction changes the step. */
static void complete_commit(struct comm *comm)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	struct comm_record *record = catalog_comm(catalog, comm->record);
	struct group *group = comm->first_group;
	uint64_t step = comm->committing;

	catalog_commit(catalog);
	point("comm.committing");
	for (; group; group = group->next) {
		if (!group->is_ready)
			continue;
		group_commit(group, step);
		point("comm.flipped");
	}
	catalog_set(catalog, record->step, step);
	catalog_commit(catalog);
	point("comm.committed");
	comm->step = step;
	comm->committing = 0;
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		comm->ranks[i].step = 0;
	comm->comms->n_commits++;
	gathers_on_commit(comm);
	comm_wake(comm);
}

void comm_commit_progress(struct comm *comm)
{
	if (comm->committing && comm_committed(comm) == comm_all(comm) &&
	    comm_worker_has_agreed(comm))
		complete_commit(comm);
}
