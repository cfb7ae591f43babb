#include "client/rank/barrier.h"
#include "client/rank/comm.h"
#include <errno.h>
#include <stdio.h>

#define MS_NS    INT64_C(1000000)
#define SLICE_MS 1000 /* a broker that was restarted wakes nobody */
#define TEXT     160

static uint32_t count_ranks(const struct fsdp_comm *comm)
{
	return comm->n_shards * comm->n_replicas;
}

/* --- the board ----------------------------------------------------------- */

static int fetch(struct fsdp_comm *comm, struct error *err)
{
	struct request request = {.kind = MESSAGE_COMM_BOARD,
				  .comm_board = {.comm = comm->id}};
	struct answer answer;
	int r = comm_call(comm, &request, &answer, err);

	if (r < 0)
		return r;
	if (answer.n_fds != 1 || !comm->verdict) {
		r = error_set(err, -EPROTO, "fsdpd sent no board");
	} else {
		r = board_open(&comm->barrier.board, answer.fds[0],
			       count_ranks(comm), comm->id, err);
		answer.fds[0] = -1;
	}
	answer_deinit(&answer);
	return r;
}

void barrier_leave(struct fsdp_comm *comm)
{
	if (comm->barrier.board.page)
		board_leave(&comm->barrier.board, comm->rank);
}

void barrier_deinit(struct barrier *barrier, const struct fsdp_comm *comm)
{
	if (!barrier->board.page || guard_is_forked(&comm->client->guard))
		return;
	board_leave(&barrier->board, comm->rank);
	board_close(&barrier->board);
}

/* --- who is missing ------------------------------------------------------ */

/* "rank 1 and 2 more" */
static const char *name_ranks(uint64_t ranks, char ret[TEXT])
{
	int n_more = __builtin_popcountll(ranks) - 1;
	int first = __builtin_ctzll(ranks);

	if (n_more > 0)
		(void)snprintf(ret, TEXT, "rank %d and %d more", first, n_more);
	else
		(void)snprintf(ret, TEXT, "rank %d", first);
	return ret;
}

/* Tell all ranks, and return what the broker tells them. */
static int fail(struct fsdp_comm *comm, const struct error *why,
		struct error *err)
{
	int r;

	comm_give_up(comm, why);
	r = comm_check_run(comm, err);
	return r < 0 ? r : error_set(err, why->code, "%s", why->msg);
}

static int fail_late(struct fsdp_comm *comm, uint64_t missing,
		     struct error *err)
{
	struct error why = ERROR_NULL;
	char names[TEXT];

	error_set(&why, -ECONNABORTED,
		  "%s has not come to a barrier within %d ms",
		  name_ranks(missing, names), comm->timeout_ms);
	return fail(comm, &why, err);
}

static int fail_left(struct fsdp_comm *comm, uint64_t left, struct error *err)
{
	struct error why = ERROR_NULL;
	char names[TEXT];

	error_set(&why, -ECONNABORTED, "%s has left before a barrier",
		  name_ranks(left, names));
	return fail(comm, &why, err);
}

/* --- waiting ------------------------------------------------------------- */

static bool is_run_over(const void *data)
{
	return !comm_is_alive(data);
}

/* The end of the caller's time, of the communicator's, and of a slice. */
static int64_t find_end(const struct fsdp_comm *comm, int64_t until_ns)
{
	const struct interrupt *interrupt =
		&comm->client->connection.self.interrupt;
	int64_t late_ns = comm->barrier.since_ns + comm->timeout_ms * MS_NS;
	int64_t slice_ns =
		bell_now_ns() + interrupt_slice(interrupt, SLICE_MS) * MS_NS;

	if (until_ns > late_ns)
		until_ns = late_ns;
	return until_ns < slice_ns ? until_ns : slice_ns;
}

static enum bell_outcome wait_once(struct fsdp_comm *comm, int64_t until_ns)
{
	const struct board_wait wait = {
		.board = &comm->barrier.board,
		.rank = comm->rank,
		.number = comm->barrier.number,
		.is_over = is_run_over,
		.data = comm,
	};

	return board_wait(&comm->barrier.board, &wait,
			  find_end(comm, until_ns));
}

/* 0: wait on. The others may have come since. */
static int look_around(struct fsdp_comm *comm, int64_t until_ns,
		       struct error *err)
{
	const struct barrier *barrier = &comm->barrier;
	uint64_t missing = board_missing(&barrier->board, barrier->number);
	uint64_t left = board_left(&barrier->board, missing);
	int64_t now_ns = bell_now_ns();
	int r = comm_check_run(comm, err);
	char names[TEXT];

	if (r < 0 || !missing)
		return r;
	if (left)
		return fail_left(comm, left, err);
	if (now_ns >= barrier->since_ns + comm->timeout_ms * MS_NS)
		return fail_late(comm, missing, err);
	if (interrupt_is_asked(&comm->client->connection.self.interrupt))
		return interrupt_refuse(err);
	if (now_ns >= until_ns)
		return error_set(err, -ETIMEDOUT,
				 "%s has not come to the barrier yet",
				 name_ranks(missing, names));
	return 0;
}

static int wait_for_all(struct fsdp_comm *comm, int32_t timeout_ms,
			struct error *err)
{
	int64_t until_ns =
		timeout_ms < 0 ? INT64_MAX : bell_now_ns() + timeout_ms * MS_NS;
	int r = 0;

	while (r == 0 && wait_once(comm, until_ns) != BELL_MET)
		r = look_around(comm, until_ns, err);
	return r;
}

/* The last one goes through without reading the clock. */
static bool come(struct fsdp_comm *comm)
{
	struct barrier *barrier = &comm->barrier;
	bool is_new = !barrier->is_waiting;

	if (is_new)
		board_arrive(&barrier->board, comm->rank, ++barrier->number);
	barrier->is_waiting = board_missing(&barrier->board, barrier->number);
	if (is_new && barrier->is_waiting)
		barrier->since_ns = bell_now_ns();
	return !barrier->is_waiting;
}

int fsdp_barrier(struct fsdp_comm *comm, int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	int r = comm_check(comm, err);

	if (r == 0 && !comm->barrier.board.page)
		r = fetch(comm, err);
	if (r < 0 || come(comm))
		return r;
	r = wait_for_all(comm, timeout_ms, err);
	if (r == 0)
		comm->barrier.is_waiting = false;
	return r;
}
