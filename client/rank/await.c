#include "client/rank/await.h"
#include "client/rank/comm.h"
#include "client/rank/comm_liveness.h"
#include "client/rank/idle.h"
#include "proto/failpoint.h"
#include <stdio.h>

#define MS_NS    INT64_C(1000000)
#define SLICE_MS 1000 /* a broker that was restarted wakes no process */
/* A wait with a time-out of LONG_MS or more may last for another tick of the
 * kernel, because the time of the last tick is read much more quickly. */
#define LONG_MS 1000
#define TICK_MS INT64_C(10)

const char *await_name_ranks(const struct fsdp_comm *comm, uint64_t ranks,
			     char ret[AWAIT_TEXT])
{
	int n_more = __builtin_popcountll(ranks) - 1;
	char name[BOARD_NAME_TEXT];

	if (n_more < 0)
		return "a rank";
	(void)board_name_rank(&comm->board, (uint32_t)__builtin_ctzll(ranks),
			      name);
	if (n_more == 0)
		(void)snprintf(ret, AWAIT_TEXT, "%s", name);
	else
		(void)snprintf(ret, AWAIT_TEXT, "%s, like %d other rank%s,",
			       name, n_more, n_more > 1 ? "s" : "");
	return ret;
}

int64_t await_until(int32_t timeout_ms)
{
	if (timeout_ms < 0)
		return INT64_MAX;
	if (timeout_ms < LONG_MS)
		return bell_now_ns() + timeout_ms * MS_NS;
	return bell_recent_ns() + (timeout_ms + TICK_MS) * MS_NS;
}

static bool is_run_over(const void *data)
{
	return !comm_is_alive(data);
}

/* Return the time at which a wait must look around next: the first of the end
 * of the caller's time, the end of the communicator's time-out, and the end of
 * a slice. */
static int64_t end_of_slice(const struct fsdp_comm *comm,
			    const struct await *await)
{
	const struct interrupt *interrupt =
		&comm->client->connection.self.interrupt;
	int64_t late_ns = await->since_ns + comm->timeout_ms * MS_NS;
	int64_t end_ns =
		bell_recent_ns() + interrupt_slice(interrupt, SLICE_MS) * MS_NS;

	if (end_ns > late_ns)
		end_ns = late_ns;
	return end_ns < await->until_ns ? end_ns : await->until_ns;
}

static struct board_wait wait_of(const struct fsdp_comm *comm,
				 const struct await *await)
{
	return (struct board_wait){
		.board = &comm->board,
		.rank = comm->rank,
		.goal = await->goal,
		.number = await->number,
		.n_pieces = await->n_pieces,
		.of = await->of,
		.mail = await->mail,
		.gather = await->gather,
		.is_over = is_run_over,
		.data = comm,
	};
}

/* Return an enum bell_outcome, or -EINTR. */
static int wait_once(struct fsdp_comm *comm, const struct await *await,
		     struct error *err)
{
	const struct board_wait wait = wait_of(comm, await);
	enum bell_outcome outcome;
	int64_t until_ns, end_ns;
	int r;

	if (board_is_met(&wait))
		return BELL_MET;
	end_ns = end_of_slice(comm, await);
	do {
		until_ns = liveness_next_ns(await->since_ns, end_ns);
		outcome = board_wait(&comm->board, &wait, until_ns);
		r = outcome == BELL_AGAIN
			    ? comm_check_liveness(comm, board_awaited(&wait),
						  await->since_ns, until_ns,
						  end_ns, err)
			    : 0;
	} while (r > 0);
	return r < 0 ? r : (int)outcome;
}

/* Return AWAIT_MET if the caller must wait on. The ranks may also have come in
 * the meantime. A rank comes before it leaves, so the ranks that have left are
 * read first. */
static int look_around(struct fsdp_comm *comm, const struct await *await,
		       uint64_t *ret_ranks, struct error *err)
{
	const struct board_wait wait = wait_of(comm, await);
	uint64_t left = board_left(&comm->board, UINT64_MAX), ranks;
	int64_t now_ns = bell_now_ns();
	int r = comm_check_run(comm, err);

	failpoint("await.looked");
	ranks = board_awaited(&wait);
	*ret_ranks = ranks;
	if (r < 0 || board_is_met(&wait))
		return r;
	if (left & ranks) {
		*ret_ranks = left & ranks;
		return AWAIT_LEFT;
	}
	if (now_ns >= await->since_ns + comm->timeout_ms * MS_NS)
		return AWAIT_LATE;
	if (interrupt_is_asked(&comm->client->connection.self.interrupt))
		return interrupt_refuse(err);
	return now_ns >= await->until_ns ? AWAIT_PENDING : AWAIT_MET;
}

int await_ranks(struct fsdp_comm *comm, const struct await *await,
		uint64_t *ret_ranks, struct error *err)
{
	int r = AWAIT_MET;

	while (r == AWAIT_MET && (r = wait_once(comm, await, err)) > 0) {
		r = look_around(comm, await, ret_ranks, err);
		if (r == AWAIT_MET)
			r = idle_heed_inputs(comm, err);
		idle_heed_buffers(comm);
	}
	return r;
}
