#include "client/rank/gather_job.h"
#include "client/rank/await.h"
#include "client/rank/host_group.h"
#include "client/rank/idle.h"
#include "collective/host/gather.h"
#include "proto/failpoint.h"
#include "shm/board.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The number of times that memory can be lost: once for each rank that leaves.
 * If it is lost more often, a rank has written invalid words. */
#define MAX_LOST (FSDP_MAX_RANKS + 1)

struct job job_of(struct fsdp_group *group, uint64_t number)
{
	return (struct job){
		.group = group,
		.gatherer = group->comm->gatherer,
		.board = &group->comm->board,
		.number = number,
	};
}

uint64_t job_size(const struct fsdp_group *group)
{
	const struct plan *plan = &group->host->plan;

	return plan->full_size * plan->n_replicas;
}

const char *job_name(const struct fsdp_comm *comm, uint32_t index)
{
	const struct fsdp_group *group = comm->groups;

	while (group && group->index != index)
		group = group->next;
	return group ? group->name : "another group";
}

void job_count(_Atomic uint64_t *counter, uint64_t n)
{
	/* Relaxed order is enough, because the counter has one writer and is
	 * only displayed. */
	atomic_store_explicit(
		counter,
		atomic_load_explicit(counter, memory_order_relaxed) + n,
		memory_order_relaxed);
}

/* --- the limiter --------------------------------------------------------- */

static bool is_over(const struct job *job, const struct op *op)
{
	return !gathers_open(job->board, op->number, op->group);
}

/* Once this is true it remains true (limiter.h). */
bool job_is_admitted(const struct job *job)
{
	const struct gatherer *gatherer = job->gatherer;
	struct window window = window_of(&gatherer->window);

	for (size_t i = 0; i < gatherer->n_ops; i++) {
		const struct op *op = &gatherer->ops[i];

		if (op->number < job->number && is_over(job, op))
			continue;
		if (!window_admit(&window, op->bytes, op->is_exempt))
			return false;
		if (op->number == job->number)
			break;
	}
	return true;
}

const struct op *job_find_blocker(const struct job *job)
{
	const struct gatherer *gatherer = job->gatherer;

	for (size_t i = 0; i < gatherer->n_ops; i++) {
		const struct op *op = &gatherer->ops[i];

		if (op->number < job->number && !op->is_exempt &&
		    !is_over(job, op))
			return op;
	}
	return NULL;
}

void job_forget_over(struct job *job)
{
	struct gatherer *gatherer = job->gatherer;
	size_t n = 0;

	for (size_t i = 0; i < gatherer->n_ops; i++) {
		if (!is_over(job, &gatherer->ops[i]))
			gatherer->ops[n++] = gatherer->ops[i];
	}
	gatherer->n_ops = n;
}

/* --- memory -------------------------------------------------------------- */

static int refuse_board(const struct fsdp_comm *comm, struct error *err)
{
	return error_set(err, -EPROTO,
			 "the board of communicator '%s' is damaged: a rank "
			 "has overwritten it; leave and join again",
			 comm->name);
}

static int reserve_buffer(struct gatherer *gatherer, uint32_t i,
			  struct error *err)
{
	struct own_buffer *buffers;

	if (i < gatherer->n_buffers)
		return 0;
	buffers = realloc(gatherer->buffers, (i + 1) * sizeof(*buffers));
	if (!buffers)
		return error_nomem(err, "a buffer");
	memset(buffers + gatherer->n_buffers, 0,
	       (i + 1 - gatherer->n_buffers) * sizeof(*buffers));
	gatherer->buffers = buffers;
	gatherer->n_buffers = i + 1;
	return 0;
}

int job_fail_late(const struct job *job, const char *cause, struct error *err)
{
	struct fsdp_comm *comm = job->group->comm;

	error_set(err, -ECONNABORTED,
		  "group '%s' was not unsharded within %d ms: it %s",
		  job->group->name, comm->timeout_ms, cause);
	return comm_fail_run(comm, err);
}

/* Ask the broker for the memory, which these numbers identify. A rank waits for
 * memory no longer than for other ranks. */
static int ask_memory(const struct job *job, int32_t timeout_ms,
		      struct fsdp_tensor **ret, struct error *err)
{
	struct fsdp_comm *comm = job->group->comm;
	bool is_last = timeout_ms < 0 || timeout_ms > comm->timeout_ms;
	struct request request = {
		.kind = MESSAGE_GATHER_BUFFER,
		.gather_buffer = {.group = job->group->id,
				  .buffer = job->fill.buffer,
				  .version = job->fill.version},
	};
	int r = idle_ask(comm, &request,
			 await_until(is_last ? comm->timeout_ms : timeout_ms),
			 job_size(job->group), ret, err);

	if (r != -ETIMEDOUT || !is_last)
		return r;
	return job_fail_late(job, err->msg, err);
}

static uint64_t size_of(const struct fsdp_tensor *tensor)
{
	return desc_rest(tensor_desc(tensor))->size;
}

/* Find or map the memory. The board may say that a buffer which this process
 * has already is now for another group, or that its memory was replaced. */
static int find_memory(const struct job *job, int32_t timeout_ms,
		       struct error *err)
{
	struct fsdp_comm *comm = job->group->comm;
	struct gatherer *gatherer = job->gatherer;
	struct own_buffer *buffer;
	uint32_t recalls = board_recalls(job->board);
	int r = reserve_buffer(gatherer, job->fill.buffer, err);

