/*
 * The requests on communicators: join, leave, remove, commit, and wait for a
 * commit.
 */
#include "broker/comm/comm.h"
#include "broker/broker.h"
#include "broker/comm/comm_commit.h"
#include "broker/comm/comm_join.h"
#include "broker/comm/comm_record.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/run_board.h"
#include "broker/verbs/verbs.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <string.h>

int verb_comm_join(struct verb_call *call, struct error *err)
{
	const struct comm_join_request *request = &call->request->comm_join;
	struct comm *comm;
	int r;

	r = comm_join(&call->broker->comms, call->session, request,
		      call->number, call->is_timed_out, &comm, err);
	if (r < 0)
		return r;
	if (r == COMM_JOIN_WAIT) {
		call->wait_name = comm->key;
		call->wait_ms = request->timeout_ms;
		return VERB_PARK_NAME;
	}
	call->reply->comm.comm = comm->id;
	call->reply->comm.step = comm->step;
	call->reply->comm.has_nccl_id = comm->has_nccl_id;
	memcpy(call->reply->comm.nccl_id, comm->nccl_id, MESSAGE_NCCL_ID_SIZE);
	call->reply->comm.takes_fences = comm_is_by_worker(comm);
	call->reply->comm.verdict = comm->verdict;
	call->reply->comm.direct = comm->direct;
	return VERB_DONE;
}

int verb_comm_fail(struct verb_call *call, struct error *err)
{
	const struct comm_fail_request *request = &call->request->comm_fail;
	char name[RANK_TEXT];
	struct comm *comm;
	uint32_t rank;
	int r;

	r = comm_find(&call->broker->comms, call->session, request->comm, &comm,
		      &rank, err);
	if (r < 0)
		return r;
	comm_rank_name(comm, rank, name);
	comm_fail(comm, -ECONNABORTED, "%s aborted communicator '%s': %s", name,
		  comm->name, request->sentence);
	return VERB_DONE;
}

int verb_comm_board(struct verb_call *call, struct error *err)
{
	struct comm *comm;
	uint32_t rank;
	int fd, r;

	r = comm_find(&call->broker->comms, call->session,
		      call->request->comm_board.comm, &comm, &rank, err);
	if (r == 0)
		r = run_board_fd(comm, &fd, err);
	if (r == RUN_BOARD_WAIT) {
		call->wait_ms = -1; /* this wait is short */
		return VERB_PARK_ROOM;
	}
	if (r < 0)
		return r;
	call->fds[call->n_fds++] = fd;
	return VERB_DONE;
}

int verb_comm_look(struct verb_call *call, struct error *err)
{
	const struct comm_look_request *request = &call->request->comm_look;
	struct comm *comm;
	uint32_t rank;
	int r;

	r = comm_find(&call->broker->comms, call->session, request->comm, &comm,
		      &rank, err);
	if (r < 0)
		return r;
	if (request->all)
		comm_look_all(comm);
	else
		comm_look(comm, request->rank);
	return comm->state == COMM_FAILED ? comm_refuse_failed(comm, err)
					  : VERB_DONE;
}

int verb_comm_leave(struct verb_call *call, struct error *err)
{
	struct comm *comm;
	uint32_t rank;
	int r;

	r = comm_find_any(&call->broker->comms, call->session,
			  call->request->comm_leave.comm, &comm, &rank, err);
	if (r < 0)
		return r;
	comm_leave(comm, rank);
	return VERB_DONE;
}

static int refuse_busy(const struct comm *comm, struct error *err)
{
	char name[RANK_TEXT];
	uint32_t rank = 0;

	while (rank + 1 < comm->n_ranks && !comm->ranks[rank].session)
		rank++;
	return error_set(err, -EBUSY,
			 "cannot remove the communicator: %s has not left "
			 "'%s'; remove it when all ranks have left",
			 comm_rank_name(comm, rank, name), comm->name);
}

int verb_comm_remove(struct verb_call *call, struct error *err)
{
	const char *name = call->request->comm_remove.name;
	struct broker *broker = call->broker;
	uint32_t record = comm_record_find(&broker->comms, name);
	const struct comm *comm = comm_find_name(&broker->comms, name);
	uint32_t uid;

	if (!record)
		return error_set(err, -ENOENT, "there is no communicator '%s'",
				 name);
	uid = catalog_comm(&broker->store.catalog, record)->uid;
	if (!access_is_owner(&call->session->holdings.credentials, uid))
		return error_set(err, -EPERM,
				 "communicator '%s' belongs to uid %u", name,
				 uid);
	if (comm)
		return refuse_busy(comm, err);
	comm_record_free(&broker->comms, record);
	failpoint("comm.removed");
	return VERB_DONE;
}

int verb_commit(struct verb_call *call, struct error *err)
{
	const struct commit_request *request = &call->request->commit;
	struct comm *comm;
	uint32_t rank;
	int r;

	r = comm_find(&call->broker->comms, call->session, request->comm, &comm,
		      &rank, err);
	if (r < 0)
		return r;
	r = comm_commit(comm, rank, request, err);
	if (r < 0)
		return r;
	call->reply->work.sequence = request->step;
	return VERB_DONE;
}

/* --- waiting ------------------------------------------------------------- */

static int wait_commit(struct verb_call *call, struct error *err)
{
	const struct wait_request *request = &call->request->wait;
	char missing[RANK_TEXT];
	struct comm *comm;
	uint32_t rank;
	int r;

	r = comm_find(&call->broker->comms, call->session, request->comm, &comm,
		      &rank, err);
	if (r < 0)
		return r;
	if (request->sequence <= comm->step)
		return VERB_DONE;
	if (comm->ranks[rank].step != request->sequence)
		return error_set(err, -EINVAL, "%s has not committed step %llu",
				 comm_rank_name(comm, rank, missing),
				 (unsigned long long)request->sequence);
	if (request->timeout_ms && !call->is_timed_out) {
		call->wait_name = comm->key;
		call->wait_ms = request->timeout_ms;
		return VERB_PARK_NAME;
	}
	comm_name_missing(comm, comm_committed(comm), missing);
	return error_set(err, -ETIMEDOUT,
			 "step %llu is not committed yet: %s has not done so",
			 (unsigned long long)request->sequence, missing);
}

int verb_wait(struct verb_call *call, struct error *err)
{
	switch ((enum work_kind)call->request->wait.kind) {
	case WORK_UNSHARD:
		return verb_wait_unshard(call, err);
	case WORK_REDUCE:
		return verb_wait_reduce(call, err);
	case WORK_COMMIT:
		return wait_commit(call, err);
	}
	return error_set(err, -EINVAL, "there is no work of kind %u",
			 call->request->wait.kind);
}
