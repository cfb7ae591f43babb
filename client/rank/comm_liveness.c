#include "client/rank/comm_liveness.h"
#include "client/rank/comm.h"
#include <errno.h>

static uint32_t pid_of(const void *data, uint32_t rank)
{
	const struct board *board = data;

	return board->page->names[rank].pid;
}

/* A rank that has left may end. */
static uint64_t others(const struct fsdp_comm *comm)
{
	return (UINT64_MAX >> (64 - comm->board.n_ranks)) &
	       ~(UINT64_C(1) << comm->rank) &
	       ~board_left(&comm->board, UINT64_MAX);
}

/* Ask the broker to look. The verdict then has the result. If the broker is
 * away, this rank does not wait for it here, since the others may go on. */
static int ask(struct fsdp_comm *comm, uint32_t rank, struct error *err)
{
	struct request request = {
		.kind = MESSAGE_COMM_LOOK,
		.comm_look = {.comm = comm->id, .rank = rank},
	};
	struct error cause = ERROR_NULL;
	int r;

	if (connection_is_down(&comm->client->connection))
		return 0;
	r = client_command(comm->client, &request, &cause);
	liveness_pause(&comm->liveness);
	if (r != -EINTR)
		return 0;
	*err = cause;
	return r;
}

/* If several ranks are ending, the first is enough, since its end is that of
 * the run. */
int comm_check_liveness(struct fsdp_comm *comm, uint64_t ranks,
			int64_t since_ns, int64_t until_ns, int64_t end_ns,
			struct error *err)
{
	int64_t now_ns = bell_now_ns();
	uint32_t rank;
	int r = 0;

	if (now_ns < until_ns)
		return 0;
	rank = liveness_find(&comm->liveness, since_ns,
			     others(comm) & (ranks ? ranks : UINT64_MAX),
			     pid_of, &comm->board);
	if (rank != LIVENESS_NONE)
		r = ask(comm, rank, err);
	return r < 0 ? r : now_ns < end_ns;
}
