#include "broker/comm/work.h"
#include "broker/comm/comm.h"
#include "broker/comm/group.h"
#include "proto/error.h"
#include <errno.h>
#include <stdlib.h>

int work_new(const struct group *group, uint64_t sequence, struct work **ret,
	     struct error *err)
{
	struct work *work = malloc(sizeof(*work));

	if (!work)
		return error_nomem(err, "a job");
	*work = (struct work){
		.comms = group->comm->comms,
		.group = group->id,
		.sequence = sequence,
	};
	*ret = work;
	return 0;
}

/* Ids of communicators are never reused. If two communicators that run at the
 * same time got the same number, their work would only overlap less. */
uint32_t work_stream(const struct group *group, enum work_stream stream)
{
	return (uint32_t)group->comm->id * 2 + (uint32_t)stream;
}

struct call *work_end(struct work *work, enum work_stream stream)
{
	struct group *group = group_find_id(work->comms, work->group);
	uint64_t sequence = work->sequence;
	struct comm *comm;

	free(work);
	if (!group || group->comm->state != COMM_RUNNING)
		return NULL;
	comm = group->comm;
	return calls_find(stream == WORK_STREAM_GATHER ? &comm->gathers
						       : &comm->reductions,
			  group, sequence);
}

void work_fail(const struct group *group, enum work_stream stream,
	       const char *cause)
{
	comm_fail(group->comm, -ECONNABORTED,
		  "the work stopped while group '%s' of communicator '%s' was "
		  "%s: %s",
		  group->name, group->comm->name,
		  stream == WORK_STREAM_GATHER ? "gathered" : "reduced", cause);
}
