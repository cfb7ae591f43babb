#include "client/rank/comm_liveness.h"
#include "client/rank/comm.h"

static uint32_t pid_of(const void *data, uint32_t rank)
{
	const struct board *board = data;

	return board->page->names[rank].pid;
}

static uint64_t others(const struct fsdp_comm *comm)
{
	return (UINT64_MAX >> (64 - comm->board.n_ranks)) &
	       ~(UINT64_C(1) << comm->rank);
}

/* Ask the broker to look. The verdict then has the result. */
static void ask(struct fsdp_comm *comm, uint32_t rank)
{
	struct request request = {
		.kind = MESSAGE_COMM_LOOK,
		.comm_look = {.comm = comm->id, .rank = rank},
	};

	(void)client_command(comm->client, &request, NULL);
	liveness_pause(&comm->liveness);
}

/* If several ranks are ending, the first is enough, since its end is that of
 * the run. */
bool comm_check_liveness(struct fsdp_comm *comm, uint64_t ranks,
			 int64_t since_ns, int64_t until_ns, int64_t end_ns)
{
	int64_t now_ns = bell_now_ns();
	uint32_t rank;

	if (now_ns < until_ns)
		return false;
	rank = liveness_find(&comm->liveness, since_ns,
			     others(comm) & (ranks ? ranks : UINT64_MAX),
			     pid_of, &comm->board);
	if (rank != LIVENESS_NONE)
		ask(comm, rank);
	return now_ns < end_ns;
}
