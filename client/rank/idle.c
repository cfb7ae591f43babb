#include "client/rank/idle.h"
#include "client/rank/gather_job.h"
#include "client/rank/group_impl.h"
#include "client/rank/inputs.h"
#include "shm/bell.h"
#include <errno.h>

#define MS_NS INT64_C(1000000)
/* The time after which a rank that waits for memory looks again which of its
 * buffers other ranks have given up. */
#define SLICE_MS 1000

int idle_give_back(struct fsdp_comm *comm, struct error *err)
{
	job_give_back(comm);
	return comm->reducer ? inputs_give_back(comm, err) : 0;
}

int idle_heed(struct fsdp_comm *comm, struct error *err)
{
	job_heed(comm);
	return inputs_heed(comm, err);
}

/* Return the time-out of the next request. If this rank keeps no idle memory,
 * it need not look again, and keeps its turn at the broker. */
static int32_t next_ms(const struct fsdp_comm *comm, int64_t until_ns)
{
	int64_t left_ms = (until_ns - bell_now_ns() + MS_NS - 1) / MS_NS;

	if (left_ms > SLICE_MS && job_has_idle(comm))
		return SLICE_MS;
	if (until_ns == INT64_MAX)
		return -1;
	return left_ms > 0 ? (int32_t)left_ms : 0;
}

static int32_t *timeout_of(struct request *request)
{
	switch (request->kind) {
	case MESSAGE_INPUT:
		return &request->input.timeout_ms;
	case MESSAGE_COMM_PLACE:
		return &request->comm_place.timeout_ms;
	default:
		return &request->gather_buffer.timeout_ms;
	}
}

int idle_ask(struct fsdp_comm *comm, struct request *request, int64_t until_ns,
	     uint64_t size, struct fsdp_tensor **ret, struct error *err)
{
	int32_t *timeout_ms = timeout_of(request);
	int r;

	*timeout_ms = 0;
	r = group_ask_one(comm, request, size, NULL, ret, err);
	while (r == -ETIMEDOUT) {
		r = idle_give_back(comm, err);
		if (r < 0)
			break;
		*timeout_ms = next_ms(comm, until_ns);
		r = group_ask_one(comm, request, size, NULL, ret, err);
		if (bell_now_ns() >= until_ns)
			break;
	}
	return r;
}
