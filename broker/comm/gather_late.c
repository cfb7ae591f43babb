/*
 * What a gather waits for, and which rank is late: the messages and the times.
 */
#include "broker/broker.h"
#include "broker/comm/gather.h"
#include "broker/comm/group.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

/* --- messages ------------------------------------------------------------ */

/* The gather that keeps the limiter from admitting this one. With the FSDP1
 * limiter it is the one whose event was taken from the queue, otherwise the
 * oldest that is counted. */
static const struct gather *find_blocker(const struct gather *gather)
{
	const struct comm *comm = gather->group->comm;
	uint64_t ticket = limiter_waited_for(comm->limiter, gather->ticket);
	const struct gather *at = comm->first_gather;

	for (; at; at = at->next) {
		if (ticket ? at->ticket == ticket
			   : at->state != GATHER_LIMITED &&
				     !at->group->plan.policy.stays_unsharded)
			return at;
	}
	return NULL;
}

/* The cause of the wait: "it ..." */
static int describe_wait(const struct gather *gather, struct error *ret)
{
	const struct comm *comm = gather->group->comm;
	const struct gather *blocker;
	char missing[RANK_TEXT];

	switch (gather->state) {
	case GATHER_LIMITED:
		blocker = find_blocker(gather);
		if (!blocker)
			break;
		comm_name_missing(comm, blocker->ended, missing,
				  sizeof(missing));
		return error_set(ret, -ETIMEDOUT,
				 "waits for the limiter until '%s' is "
				 "resharded, which %s has not done",
				 blocker->group->name, missing);
	case GATHER_WANTS_ROOM:
		return error_set(ret, -ETIMEDOUT, "waits for memory: %s",
				 gather->shortage.code ? gather->shortage.msg
						       : "it is being made");
	case GATHER_RUNNING:
	case GATHER_DONE:
		return error_set(ret, -ETIMEDOUT, "is being gathered");
	}
	return error_set(ret, -ETIMEDOUT, "waits for the limiter");
}

int gather_refuse_wait(const struct gather *gather, struct error *err)
{
	struct error wait = ERROR_NULL;
	int r = describe_wait(gather, &wait);

	return error_set(err, r, "'%s' is not whole yet: it %s",
			 gather->group->name, wait.msg);
}

/* --- lateness ------------------------------------------------------------ */

struct late {
	const struct gather *gather; /* NULL: no gather waits */
	uint64_t since_ms;
	/* It waits for the limiter or for memory; otherwise it was
	 * not started. */
	bool is_waiting;
};

static void note_late(struct late *late, const struct gather *gather,
		      uint64_t since_ms, bool is_waiting)
{
	if (late->gather && late->since_ms <= since_ms)
		return;
	*late = (struct late){gather, since_ms, is_waiting};
}

/* For each rank only the first gather that it has not started counts: the rank
 * cannot be expected to start later ones yet. */
static struct late find_late(const struct comm *comm)
{
	const struct gather *gather = comm->first_gather;
	struct late late = {0};
	uint64_t behind = 0;

	for (; gather; gather = gather->next) {
		if (comm_all(comm) & ~gather->started & ~behind)
			note_late(&late, gather, gather->since_ms, false);
		behind |= ~gather->started;
		if (gather->state == GATHER_LIMITED ||
		    gather->state == GATHER_WANTS_ROOM)
			note_late(&late, gather, gather->waits_since_ms, true);
	}
	return late;
}

uint64_t gathers_deadline(const struct comm *comm)
{
	struct late late = find_late(comm);

	if (!late.gather)
		return UINT64_MAX;
	return late.since_ms + (uint64_t)comm->timeout_ms;
}

void gathers_describe_late(const struct comm *comm, struct error *ret)
{
	struct late late = find_late(comm);
	struct error wait = ERROR_NULL;
	char missing[RANK_TEXT];

	assert(late.gather);
	if (late.is_waiting) {
		describe_wait(late.gather, &wait);
		error_set(ret, -ECONNABORTED,
			  "group '%s' was not whole within %d ms: it %s",
			  late.gather->group->name, comm->timeout_ms, wait.msg);
		return;
	}
	comm_name_missing(comm, late.gather->started, missing, sizeof(missing));
	error_set(ret, -ECONNABORTED, "%s has not unsharded '%s' within %d ms",
		  missing, late.gather->group->name, comm->timeout_ms);
}
