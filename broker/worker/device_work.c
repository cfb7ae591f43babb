#include "broker/worker/device_work.h"
#include "broker/worker/device_chunk.h"
#include "broker/worker/device_comm.h"
#include "collective/device/device_group.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#define IDLE_PAUSE_NS 1000000

/* A plan of which this rank has had a job. */
struct rank_group {
	struct rank_group *next;
	struct store_plan *source; /* a reference */
	struct plan plan;
	struct device_group *work;
};

/* --- opening ------------------------------------------------------------- */

/* The thread keeps these for as long as it lives. */
static int enter_device(struct device_rank *rank, struct error *err)
{
	const struct device *device;
	int r = device_find(&rank->uuid, &device, err);

	if (r == 0)
		r = context_enter(device, err);
	if (r == 0)
		rank->device = device;
	return r;
}

static int open_nccl(struct device_rank *rank, struct error *err)
{
	struct device_comm *comm = rank->comm;
	struct nccl_comm_options options = {
		.name = comm->name,
		.device = rank->device,
		.n_shards = comm->n_shards,
		.n_replicas = comm->n_world / comm->n_shards,
		.rank = rank->rank,
		.timeout_ms = comm->timeout_ms,
		.is_cancelled = &comm->is_over,
	};
	int r = device_comm_take_id(comm, &options.id, err);

	if (r == 0)
		r = nccl_rank_open(&options, comm->n_ranks < comm->n_world,
				   &rank->nccl, err);
	return r < 0 ? r : nccl_comm_wait(rank->nccl.comm, err);
}

static int open_rank(struct device_rank *rank, struct error *err)
{
	int r = enter_device(rank, err);

	return r < 0 ? r : open_nccl(rank, err);
}

/* --- comparing ----------------------------------------------------------- */

/* It is a result that ranks differ, and no failure of the communicator. */
static int verify_equal(struct device_rank *rank, struct device_share *share,
			struct error *err)
{
	const struct device_job *job = share->job;
	struct nccl_rank *own = &rank->nccl;
	int r;

	if (!own->words)
		return 0;
	r = nccl_rank_begin_verify(own, job->value, err);
	if (r == 0)
		r = nccl_comm_wait_stream(own->comm, own->gather_stream, err);
	if (r < 0)
		return r;
	r = nccl_rank_end_verify(own, job->value, job->what, err);
	if (r != -EINVAL)
		return r;
	share->failure = *err;
	return 0;
}

/* --- groups -------------------------------------------------------------- */

static void group_free(struct rank_group *group)
{
	device_group_free(group->work);
	store_unref_plan(group->source);
	free(group);
}

static int group_new(struct device_rank *rank, struct store_plan *plan,
		     struct rank_group **ret, struct error *err)
{
	struct rank_group *group = calloc(1, sizeof(*group));
	int r;

	if (!group)
		return error_nomem(err, "a group");
	group->source = store_keep_plan(plan);
	group->plan = plan->layout->plan;
	r = device_group_new(&group->plan, rank->device, rank->rank,
			     &group->work, err);
	if (r < 0) {
		group_free(group);
		return r;
	}
	group->next = rank->groups;
	rank->groups = group;
	*ret = group;
	return 0;
}

static int want_group(struct device_rank *rank, struct store_plan *plan,
		      struct device_group **ret, struct error *err)
{
	struct rank_group *group = rank->groups;
	int r = 0;

	while (group && group->source != plan)
		group = group->next;
	if (!group)
		r = group_new(rank, plan, &group, err);
	if (r == 0)
		*ret = group->work;
	return r;
}

void device_work_drop_groups(struct device_rank *rank)
{
	struct rank_group **at = &rank->groups;

	while (*at) {
		struct rank_group *group = *at;

		if (!atomic_load(&group->source->is_forgotten)) {
			at = &group->next;
			continue;
		}
		*at = group->next;
		group_free(group);
	}
}

/* --- gathers and reductions ---------------------------------------------- */

/* Gives address 0 if there is no range. */
static int find_address(struct device_rank *rank,
			const struct device_range *range, CUdeviceptr *ret,
			struct error *err)
{
	int r;

	*ret = 0;
	if (!range->chunk)
		return 0;
	r = device_chunk_map(range->chunk->device, rank->device, ret, err);
	if (r == 0)
		*ret += range->offset;
	return r;
}

int device_work_prepare(struct device_rank *rank, struct device_share *share,
			struct error *err)
{
	struct device_group *group;
	CUdeviceptr address;
	int r = want_group(rank, share->job->plan, &group, err);

	for (uint32_t i = 0; i < N_RANGES && r == 0; i++)
		r = find_address(rank, &share->ranges[i], &address, err);
	return r;
}

