#include "broker/comm/comm_progress.h"
#include "broker/comm/comm_commit.h"
#include "broker/comm/comm_late.h"
#include "broker/comm/comm_run.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/gather.h"
#include "broker/comm/gather_buffers.h"
#include "broker/comm/gather_progress.h"
#include "broker/comm/group.h"
#include "broker/comm/group_progress.h"
#include "broker/comm/reduce.h"
#include "broker/comm/reduce_progress.h"
#include "broker/tensor/store.h"

/*
 * Returns whether the remaining ranks have requested something that needs all
 * ranks. A rank that leaves does not make the run fail at once, because the
 * others may only have results to fetch and memory to release before they leave
 * as well, which needs no other rank.
 */
static bool needs_all(const struct comm *comm, uint64_t left)
{
	const struct gather *gather = gathers_first(comm);
	const struct call *call = comm->reductions.first;

	if (comm->committing || comm->n_registering)
		return true;
	for (; gather; gather = gather_next(gather)) {
		if (gather->state == GATHER_LIMITED ||
		    (left & ~gather->call.made))
			return true;
	}
	for (; call; call = call->next) {
		if (left & ~call->made)
			return true;
	}
	return false;
}

static void release(struct comm *comm)
{
	comm_worker_forget(comm);
	gathers_free(comm);
	gather_buffers_free(comm);
	reductions_free(comm);
	groups_end(comm);
}

static void advance(struct comm *comm)
{
	uint64_t left = comm_left(comm);

	if (left && needs_all(comm, left)) {
		comm_fail_by(comm, rank_first(left), "left");
		return;
	}
	groups_progress(comm);
	if (comm->state == COMM_RUNNING)
		gathers_progress(comm);
	if (comm->state == COMM_RUNNING)
		reductions_progress(comm);
	if (comm->state == COMM_RUNNING)
		comm_commit_progress(comm);
}

/* Run a round for one communicator, which may free it. */
static void progress(struct comm *comm)
{
	struct catalog *catalog = &comm->comms->store->catalog;

	comm->wants_progress = false;
	if (comm_is_over(comm)) {
		comm_free(comm);
		catalog_commit(catalog);
		return;
	}
	if (comm->state == COMM_JOINING && comm_has_all(comm) &&
	    !comm->is_at_worker)
		comm_worker_open(comm);
	if (comm->state == COMM_RUNNING)
		advance(comm);
	if (comm->state == COMM_FAILED)
		release(comm);
	comm_late_update(comm);
	catalog_commit(catalog);
}

static bool wants_room(const struct comm *comm)
{
	return comm->state == COMM_RUNNING &&
	       (comm->n_registering || comm->gathers.first ||
		comm->reductions.first);
}

void comms_on_room(struct comms *comms)
{
	if (!comms->first)
		return;
	comms->is_room_new = true;
	loop_defer(&comms->store->base->loop, &comms->progress);
}

bool comms_on_idle(struct comms *comms)
{
	bool is_room_new = comms->is_room_new;
	struct comm *comm, *next;

	comms->is_room_new = false;
	comms->progress.is_wanted = false;
	for (comm = comms->first; comm; comm = next) {
		next = comm->next;
		if (comm->wants_progress || (is_room_new && wants_room(comm)))
			progress(comm);
	}
	return comms->progress.is_wanted;
}
