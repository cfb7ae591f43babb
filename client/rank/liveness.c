#include "client/rank/liveness.h"
#include "client/rank/comm.h"
#include "proto/ending.h"

#define MS_NS INT64_C(1000000)
/* The time between two looks, each of which costs about 5 us for each rank. */
#define LOOK_NS (20 * MS_NS)
/* The time until the next question, if the broker did not agree: for this
 * process the numbers belong to other processes. */
#define PAUSE_NS (1000 * MS_NS)

int64_t liveness_next_ns(int64_t end_ns)
{
	int64_t until_ns = bell_now_ns() + LOOK_NS;

	return until_ns < end_ns ? until_ns : end_ns;
}

/* Find a rank that is ending. If there are several, the first is enough, since
 * its end is that of the run. */
static bool find(const struct fsdp_comm *comm, uint64_t ranks, uint32_t *ret)
{
	const struct board *board = &comm->board;

	for (uint32_t i = 0; i < board->n_ranks; i++) {
		if (i == comm->rank || !(ranks >> i & 1) ||
		    !process_is_ending((pid_t)board->page->names[i].pid))
			continue;
		*ret = i;
		return true;
	}
	return false;
}

/* Ask the broker to look. The verdict then has the result. */
static void ask(struct fsdp_comm *comm, uint32_t rank)
{
	struct request request = {
		.kind = MESSAGE_COMM_LOOK,
		.comm_look = {.comm = comm->id, .rank = rank},
	};

	(void)client_command(comm->client, &request, NULL);
	comm->liveness.next_ns = bell_now_ns() + PAUSE_NS;
}

bool liveness_check(struct fsdp_comm *comm, uint64_t ranks, int64_t until_ns,
		    int64_t end_ns)
{
	int64_t now_ns = bell_now_ns();
	uint32_t rank;

	if (now_ns < until_ns)
		return false;
	if (now_ns >= comm->liveness.next_ns &&
	    find(comm, ranks ? ranks : UINT64_MAX, &rank))
		ask(comm, rank);
	return now_ns < end_ns;
}
