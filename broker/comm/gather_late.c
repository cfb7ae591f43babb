#include "broker/comm/gather_late.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/gather.h"
#include "broker/comm/group.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

/* --- messages ------------------------------------------------------------ */

/* Returns the gather that prevents the limiter from admitting this one. With
 * the FSDP1 limiter it is the one whose event was taken from the queue,
 * otherwise the oldest that is counted. */
static const struct gather *find_blocker(const struct gather *gather)
{
	const struct comm *comm = gather->call.group->comm;
	uint64_t ticket = limiter_waited_for(comm->limiter, gather->ticket);
	const struct gather *at = gathers_first(comm);

	for (; at; at = gather_next(at)) {
		if (ticket ? at->ticket == ticket
			   : at->state != GATHER_LIMITED &&
				     !at->call.group->plan.policy
					      .stays_unsharded)
			return at;
	}
	return NULL;
}

/* Describe why it waits, as the rest of a sentence that begins with "it". */
static int describe_wait(const struct gather *gather, struct error *ret)
{
	const struct comm *comm = gather->call.group->comm;
	const struct gather *blocker;
	char missing[RANK_TEXT];

	switch (gather->state) {
	case GATHER_LIMITED:
		blocker = find_blocker(gather);
		if (!blocker)
			break;
		comm_name_missing(comm, blocker->ended, missing);
		return error_set(ret, -ETIMEDOUT,
				 "waits for the limiter until '%s' is "
				 "resharded, which %s has not done",
				 blocker->call.group->name, missing);
	case GATHER_WANTS_ROOM:
		if (!gather->call.waits_since_ms)
			return error_set(ret, -ETIMEDOUT,
					 "waits for earlier work%s",
					 comm_worker_is_bound(comm)
						 ? " or for other nodes"
						 : "");
		return error_set(ret, -ETIMEDOUT, "waits for memory: %s",
				 gather->call.shortage.code
					 ? gather->call.shortage.msg
					 : "fsdpd is still allocating it");
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

	return error_set(err, r, "'%s' is not unsharded yet: it %s",
			 gather->call.group->name, wait.msg);
}

/* --- lateness ------------------------------------------------------------ */

void gathers_describe_late(const struct comm *comm, struct error *ret)
{
	struct late_call late = calls_find_late(&comm->gathers, comm);
	struct error wait = ERROR_NULL;
	char missing[RANK_TEXT];

	assert(late.call);
	if (late.is_waiting) {
		describe_wait(gather_of(late.call), &wait);
		error_set(ret, -ECONNABORTED,
			  "group '%s' was not unsharded within %d ms: it %s",
			  late.call->group->name, comm->timeout_ms, wait.msg);
		return;
	}
	comm_name_missing(comm, late.call->made, missing);
	error_set(ret, -ECONNABORTED, "%s has not unsharded '%s' within %d ms",
		  missing, late.call->group->name, comm->timeout_ms);
}
