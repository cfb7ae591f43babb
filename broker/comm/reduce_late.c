#include "broker/comm/reduce_late.h"
#include "broker/comm/comm.h"
#include "broker/comm/group.h"
#include "broker/comm/reduce.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

int reduction_refuse_wait(const struct group *group, uint64_t sequence,
			  struct error *err)
{
	const struct call *call =
		calls_find(&group->comm->reductions, group, sequence);
	char missing[RANK_TEXT];

	assert(call);
	if (call->made != comm_all(group->comm)) {
		comm_name_missing(group->comm, call->made, missing);
		return error_set(err, -ETIMEDOUT,
				 "'%s' is not reduced yet: %s has not handed "
				 "in its gradients",
				 group->name, missing);
	}
	if (call->shortage.code)
		return error_set(err, -ETIMEDOUT,
				 "'%s' is not reduced yet: it waits for "
				 "memory: %s",
				 group->name, call->shortage.msg);
	return error_set(err, -ETIMEDOUT, "'%s' is still being reduced",
			 group->name);
}

void reductions_describe_late(const struct comm *comm, struct error *ret)
{
	struct late_call late = calls_find_late(&comm->reductions, comm);
	char missing[RANK_TEXT];

	assert(late.call);
	if (late.is_waiting) {
		error_set(ret, -ECONNABORTED,
			  "group '%s' was not reduced within %d ms, because "
			  "memory was short: %s",
			  late.call->group->name, comm->timeout_ms,
			  late.call->shortage.msg);
		return;
	}
	comm_name_missing(comm, late.call->made, missing);
	error_set(ret, -ECONNABORTED,
		  "%s has not handed in gradients of '%s' within %d ms",
		  missing, late.call->group->name, comm->timeout_ms);
}
