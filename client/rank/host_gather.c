#include "client/rank/host_gather.h"
#include "client/rank/await.h"
#include "client/rank/gather_job.h"
#include "client/rank/host_group.h"
#include "client/rank/idle.h"
#include "client/rank/run_board.h"
#include "collective/host/kernel.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the communicator's -------------------------------------------------- */

int host_gather_init(struct fsdp_comm *comm,
		     const struct comm_join_request *joined, uint32_t direct,
		     struct error *err)
{
	struct gatherer *gatherer;

	if (!(direct & COMM_DIRECT_GATHER) || !comm->verdict)
		return 0;
	gatherer = calloc(1, sizeof(*gatherer));
	if (!gatherer)
		return error_nomem(err, "a communicator");
	gatherer->window = (struct limiter_options){
		.limit = joined->limit < GATHERS_BUFFERS ? joined->limit
							 : GATHERS_BUFFERS,
		.limit_bytes = joined->limit_bytes,
	};
	gatherer->kernels = kernels_best();
	comm->gatherer = gatherer;
	return 0;
}

void host_gather_end_handles(struct fsdp_comm *comm)
{
	struct gatherer *gatherer = comm->gatherer;

	for (uint32_t i = 0; gatherer && i < gatherer->n_buffers; i++) {
		fsdp_free(gatherer->buffers[i].tensor);
		gatherer->buffers[i].tensor = NULL;
	}
}

/* The handles have ended already, or end with the connection. */
void host_gather_deinit(struct fsdp_comm *comm)
{
	if (!comm->gatherer)
		return;
	free(comm->gatherer->ops);
	free(comm->gatherer->buffers);
	free(comm->gatherer);
	comm->gatherer = NULL;
}

bool host_gather_is_group(const struct fsdp_group *group)
{
	return group->host && group->comm->gatherer && !group->is_in_place;
}

uint64_t host_gather_count(const struct fsdp_comm *comm)
{
	return comm->gatherer ? comm->gatherer->number : 0;
}

static int reserve_op(struct gatherer *gatherer, struct error *err)
{
	size_t max = gatherer->max_ops ? 2 * gatherer->max_ops : 16;
	struct op *ops;

	if (gatherer->n_ops < gatherer->max_ops)
		return 0;
	ops = realloc(gatherer->ops, max * sizeof(*ops));
	if (!ops)
		return error_nomem(err, "an unshard");
	gatherer->ops = ops;
	gatherer->max_ops = max;
	return 0;
}

/* --- beginning ----------------------------------------------------------- */

static int refuse_order(const struct fsdp_group *group,
			const struct gathers_turn *turn, struct error *err)
{
	const struct fsdp_comm *comm = group->comm;

	return error_set(err, -EINVAL,
			 "rank %u (pid %d) unshards '%s', but the ranks' next "
			 "one is '%s', which rank %u began; all must unshard "
			 "in the same order",
			 comm->rank, (int)getpid(), group->name,
			 job_name(comm, turn->group), turn->rank);
}

/* Check that no other rank has committed before this gather. A rank that has
 * committed has begun all gathers before its commit, so this rank may begin a
 * gather that another rank has begun. */
static int check_commits(const struct fsdp_group *group, struct error *err)
{
	const struct fsdp_comm *comm = group->comm;
	struct gatherer *gatherer = comm->gatherer;
	struct gathers_turn turn;
	uint32_t rank;

	if (!gathers_find_commit(&comm->board, gatherer->n_commits + 1,
				 &rank) ||
	    gathers_look(&comm->board, gatherer->number + 1, &turn))
		return 0;
	return error_set(err, -EINVAL,
			 "rank %u (pid %d) unshards '%s', but rank %u commits "
			 "next; all must do the same in the same order",
			 comm->rank, (int)getpid(), group->name, rank);
}

static int check_begin(struct fsdp_group *group, struct error *err)
{
	int r = run_board_open(group->comm, err);

	if (r == 0)
		r = check_commits(group, err);
	return r < 0 ? r : reserve_op(group->comm->gatherer, err);
}

static void note_begun(struct job *job, bool is_first)
{
	struct gatherer *gatherer = job->gatherer;
	struct fsdp_group *group = job->group;
	struct gathers_rank *own = gathers_of(job->board, group->comm->rank);

	gatherer->number = job->number;
	group->open = job->number;
	gatherer->ops[gatherer->n_ops++] = (struct op){
		.number = job->number,
		.bytes = job_size(group),
		.group = group->index,
		.is_exempt = group->host->plan.policy.stays_unsharded,
	};
	if (!is_first)
		return;
	job_count(&own->n_unshards, 1);
	if (!job_is_admitted(job))
		job_count(&own->n_limited, 1);
}

