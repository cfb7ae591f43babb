#include "client/rank/run_board.h"
#include "client/rank/comm.h"
#include <errno.h>

static int fetch(struct fsdp_comm *comm, struct error *err)
{
	struct request request = {.kind = MESSAGE_COMM_BOARD,
				  .comm_board = {.comm = comm->id}};
	struct received received;
	int r = comm_call(comm, &request, &received, err);

	if (r < 0)
		return r;
	if (received.n_fds != 1 || !comm->verdict) {
		r = error_set(err, -EPROTO, "fsdpd sent no board");
	} else {
		r = board_open(&comm->board, received.fds[0],
			       comm->n_shards * comm->n_replicas, comm->id,
			       err);
		received.fds[0] = -1;
	}
	received_deinit(&received);
	return r;
}

int run_board_open(struct fsdp_comm *comm, struct error *err)
{
	return comm->board.page ? 0 : fetch(comm, err);
}

void run_board_leave(struct fsdp_comm *comm)
{
	if (comm->board.page)
		board_leave(&comm->board, comm->rank);
}

void run_board_drop(struct fsdp_comm *comm)
{
	if (!comm->board.page || guard_is_forked(&comm->client->guard))
		return;
	board_leave(&comm->board, comm->rank);
	board_close(&comm->board);
}
