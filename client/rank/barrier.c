#include "client/rank/barrier.h"
#include "client/rank/await.h"
#include "client/rank/comm.h"
#include "client/rank/run_board.h"
#include <errno.h>

static int fail_late(struct fsdp_comm *comm, uint64_t missing,
		     struct error *err)
{
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED,
		  "%s has not reached a barrier within %d ms",
		  await_name_ranks(comm, missing, names), comm->timeout_ms);
	return comm_fail_run(comm, err);
}

static int fail_left(struct fsdp_comm *comm, uint64_t left, struct error *err)
{
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED, "%s left before it reached a barrier",
		  await_name_ranks(comm, left, names));
	return comm_fail_run(comm, err);
}

static int wait_for_all(struct fsdp_comm *comm, int32_t timeout_ms,
			struct error *err)
{
	const struct await await = {
		.goal = BOARD_BARRIER,
		.number = comm->barrier.number,
		.since_ns = comm->barrier.since_ns,
		.until_ns = await_until(timeout_ms),
	};
	char names[AWAIT_TEXT];
	uint64_t ranks;
	int r = await_ranks(comm, &await, &ranks, err);

	switch (r) {
	case AWAIT_PENDING:
		return error_set(err, -ETIMEDOUT,
				 "%s has not reached the barrier yet",
				 await_name_ranks(comm, ranks, names));
	case AWAIT_LATE:
		return fail_late(comm, ranks, err);
	case AWAIT_LEFT:
		return fail_left(comm, ranks, err);
	default:
		return r;
	}
}

/* Arrive at the barrier, unless this rank has arrived already. Returns whether
 * all ranks have arrived. The last rank does not read the clock. */
static bool come(struct fsdp_comm *comm)
{
	struct barrier *barrier = &comm->barrier;
	bool is_new = !barrier->is_waiting;

	if (is_new)
		board_arrive(&comm->board, comm->rank, ++barrier->number);
	barrier->is_waiting = board_missing(&comm->board, barrier->number);
	if (is_new && barrier->is_waiting)
		barrier->since_ns = bell_recent_ns();
	return !barrier->is_waiting;
}

int fsdp_barrier(struct fsdp_comm *comm, int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	int r = comm_check(comm, err);

	if (r == 0)
		r = run_board_open(comm, err);
	if (r < 0 || come(comm))
		return r;
	r = wait_for_all(comm, timeout_ms, err);
	if (r == 0)
		comm->barrier.is_waiting = false;
	return r;
}