int host_gather_unshard(struct fsdp_group *group, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	struct gathers_turn turn;
	enum gathers_begun begun;
	struct job job;
	int r;

	job = job_of(group, comm->gatherer->number + 1);
	if (comm->board.page)
		job_forget_over(&job);
	r = check_begin(group, err);
	if (r < 0)
		return r;
	begun = gathers_begin(&comm->board, comm->rank, job.number,
			      group->index, &turn);
	if (begun == GATHERS_OTHER)
		return refuse_order(group, &turn, err);
	if (begun == GATHERS_IS_FAR)
		return error_set(err, -EBUSY,
				 "rank %u is more than %d unshards ahead of "
				 "others; wait for one of them",
				 comm->rank, GATHERS_AHEAD);
	note_begun(&job, begun == GATHERS_FIRST);
	return 0;
}

static int end_work(const struct job *job)
{
	struct fsdp_group *group = job->group;

	group->whole = job->number;
	group->gathered = job_size(group) ? job_memory(job) : NULL;
	return 0;
}

int host_gather_wait(struct fsdp_group *group, uint64_t sequence,
		     int32_t timeout_ms, struct error *err)
{
	struct job job = job_of(group, sequence);
	int64_t until_ns = await_until(timeout_ms);
	int r;

	while ((r = job_advance(&job, UINT32_MAX, timeout_ms, err)) ==
	       JOB_PENDING) {
		r = job_await(&job, until_ns, err);
		if (r < 0)
			return r;
	}
	return r < 0 ? r : end_work(&job);
}

int host_gather_test(struct fsdp_group *group, uint64_t sequence,
		     struct error *err)
{
	struct job job = job_of(group, sequence);
	int r = group_check_open(group, sequence, err);

	if (r == 0)
		r = comm_check_run(group->comm, err);
	if (r == 0)
		r = job_advance(&job, 1, 0, err);
	if (r == 0)
		return end_work(&job);
	if (r == JOB_PENDING) {
		(void)job_refuse_wait(&job, err);
		err->code = -EAGAIN;
	}
	return r == -ETIMEDOUT || r == JOB_PENDING ? -EAGAIN : r;
}

/* --- ending -------------------------------------------------------------- */

static int refuse_mesh(const struct fsdp_group *group, uint32_t n_mesh,
		       uint32_t rank, uint32_t mesh, struct error *err)
{
	return error_set(err, -EINVAL,
			 "rank %u reshards '%s' to a mesh of %u ranks, but "
			 "rank %u resharded it to a mesh of %u (0 means no "
			 "mesh); all must do the same",
			 group->comm->rank, group->name, n_mesh, rank, mesh);
}

/* Keep the memory for the group until the next step. This rank may have waited
 * for the gather long ago, so a new time-out begins. */
static int keep(struct job *job, struct error *err)
{
	struct fsdp_group *group = job->group;
	int r = 0;

	group->waits_for = 0;
	job->obstacle = OBSTACLE_LOCK;
	while (r == 0 && !gathers_lock(job->board, group->comm->rank))
		r = job_await(job, INT64_MAX, err);
	if (r < 0)
		return r;
	gathers_keep(job->board, job->number, group->index, group->step);
	gathers_unlock(job->board);
	return 0;
}

int host_gather_reshard(struct fsdp_group *group, uint32_t n_mesh,
			struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	struct job job = job_of(group, group->open);
	uint32_t rank, mesh;
	int r;

	if (!gathers_set_mesh(&comm->board, comm->rank, job.number,
			      group->index, n_mesh, &rank, &mesh))
		return refuse_mesh(group, n_mesh, rank, mesh, err);
	r = n_mesh ? keep(&job, err) : 0;
	if (r < 0)
		return r;
	group->open = 0;
	group->gathered = NULL;
	gathers_end(&comm->board, comm->rank, job.number, group->index);
	return idle_heed(comm, err);
}

/* --- committing ---------------------------------------------------------- */

/* The commit is written before the check. A rank that begins a gather checks
 * first and then writes, so at the same time both can miss each other. Then the
 * broker refuses the second commit, whose number of gathers differs. */
int host_gather_begin_commit(struct fsdp_comm *comm, struct error *err)
{
	struct gatherer *gatherer = comm->gatherer;
	struct gathers_turn turn;
	int r;

	if (!gatherer)
		return 0;
	idle_heed_buffers(comm);
	r = run_board_open(comm, err);
	if (r < 0)
		return r;
	gathers_commit(&comm->board, comm->rank, ++gatherer->n_commits);
	if (!gathers_look(&comm->board, gatherer->number + 1, &turn))
		return 0;
	host_gather_undo_commit(comm);
	return error_set(err, -EINVAL,
			 "rank %u commits, but the ranks' next step is to "
			 "unshard '%s', which rank %u began",
			 comm->rank, job_name(comm, turn.group), turn.rank);
}

void host_gather_undo_commit(struct fsdp_comm *comm)
{
	if (comm->gatherer)
		gathers_commit(&comm->board, comm->rank,
			       --comm->gatherer->n_commits);
}
