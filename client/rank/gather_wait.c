#include "client/rank/await.h"
#include "client/rank/comm_liveness.h"
#include "client/rank/gather_job.h"
#include "client/rank/idle.h"
#include "shm/bell.h"
#include <errno.h>
#include <stdio.h>

#define MS_NS  INT64_C(1000000)
#define NOBODY UINT64_C(0)

/* --- waiting ------------------------------------------------------------- */

/* Return the ranks that the job waits for, if they are known. */
static uint64_t find_ranks(const struct job *job)
{
	const struct op *blocker;
	uint32_t locker;

	switch (job->obstacle) {
	case OBSTACLE_LIMITER:
		blocker = job_find_blocker(job);
		return blocker ? gathers_open(job->board, blocker->number,
					      blocker->group)
			       : NOBODY;
	case OBSTACLE_LOCK:
		locker = gathers_locker(job->board);
		return locker < GATHERS_RANKS ? UINT64_C(1) << locker : NOBODY;
	case OBSTACLE_PIECES:
		break;
	}
	return NOBODY;
}

static uint64_t find_left(const struct job *job)
{
	return board_left(job->board, find_ranks(job));
}

/* Tell whether the obstacle has gone. */
static bool is_met(const void *data)
{
	const struct job *job = data;

	switch (job->obstacle) {
	case OBSTACLE_LIMITER:
		return job_is_admitted(job);
	case OBSTACLE_LOCK:
		return gathers_locker(job->board) == UINT32_MAX;
	case OBSTACLE_PIECES:
		break;
	}
	return job_is_copied(job);
}

static bool is_hopeless(const void *data)
{
	const struct job *job = data;

	return !comm_is_alive(job->group->comm) || find_left(job);
}

static bool is_beside(const void *data)
{
	const struct job *job = data;
	const struct fsdp_comm *comm = job->group->comm;
	uint64_t ranks = find_ranks(job);

	return board_is_beside(job->board, comm->rank, ranks ? ranks : ~ranks);
}

/* Describe why the gather waits, as the rest of a sentence that begins with
 * "it". */
static const char *describe(const struct job *job, char *ret, size_t size)
{
	const struct fsdp_comm *comm = job->group->comm;
	const struct op *blocker = job_find_blocker(job);
	char names[AWAIT_TEXT];

	if (job->obstacle == OBSTACLE_LIMITER && blocker)
		(void)snprintf(
			ret, size,
			"waits for the limiter until '%s' is resharded, which "
			"%s has not done",
			job_name(comm, blocker->group),
			await_name_ranks(comm,
					 gathers_open(job->board,
						      blocker->number,
						      blocker->group),
					 names));
	else if (job->obstacle == OBSTACLE_LIMITER)
		(void)snprintf(ret, size, "waits for the limiter");
	else if (job->obstacle == OBSTACLE_LOCK)
		(void)snprintf(ret, size, "waits until %s has chosen memory",
			       await_name_ranks(comm, find_ranks(job), names));
	else
		(void)snprintf(ret, size, "is being gathered");
	return ret;
}

#define CAUSE_SIZE 512

static int fail_left(const struct job *job, uint64_t left, struct error *err)
{
	char names[AWAIT_TEXT];

	error_set(err, -ECONNABORTED, "%s left before '%s' was unsharded",
		  await_name_ranks(job->group->comm, left, names),
		  job->group->name);
	return comm_fail_run(job->group->comm, err);
}

int job_refuse_wait(const struct job *job, struct error *err)
{
	char cause[CAUSE_SIZE];

	return error_set(err, -ETIMEDOUT, "'%s' is not unsharded yet: it %s",
			 job->group->name, describe(job, cause, sizeof(cause)));
}

/* Return 0 if the caller must wait on. The obstacle may also have gone in the
 * meantime. */
static int look_around(const struct job *job, int64_t until_ns,
		       struct error *err)
{
	struct fsdp_comm *comm = job->group->comm;
	const struct interrupt *interrupt =
		&comm->client->connection.self.interrupt;
	int64_t now_ns = bell_now_ns();
	uint64_t left = find_left(job);
	char cause[CAUSE_SIZE];
	int r = comm_check_run(comm, err);

	if (r < 0 || is_met(job))
		return r;
	if (left)
		return fail_left(job, left, err);
	if (now_ns >= job->group->since_ns + comm->timeout_ms * MS_NS)
		return job_fail_late(job, describe(job, cause, sizeof(cause)),
				     err);
	if (interrupt_is_asked(interrupt))
		return interrupt_refuse(err);
	return now_ns >= until_ns ? job_refuse_wait(job, err) : 0;
}

/* Store when this rank began to wait for this gather, which is the start of the
 * other ranks' time-out. */
static void note_wait(const struct job *job)
{
	struct fsdp_group *group = job->group;
	const struct op *blocker = job_find_blocker(job);
	uint64_t what = blocker ? blocker->number : job->number;

	if (group->waits_for == what)
		return;
	group->waits_for = what;
	group->since_ns = bell_now_ns();
}

/* Return an enum bell_outcome, or -EINTR. */
static int wait_once(struct job *job, int64_t until_ns, struct error *err)
{
	const struct bell_wait how = {is_met, is_hopeless, is_beside, job};
	struct fsdp_comm *comm = job->group->comm;
	int64_t end_ns = await_end(comm, job->group->since_ns, until_ns);
	enum bell_outcome outcome;
	int64_t look_ns;
	int r;

	do {
		look_ns = liveness_next_ns(job->group->since_ns, end_ns);
		outcome =
			bell_wait(&job->board->page->gathering, &how, look_ns);
		r = outcome == BELL_AGAIN
			    ? comm_check_liveness(comm, find_ranks(job),
						  job->group->since_ns, look_ns,
						  end_ns, err)
			    : 0;
	} while (r > 0);
	return r < 0 ? r : (int)outcome;
}

int job_await(struct job *job, int64_t until_ns, struct error *err)
{
	int r = 0;

	note_wait(job);
	while (r == 0 && (r = wait_once(job, until_ns, err)) > 0) {
		r = look_around(job, until_ns, err);
		if (r == 0)
			r = idle_heed_inputs(job->group->comm, err);
		idle_heed_buffers(job->group->comm);
	}
	return r;
}
