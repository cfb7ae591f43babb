#include "client/rank/await.h"
#include "client/rank/gather_job.h"
#include "shm/bell.h"
#include <errno.h>
#include <stdio.h>

#define NOBODY UINT64_C(0)

/* --- waiting ------------------------------------------------------------- */

/* Return the ranks that the job waits for, if they are known. */
static uint64_t find_ranks(const void *data)
{
	const struct job *job = data;
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
	group->since_ns = bell_recent_ns();
}

int job_await(struct job *job, int64_t until_ns, struct error *err)
{
	const struct board_gather gather = {is_met, find_ranks, job};
	struct await await = {
		.goal = BOARD_GATHER,
		.gather = &gather,
		.until_ns = until_ns,
	};
	char cause[CAUSE_SIZE];
	uint64_t ranks;
	int r;

	note_wait(job);
	await.since_ns = job->group->since_ns;
	r = await_ranks(job->group->comm, &await, &ranks, err);
	switch (r) {
	case AWAIT_PENDING:
		return job_refuse_wait(job, err);
	case AWAIT_LATE:
		return job_fail_late(job, describe(job, cause, sizeof(cause)),
				     err);
	case AWAIT_LEFT:
		return fail_left(job, ranks, err);
	default:
		return r;
	}
}
