#include "broker/comm/comm_commit.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/gather.h"
#include "broker/comm/group.h"
#include "broker/comm/reduce.h"
#include "broker/comm/run_record.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>

uint64_t comm_committed(const struct comm *comm)
{
	uint64_t mask = 0;

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].step)
			mask |= rank_bit(i);
	}
	return mask;
}

static int check_step(const struct comm *comm, uint64_t step, struct error *err)
{
	if (step <= comm->step)
		return error_set(err, -EINVAL,
				 "step %llu must be greater than the last "
				 "committed step, %llu",
				 (unsigned long long)step,
				 (unsigned long long)comm->step);
	if (comm->committing && comm->committing != step)
		return error_set(err, -EINVAL,
				 "other ranks commit step %llu, not %llu",
				 (unsigned long long)comm->committing,
				 (unsigned long long)step);
	return 0;
}

/* Check that all ranks have begun the same number of gathers, which the broker
 * does not see. */
static int check_gathers(const struct comm *comm, uint32_t rank,
			 uint64_t n_gathers, struct error *err)
{
	uint64_t committed = comm_committed(comm);
	char mine[RANK_TEXT], theirs[RANK_TEXT];
	uint32_t other;

	if (!committed)
		return 0;
	other = rank_first(committed);
	if (comm->ranks[other].n_gathers == n_gathers)
		return 0;
	comm_rank_name(comm, rank, mine);
	comm_rank_name(comm, other, theirs);
	return error_set(err, -EINVAL,
			 "%s commits after %llu unshards, but %s after %llu; "
			 "all must do the same in the same order",
			 mine, (unsigned long long)n_gathers, theirs,
			 (unsigned long long)comm->ranks[other].n_gathers);
}

static int check(const struct comm *comm, uint32_t rank,
		 const struct commit_request *request, struct error *err)
{
	int r;

	r = comm_check_not_committing(comm, rank, err);
	if (r < 0)
		return r;
	r = check_step(comm, request->step, err);
	if (r < 0)
		return r;
	r = check_gathers(comm, rank, request->n_gathers, err);
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

int comm_commit(struct comm *comm, uint32_t rank,
		const struct commit_request *request, struct error *err)
{
	int r;

	r = check(comm, rank, request, err);
	if (r < 0)
		return r;
	if (!comm->committing)
		comm->committing_since_ms = now_ms();
	comm->committing = request->step;
	comm->ranks[rank].step = request->step;
	comm->ranks[rank].n_gathers = request->n_gathers;
	run_record_note_rank(comm, rank);
	comm_wake(comm);
	return 0;
}

/* Complete the commit of all ranks. One transaction changes the step. */
static void complete_commit(struct comm *comm)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	struct comm_record *record = catalog_comm(catalog, comm->record);
	struct group *group = comm->first_group;
	uint64_t step = comm->committing;

	assert(step > comm->step);
	catalog_commit(catalog);
	failpoint("comm.committing");
	for (; group; group = group->next) {
		if (!group->is_ready)
			continue;
		group_commit(group, step);
		failpoint("comm.flipped");
	}
	catalog_set(catalog, record->step, step);
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		comm->ranks[i].step = 0;
		run_record_note_rank(comm, i);
	}
	catalog_commit(catalog);
	failpoint("comm.committed");
	comm->step = step;
	comm->committing = 0;
	comm->comms->n_commits++;
	gathers_on_commit(comm);
	comm_wake(comm);
}

void comm_commit_progress(struct comm *comm)
{
	if (comm->committing && comm_committed(comm) == comm_all(comm) &&
	    comm_worker_has_compared(comm))
		complete_commit(comm);
}
