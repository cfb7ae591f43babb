#include "broker/comm/run_board.h"
#include "broker/comm/comm.h"
#include "proto/error.h"
#include <errno.h>

_Static_assert(BOARD_RANKS >= PLAN_MAX_RANKS, "a board has room for all");

int run_board_fd(struct comm *comm, int *ret_fd, struct error *err)
{
	int r = 0;

	if (comm->n_ranks < comm->n_world)
		return error_set(err, -EOPNOTSUPP,
				 "communicator '%s' spans several nodes, which "
				 "have no memory in common",
				 comm->name);
	if (!comm->verdict)
		return error_set(err, -EOPNOTSUPP,
				 "more than %d communicators are running, and "
				 "'%s' is none of the first",
				 TABLE_RUNS - 1, comm->name);
	if (!comm->board.page)
		r = board_create(&comm->board, comm->n_ranks, comm->id, err);
	if (r == 0)
		*ret_fd = comm->board.fd;
	return r;
}

void run_board_ring(struct comm *comm)
{
	if (comm->board.page)
		bell_ring_always(&comm->board.page->barriers);
}

/* A board that was never made has no fd, not fd 0. */
void run_board_close(struct comm *comm)
{
	if (comm->board.page)
		board_close(&comm->board);
}