	if (r < 0)
		return r;
	buffer = &gatherer->buffers[job->fill.buffer];
	if (buffer->tensor && buffer->version == job->fill.version)
		return size_of(buffer->tensor) >= job_size(job->group)
			       ? 0
			       : refuse_board(comm, err);
	idle_drop_stale(comm);
	if (idle_is_in_use(comm, buffer))
		return refuse_board(comm, err);
	idle_drop_buffer(buffer);
	r = ask_memory(job, timeout_ms, &buffer->tensor, err);
	if (r < 0)
		return r;
	buffer->version = job->fill.version;
	buffer->recalls = recalls;
	return 0;
}

struct fsdp_tensor *job_memory(const struct job *job)
{
	return job->gatherer->buffers[job->fill.buffer].tensor;
}

/* Find the buffer of the gather, or choose one. Returns 0 when `fill` belongs
 * to this gather, or JOB_PENDING with an obstacle. */
static int find_fill(struct job *job, struct error *err)
{
	const struct fsdp_group *group = job->group;
	int r;

	while ((r = gathers_find(job->board, job->number, group->index,
				 &job->fill)) == 0) {
		if (!gathers_lock(job->board, group->comm->rank)) {
			job->obstacle = OBSTACLE_LOCK;
			return JOB_PENDING;
		}
		r = gathers_choose(job->board, job->number, group->index,
				   job_size(group), group->step);
		gathers_unlock(job->board);
		if (r < 0)
			break;
	}
	return r < 0 ? refuse_board(group->comm, err) : 0;
}

/* Write that the memory is lost, because the last rank that had it has left. */
static int lose_memory(struct job *job)
{
	const struct fsdp_group *group = job->group;

	if (!gathers_lock(job->board, group->comm->rank)) {
		job->obstacle = OBSTACLE_LOCK;
		return JOB_PENDING;
	}
	gathers_lose(job->board, group->index, &job->fill);
	gathers_unlock(job->board);
	return 0;
}

/* Find the buffer and its memory. Returns 0, or JOB_PENDING with an
 * obstacle. */
static int find_filled(struct job *job, int32_t timeout_ms, struct error *err)
{
	for (int i = 0; i < MAX_LOST; i++) {
		int r = find_fill(job, err);

		if (r == 0)
			r = find_memory(job, timeout_ms, err);
		if (r == -ESTALE)
			r = lose_memory(job);
		else
			return r;
		if (r != 0)
			return r;
	}
	return refuse_board(job->group->comm, err);
}

/* --- copying ------------------------------------------------------------- */

static struct gather gather_of(const struct job *job)
{
	const struct fsdp_group *group = job->group;
	const struct plan *plan = &group->host->plan;

	return (struct gather){
		.layout = group->host->layout,
		.kernels = job->gatherer->kernels,
		.shards = group->shards[group->side]->data,
		.full = job_memory(job)->data,
		.task_size = gather_task_size(plan, group->comm->n_shards *
							    plan->n_replicas),
	};
}

static void end_piece(struct job *job, const struct gather *gather)
{
	struct gathers_rank *own =
		gathers_of(job->board, job->group->comm->rank);

	if (!pieces_end_one(gathers_pieces(job->board, job->fill.buffer),
			    job->fill.lap, job->n_pieces))
		return;
	failpoint("host_gather.done");
	bell_ring(&job->board->page->gathering);
	board_count_gathered(job->board, job->group->index);
	job_count(&own->n_gathers, 1);
	job_count(&own->n_bytes, gather_count_bytes(gather));
}

/* Copy at most `max` pieces, but no more than there are. If a rank writes that
 * the same piece must be copied again, other ranks thus do not copy without
 * end. Can return -ECONNABORTED. */
static int copy_pieces(struct job *job, uint32_t max, struct error *err)
{
	struct pieces *pieces = gathers_pieces(job->board, job->fill.buffer);
	const struct gather gather = gather_of(job);
	uint32_t i = 0;

	job->n_pieces = (uint32_t)gather_count_tasks(&gather);
	if (max > job->n_pieces)
		max = job->n_pieces;
	while (max-- > 0 && (i = pieces_take(pieces, job->fill.lap,
					     job->n_pieces)) != PIECES_NONE) {
		int r = comm_check_run(job->group->comm, err);

		if (r < 0)
			return r;
		failpoint("host_gather.taken");
		gather_run(&gather, i);
		failpoint("host_gather.copied");
		end_piece(job, &gather);
	}
	return 0;
}

bool job_is_copied(const struct job *job)
{
	return pieces_are_done(gathers_pieces(job->board, job->fill.buffer),
			       job->fill.lap, job->n_pieces);
}

int job_advance(struct job *job, uint32_t max, int32_t timeout_ms,
		struct error *err)
{
	int r;

	job->obstacle = OBSTACLE_LIMITER;
	if (!job_is_admitted(job))
		return JOB_PENDING;
	if (!job_size(job->group))
		return 0;
	r = find_filled(job, timeout_ms, err);
	if (r == 0)
		r = copy_pieces(job, max, err);
	if (r != 0 || job_is_copied(job))
		return r;
	job->obstacle = OBSTACLE_PIECES;
	return JOB_PENDING;
}
