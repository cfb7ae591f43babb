/* Waits for work: unshards, reductions and commits. */
#include "client/rank/comm.h"
#include "client/rank/commit.h"
#include "client/rank/engine.h"
#include "client/rank/host_gather.h"
#include "client/rank/host_reduce.h"
#include "client/rank/idle.h"
#include "client/rank/unshard.h"
#include <errno.h>

/* The number of times that a wait is repeated because it overtook its
 * unshard. */
#define MAX_OVERTAKEN 100

static int check_work(const struct fsdp_work *work, struct error *err)
{
	if (!work || !work->comm || work->kind < WORK_UNSHARD ||
	    work->kind > WORK_COMMIT ||
	    !work->group != (work->kind == WORK_COMMIT))
		return error_set(
			err, -EINVAL,
			"the work was not begun; pass one that fsdp_unshard(), "
			"fsdp_reduce() or fsdp_commit() has filled");
	return comm_check(work->comm, err);
}

/* Tell whether the work is done, as far as this process knows without a
 * request. */
static bool is_done(const struct fsdp_work *work)
{
	if (work->kind == WORK_COMMIT)
		return work->sequence <= work->comm->step;
	if (work->kind == WORK_REDUCE)
		return work->sequence <= work->group->reduced;
	return unshard_is_whole(work->group, work->sequence);
}

static int end_work(const struct fsdp_work *work, struct received *received,
		    struct error *err)
{
	if (work->kind == WORK_UNSHARD)
		return group_take_full(work->group, work->sequence, received,
				       err);
	if (work->kind == WORK_REDUCE)
		group_note_reduced(work->group, work->sequence);
	else if (work->sequence == work->comm->committing)
		commit_end(work->comm);
	return 0;
}

#define PATIENCE_MS 100

/* Ask the broker to wait. An unshard may wait for memory that ranks only keep
 * as inputs, so they return it if the wait is long. */
static int ask_patiently(const struct fsdp_work *work, struct request *request,
			 struct received *ret, struct error *err)
{
	struct fsdp_comm *comm = work->comm;
	int32_t timeout_ms = request->wait.timeout_ms;
	int r;

	if (!comm->reducer || (timeout_ms >= 0 && timeout_ms <= PATIENCE_MS))
		return comm_call(comm, request, ret, err);
	request->wait.timeout_ms = PATIENCE_MS;
	r = comm_call(comm, request, ret, err);
	request->wait.timeout_ms =
		timeout_ms < 0 ? timeout_ms : timeout_ms - PATIENCE_MS;
	if (r != -ETIMEDOUT)
		return r;
	r = idle_give_back(comm, err);
	return r < 0 ? r : comm_call(comm, request, ret, err);
}

/* Send the wait. An unshard is a one-way request. If the broker has refused it,
 * this returns the cause. If the broker has not refused it and does not know it
 * either, it could not record its reply, and the unshard was sent again after
 * this request; then the wait is repeated. */
static int ask_for(const struct fsdp_work *work, struct request *request,
		   struct received *ret, struct error *err)
{
	int r;

	if (work->kind != WORK_UNSHARD) {
		comm_end_spent(work->comm);
		return comm_call(work->comm, request, ret, err);
	}
	request->wait.sequence = 0; /* the open unshard */
	for (int i = 0; i < MAX_OVERTAKEN; i++) {
		r = ask_patiently(work, request, ret, err);
		if (r < 0 && unshard_is_refused(work->group, err))
			return err->code;
		if (r != -EINVAL)
			break;
	}
	return r;
}

/* Test a work by a request to the broker or by the device. */
static int test_elsewhere(const struct fsdp_work *work)
{
	int r = fsdp_wait(work, 0);

	return r == -ETIMEDOUT ? -EAGAIN : r;
}

int fsdp_test(const struct fsdp_work *work)
{
	struct error *err = error_of_thread();
	int r = check_work(work, err);

	if (r < 0 || is_done(work))
		return r;
	if (work->kind == WORK_UNSHARD && host_gather_is_group(work->group))
		return host_gather_test(work->group, work->sequence, err);
	if (work->kind == WORK_REDUCE && work->comm->reducer)
		return host_reduce_test(work->group, work->sequence, err);
	return test_elsewhere(work);
}

int fsdp_wait(const struct fsdp_work *work, int32_t timeout_ms)
{
	return fsdp_wait_on(work, NULL, timeout_ms);
}

/* Wait by a request to the broker. */
static int wait_elsewhere(const struct fsdp_work *work, int32_t timeout_ms,
			  struct error *err)
{
	struct request request = {
		.kind = MESSAGE_WAIT,
		.wait = {.comm = work->comm->id,
			 .group = work->group ? work->group->id : 0,
			 .kind = work->kind,
			 .sequence = work->sequence,
			 .timeout_ms = timeout_ms},
	};
	struct received received;
	int r = ask_for(work, &request, &received, err);

	if (r < 0)
		return r;
	r = end_work(work, &received, err);
	received_deinit(&received);
	return r;
}

int fsdp_wait_on(const struct fsdp_work *work, void *stream, int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	int r;

	r = check_work(work, err);
	if (r == 0 && stream)
		r = comm_check_stream(work->comm, stream, err);
	if (r == 0 && work->comm->engine && work->kind != WORK_COMMIT) {
		r = engine_wait(work, stream, timeout_ms, err);
		if (r == 0 && work->kind == WORK_REDUCE)
			group_note_reduced(work->group, work->sequence);
		return r;
	}
	if (r < 0 || is_done(work))
		return r;
	if (work->kind == WORK_REDUCE && work->comm->reducer)
		return host_reduce_wait(work->group, work->sequence, timeout_ms,
					err);
	if (work->kind == WORK_UNSHARD && unshard_is_by_ranks(work->group))
		return unshard_wait_by_ranks(work->group, work->sequence,
					     timeout_ms, err);
	if (work->kind == WORK_UNSHARD)
		r = group_check_open(work->group, work->sequence, err);
	else if (work->kind == WORK_COMMIT &&
		 work->sequence == work->comm->committing)
		r = commit_send(work->comm, timeout_ms, err);
	return r < 0 ? r : wait_elsewhere(work, timeout_ms, err);
}
