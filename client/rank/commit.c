#include "client/rank/commit.h"
#include "client/clock.h"
#include "client/rank/engine.h"
#include "client/rank/host_gather.h"
#include "client/rank/host_reduce.h"
#include "client/rank/plain_device.h"
#include "client/rank/unshard.h"
#include <errno.h>

/* Record the progress of the streams that write the shards, or that read the
 * previous ones. */
static int note_streams(struct fsdp_comm *comm, void *stream, struct error *err)
{
	comm->written = (struct fence){0};
	if (comm->engine)
		return engine_note(comm->engine, stream, err);
	if (!stream)
		return 0;
	return plain_note_stream(comm, stream, NULL, &comm->written, err);
}

static int await_streams(struct fsdp_comm *comm, int32_t timeout_ms,
			 struct error *err)
{
	int64_t deadline_ms;
	int r;

	if (!comm->engine && !comm->written.timeline)
		return 0;
	if (timeout_ms < 0 || timeout_ms > comm->timeout_ms)
		timeout_ms = comm->timeout_ms;
	deadline_ms = clock_now_ms() + timeout_ms;
	if (!comm->engine)
		return plain_await(comm, &comm->written, deadline_ms, err);
	/* Without this, the devices of other ranks would wait for our part of a
	 * reduction that is not waited for here, while we wait for their
	 * commit. */
	r = engine_begin_reductions(comm->engine, err);
	return r < 0 ? r : engine_await_noted(comm->engine, deadline_ms, err);
}

/* Copy the frozen parameters to the next shards, and check that all nodes
 * commit the same step. */
static int finish_shards(struct fsdp_comm *comm, struct error *err)
{
	int r = 0;

	for (struct fsdp_group *group = comm->groups; group && r == 0;
	     group = group->next)
		r = group_carry_frozen(group, err);
	if (r == 0 && comm->engine)
		r = engine_verify_step(comm->engine, comm->committing, err);
	return r;
}

static int tell_broker(struct fsdp_comm *comm, struct error *err)
{
	struct request request = {
		.kind = MESSAGE_COMMIT,
		.commit = {.comm = comm->id,
			   .step = comm->committing,
			   .n_gathers = host_gather_count(comm)},
	};

	return comm_command(comm, &request, err);
}

int commit_send(struct fsdp_comm *comm, int32_t timeout_ms, struct error *err)
{
	int r;

	if (!comm->is_commit_unsent)
		return 0;
	r = await_streams(comm, timeout_ms, err);
	if (r == -ETIMEDOUT)
		return r;
	if (r == 0)
		r = finish_shards(comm, err);
	if (r == 0)
		r = tell_broker(comm, err);
	comm->is_commit_unsent = false;
	if (r < 0) {
		comm->committing = 0;
		host_gather_undo_commit(comm);
	}
	return r;
}

void commit_end(struct fsdp_comm *comm)
{
	for (struct fsdp_group *group = comm->groups; group;
	     group = group->next)
		group_on_commit(group, comm->committing);
	comm->step = comm->committing;
	comm->committing = 0;
}

int fsdp_commit(struct fsdp_comm *comm, uint64_t step, struct fsdp_work *ret)
{
	return fsdp_commit_on(comm, step, NULL, ret);
}

static int begin(struct fsdp_comm *comm, uint64_t step, void *stream,
		 struct error *err)
{
	int r = note_streams(comm, stream, err);

	if (r < 0)
		return r;
	comm->committing = step;
	comm->is_commit_unsent = true;
	if (stream)
		return 0;
	r = commit_send(comm, -1, err);
	if (r == -ETIMEDOUT && comm->is_commit_unsent) {
		/* The caller gets no work to wait for. */
		comm->is_commit_unsent = false;
		comm->committing = 0;
	}
	return r;
}

int fsdp_commit_on(struct fsdp_comm *comm, uint64_t step, void *stream,
		   struct fsdp_work *ret)
{
	struct error *err = error_of_thread();
	int r = comm_check_idle(comm, err);

	if (r == 0 && step == 0)
		r = error_set(err, -EINVAL,
			      "cannot commit step 0: steps begin at 1");
	if (r == 0 && stream)
		r = comm_check_stream(comm, stream, err);
	if (r == 0)
		r = unshard_check_commit(comm, err);
	if (r == 0)
		r = host_reduce_check_commit(comm, err);
	if (r == 0)
		r = host_gather_begin_commit(comm, err);
	if (r == 0)
		r = begin(comm, step, stream, err);
	if (r < 0)
		return r;
	*ret = (struct fsdp_work){
		.comm = comm, .kind = WORK_COMMIT, .sequence = step};
	return 0;
}
