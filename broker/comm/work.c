#include "broker/comm/work.h"
#include "broker/comm/comm.h"
#include "broker/comm/group.h"
#include "proto/error.h"
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

/* Ids of communicators are never reused. If two that run at the same time got
 * the same number, they would only lose some overlap. */
uint32_t work_stream(const struct group *group, enum work_stream stream)
{
	return (uint32_t)group->comm->id * 2 + (uint32_t)stream;
}

struct group *work_find_group(const struct work *work)
{
	struct group *group = group_find_id(work->comms, work->group);

	return group && group->comm->state == COMM_RUNNING ? group : NULL;
}