static int record(struct device_rank *rank, CUstream stream,
		  struct device_share *share, struct error *err)
{
	int r = event_cache_take(rank->device, EVENT_NO_TIMING, &share->done,
				 err);

	if (r < 0)
		return r;
	return driver_error(err, cu.EventRecord(share->done->handle, stream),
			    "cannot record an event on a stream");
}

static int gather(struct device_rank *rank, struct device_share *share,
		  struct error *err)
{
	CUdeviceptr shards, full;
	struct device_group *group;
	int r = want_group(rank, share->job->plan, &group, err);

	if (r == 0)
		r = find_address(rank, &share->ranges[RANGE_SHARDS], &shards,
				 err);
	if (r == 0)
		r = find_address(rank, &share->ranges[RANGE_FULL], &full, err);
	if (r == 0)
		r = device_group_gather(group, rank->nccl.comm, shards, full,
					rank->nccl.gather_stream, err);
	return r < 0 ? r : record(rank, rank->nccl.gather_stream, share, err);
}

_Static_assert((int)JOB_ACCUMULATE == (int)DEVICE_REDUCE_ACCUMULATE &&
		       (int)JOB_PARTIAL_IN == (int)DEVICE_REDUCE_PARTIAL_IN &&
		       (int)JOB_PARTIAL_OUT == (int)DEVICE_REDUCE_PARTIAL_OUT,
	       "the flags are handed on as they are");

static int reduce(struct device_rank *rank, struct device_share *share,
		  struct error *err)
{
	const struct device_job *job = share->job;
	struct device_reduce reduce = {
		.flags = job->flags,
		.has_factor = job->has_factor,
		.is_sum_forced = job->is_sum_forced,
		.factor = job->factor,
	};
	struct device_group *group;
	int r = want_group(rank, job->plan, &group, err);

	if (r == 0)
		r = find_address(rank, &share->ranges[RANGE_INPUT],
				 &reduce.input, err);
	if (r == 0)
		r = find_address(rank, &share->ranges[RANGE_GRADS],
				 &reduce.grads, err);
	if (r == 0)
		r = find_address(rank, &share->ranges[RANGE_PARTIAL],
				 &reduce.partial, err);
	if (r == 0)
		r = device_gate_wait(&rank->gate, rank->device,
				     rank->nccl.reduce_stream, share, err);
	if (r == 0)
		r = device_group_reduce(group, rank->nccl.comm, &reduce,
					rank->nccl.reduce_stream, err);
	return r < 0 ? r : record(rank, rank->nccl.reduce_stream, share, err);
}

int device_work_begin(struct device_rank *rank, struct device_share *share,
		      struct error *err)
{
	switch (share->job->kind) {
	case JOB_COMM:
		return open_rank(rank, err);
	case JOB_COMPARE:
		return verify_equal(rank, share, err);
	case JOB_DEVICE_GATHER:
		return gather(rank, share, err);
	default:
		return reduce(rank, share, err);
	}
}

/* --- the end ------------------------------------------------------------- */

int device_work_check(const struct device_rank *rank, struct error *err)
{
	CUresult result;

	if (!rank->nccl.gather_stream)
		return 0;
	result = cu.StreamQuery(rank->nccl.gather_stream);
	if (!driver_is_sticky(result))
		return 0;
	return driver_error(err, result, "communicator '%s', rank %u, on %s",
			    rank->comm->name, rank->rank, rank->device->name);
}

/* The streams wait for nothing but NCCL, which was aborted, and the gate, which
 * is open. */
static int await_idle(const struct device_rank *rank, struct error *err)
{
	const struct timespec pause = {.tv_nsec = IDLE_PAUSE_NS};
	uint32_t left_ms = NCCL_END_MS;

	while (!nccl_rank_is_idle(&rank->nccl)) {
		if (left_ms-- == 0)
			return error_set(err, -ETIMEDOUT,
					 "communicator '%s': the work on the "
					 "streams of rank %u has not finished",
					 rank->comm->name, rank->rank);
		(void)nanosleep(&pause, NULL);
	}
	return 0;
}

int device_work_abort(struct device_rank *rank, struct error *err)
{
	int r;

	device_gate_end(&rank->gate);
	r = nccl_comm_abort(&rank->nccl.comm, err);
	return r < 0 ? r : await_idle(rank, err);
}

void device_work_close(struct device_rank *rank)
{
	while (rank->groups) {
		struct rank_group *group = rank->groups;

		rank->groups = group->next;
		group_free(group);
	}
	nccl_rank_free(&rank->nccl);
	device_gate_close(&rank->gate);
	if (rank->device)
		context_leave();
}
