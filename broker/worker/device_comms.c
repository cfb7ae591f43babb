/*
 * The link's thread: it finds communicators, checks their jobs, and gives them
 * to the ranks.
 *
 * A communicator that was forgotten stays in the list until its threads have
 * ended; the next call that searches the list removes it.
 */
#include "broker/worker/device_comms.h"
#include "broker/worker/device_chunk.h"
#include "broker/worker/device_comm.h"
#include "broker/worker/store.h"
#include "collective/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the end ------------------------------------------------------------- */

static void join(struct device_comm *comm)
{
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (comm->ranks[i].is_started)
			pthread_join(comm->ranks[i].thread, NULL);
	}
	device_comm_free(comm);
}

static void sweep(struct device_comms *comms)
{
	struct device_comm **at = &comms->first;

	while (*at) {
		struct device_comm *comm = *at;

		if (!comm->is_forgotten || !device_comm_has_ended(comm)) {
			at = &comm->next;
			continue;
		}
		*at = comm->next;
		join(comm);
	}
}

static void forget(struct device_comm *comm)
{
	struct error over;

	error_set(&over, -ECANCELED, "communicator '%s' has ended", comm->name);
	comm->is_forgotten = true;
	device_comm_fail(comm, &over);
}

void device_comms_deinit(struct device_comms *comms)
{
	struct device_comm *comm;

	for (comm = comms->first; comm; comm = comm->next)
		forget(comm);
	while ((comm = comms->first)) {
		comms->first = comm->next;
		join(comm);
	}
}

/* --- finding ------------------------------------------------------------- */

static struct device_comm *find(const struct device_comms *comms, uint64_t id)
{
	struct device_comm *comm = comms->first;

	while (comm && (comm->id != id || comm->is_forgotten))
		comm = comm->next;
	return comm;
}

/* Finds the communicator of a job. -ECANCELED means that it was forgotten. */
static int find_for_job(const struct device_comms *comms, uint64_t id,
			struct device_comm **ret, struct error *err)
{
	*ret = find(comms, id);
	if (*ret)
		return 0;
	return error_set(err, -ECANCELED, "there is no communicator %" PRIu64,
			 id);
}

void device_comms_forget(struct device_comms *comms, uint64_t id)
{
	struct device_comm *comm = find(comms, id);

	if (comm)
		forget(comm);
	sweep(comms);
}

void device_comms_drop_plans(struct device_comms *comms)
{
	struct device_comm *comm = comms->first;

	for (; comm; comm = comm->next) {
		pthread_mutex_lock(&comm->lock);
		for (uint32_t i = 0; i < comm->n_ranks; i++) {
			comm->ranks[i].has_stale = true;
			pthread_cond_signal(&comm->ranks[i].has_work);
		}
		pthread_mutex_unlock(&comm->lock);
	}
}

/* --- giving -------------------------------------------------------------- */

static void append(struct device_rank *rank, struct device_share *share)
{
	share->next = NULL;
	*(rank->first ? &rank->last->next : &rank->first) = share;
	rank->last = share;
	pthread_cond_signal(&rank->has_work);
}

/* Every rank gets its share, or none does if the communicator is over. */
static int give(struct device_comm *comm, struct device_job *job,
		struct error *err)
{
	int r;

	pthread_mutex_lock(&comm->lock);
	r = comm->failure.code;
	if (r < 0)
		*err = comm->failure;
	for (uint32_t i = 0; i < comm->n_ranks && r == 0; i++)
		append(&comm->ranks[i], &job->shares[i]);
	pthread_mutex_unlock(&comm->lock);
	if (r < 0)
		device_job_drop(job);
	return r;
}

/* --- opening ------------------------------------------------------------- */

static int check_mesh(const struct job_comm *job, struct error *err)
{
	if (job->n_shards == 0 || job->n_world == 0 ||
	    job->n_world > PLAN_MAX_WORLD || job->n_world % job->n_shards ||
	    job->n_local == 0 || job->n_local > job->n_world ||
	    job->n_local > PLAN_MAX_RANKS)
		return error_set(err, -EINVAL,
				 "a communicator cannot have %u ranks here of "
				 "%u in all, in shards of %u",
				 job->n_local, job->n_world, job->n_shards);
	if (!job->has_nccl_id && job->n_local < job->n_world)
		return error_set(err, -EINVAL,
				 "the NCCL id for %u ranks, of which %u are on "
				 "this node, is missing",
				 job->n_world, job->n_local);
	return 0;
}

static int check_pair(const struct job_member *a, const struct job_member *b,
		      struct error *err)
{
	char text[DEVICE_TEXT_SIZE];

	if (a->rank == b->rank)
		return error_set(err, -EINVAL, "rank %u is in the list twice",
				 a->rank);
	if (memcmp(&a->device, &b->device, sizeof(a->device)) != 0)
		return 0;
	device_format(&a->device, text);
	return error_set(err, -EINVAL,
			 "ranks %u and %u are both on device %s, and NCCL "
			 "takes each device once in a process: give each rank "
			 "its own, or have the ranks run NCCL themselves "
			 "(FSDP_EXECUTOR_RANK)",
			 a->rank, b->rank, text);
}

static int check_members(const struct job_comm *job, struct error *err)
{
	int r = check_mesh(job, err);

	for (uint32_t i = 0; i < job->n_local && r == 0; i++) {
		const struct job_member *member = &job->members[i];

		if (member->rank >= job->n_world ||
		    device_uuid_is_host(&member->device))
			r = error_set(err, -EINVAL,
				      "rank %u of %u is not on a device",
				      member->rank, job->n_world);
		for (uint32_t k = 0; k < i && r == 0; k++)
			r = check_pair(&job->members[k], member, err);
	}
	return r;
}

static int start_thread(struct device_rank *rank, struct error *err)
{
	char name[16];
	int r = pthread_create(&rank->thread, NULL, device_rank_run, rank);

	if (r != 0)
		return error_errno(err, -r, "cannot start a thread for rank %u",
				   rank->rank);
	rank->is_started = true;
	snprintf(name, sizeof(name), "fsdp-rank/%u", rank->rank % 10000);
	(void)pthread_setname_np(rank->thread, name);
	return 0;
}

/* Their first shares are queued already. Those of ranks that do not start are
 * ended here. */
static void start_threads(struct device_comm *comm, struct device_job *job)
{
	struct error err = ERROR_NULL;
	uint32_t n = 0;

	comm->n_running = comm->n_ranks;
	while (n < comm->n_ranks && start_thread(&comm->ranks[n], &err) == 0)
		n++;
	if (n == comm->n_ranks)
		return;
	device_comm_fail(comm, &err);
	pthread_mutex_lock(&comm->lock);
	comm->n_running -= comm->n_ranks - n;
	pthread_mutex_unlock(&comm->lock);
	for (; n < comm->n_ranks; n++)
		device_share_end(&job->shares[n], &err);
}

static int open_comm(struct device_comms *comms, const struct job_comm *message,
		     struct error *err)
{
	struct device_comm *comm;
	struct device_job *job;
	int r = check_members(message, err);

	if (r == 0 && find(comms, message->comm))
		r = error_set(err, -EEXIST, "it exists already");
	if (r == 0)
		r = device_job_new(comms->sock_fd, JOB_COMM, message->number,
				   message->n_local, &job, err);
	if (r < 0)
		return r;
	comm = device_comm_new(message);
	if (!comm) {
		device_job_drop(job);
		return error_nomem(err, "it");
	}
	comm->next = comms->first;
	comms->first = comm;
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		append(&comm->ranks[i], &job->shares[i]);
	start_threads(comm, job);
	return 0;
}

int device_comms_open(struct device_comms *comms, const struct job_comm *job,
		      struct error *err)
{
	int r;

	sweep(comms);
	r = open_comm(comms, job, err);
	if (r < 0)
		return error_wrap(err, r, "communicator '%.*s'",
				  (int)sizeof(job->name), job->name);
	return 0;
}

int device_comms_take_timelines(struct device_comms *comms,
				const struct job_timelines *message, int fd,
				struct error *err)
{
	struct device_comm *comm;
	int own, r = find_for_job(comms, message->comm, &comm, err);

	if (r < 0)
		return r;
	if (message->member >= comm->n_ranks)
		return error_set(err, -EINVAL,
				 "communicator '%s' has no member %u",
				 comm->name, message->member);
	own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (own < 0)
		return error_errno(err, -errno, "cannot keep timelines");
	return device_gate_take(&comm->ranks[message->member].gate, own, err);
}

/* --- jobs ---------------------------------------------------------------- */

int device_comms_compare(struct device_comms *comms,
			 const struct job_compare *message, struct error *err)
{
	struct device_comm *comm;
	struct device_job *job;
	int r = find_for_job(comms, message->comm, &comm, err);

	if (r == 0)
		r = device_job_new(comms->sock_fd, JOB_COMPARE, message->number,
				   comm->n_ranks, &job, err);
	if (r < 0)
		return r;
	job->value = message->value;
	memcpy(job->what, message->what, sizeof(job->what) - 1);
	return give(comm, job, err);
}

/* Check a range of one rank, and take a reference to its chunk; with size 0
 * there is no range. */
static int take_range(struct device_comms *comms,
		      const struct device_rank *rank,
		      const struct job_range *range, uint64_t size,
		      const char *what, struct device_range *ret,
		      struct error *err)
{
	int r;

	if (size == 0)
		return 0;
	r = store_ref_range(comms->store, range, size, what, &ret->chunk, err);
	if (r < 0)
		return r;
	ret->offset = range->offset;
	ret->size = size;
	if (ret->chunk->device &&
	    device_chunk_is_on(ret->chunk->device, &rank->uuid))
		return 0;
	return error_set(err, -EINVAL, "the %s are not on the rank's device",
			 what);
}

static bool is_overlap(const struct device_range *a,
		       const struct device_range *b)
{
	return a->chunk && a->chunk == b->chunk &&
	       a->offset < b->offset + b->size &&
	       b->offset < a->offset + a->size;
}

static int take_gather(struct device_comms *comms,
		       const struct device_rank *rank,
		       const struct job_rank *from, struct device_share *share,
		       struct error *err)
{
	const struct plan *plan = &share->job->plan->layout->plan;
	uint64_t shards_size = plan->shards_size / plan->n_shards;
	uint64_t full_size = plan->full_size + wire_gather_tail(plan).size;
	int r = take_range(comms, rank, &from->gather.shards, shards_size,
			   "shards", &share->ranges[RANGE_SHARDS], err);

	if (r == 0)
		r = take_range(comms, rank, &from->gather.full, full_size,
			       "parameters", &share->ranges[RANGE_FULL], err);
	share->job->n_bytes += shards_size + plan->full_size;
	return r;
}

/* Take the value of the timeline at which the gradients are written. */
static int take_fence(const struct device_rank *rank,
		      const struct job_rank *from, struct device_share *share,
		      struct error *err)
{
	share->timeline = from->reduce.timeline;
	share->value = from->reduce.value;
	if (!share->timeline ||
	    (rank->gate.timelines.pages && share->timeline < TIMELINES))
		return 0;
	return error_set(err, -EINVAL, "there is no timeline %u",
			 share->timeline);
}

static int take_reduce(struct device_comms *comms,
		       const struct device_rank *rank,
		       const struct job_rank *from, struct device_share *share,
		       struct error *err)
{
	const struct plan *plan = &share->job->plan->layout->plan;
	const uint32_t partial = JOB_PARTIAL_IN | JOB_PARTIAL_OUT;
	uint32_t flags = share->job->flags;
	uint64_t grads_size = plan->grads_size / plan->n_shards;
	int r;

	share->job->n_bytes += plan->input_size + grads_size;
	r = take_range(comms, rank, &from->reduce.input,
		       plan->input_size + wire_reduce_tail(plan),
		       "input gradients", &share->ranges[RANGE_INPUT], err);
	if (r == 0)
		r = take_range(comms, rank, &from->reduce.grads,
			       flags & JOB_PARTIAL_OUT ? 0 : grads_size,
			       "gradients", &share->ranges[RANGE_GRADS], err);
	if (r == 0)
		r = take_range(
			comms, rank, &from->reduce.partial,
			flags & partial ? plan->partial_size / plan->n_shards
					: 0,
			"partial sums", &share->ranges[RANGE_PARTIAL], err);
	return r < 0 ? r : take_fence(rank, from, share, err);
}

static int take_share(struct device_comms *comms,
		      const struct device_rank *rank,
		      const struct job_rank *from, struct device_share *share,
		      struct error *err)
{
	const struct device_range *ranges = share->ranges;
	int r = share->job->kind == JOB_DEVICE_GATHER
			? take_gather(comms, rank, from, share, err)
			: take_reduce(comms, rank, from, share, err);

	if (r == 0 && (is_overlap(&ranges[0], &ranges[1]) ||
		       is_overlap(&ranges[0], &ranges[2]) ||
		       is_overlap(&ranges[1], &ranges[2])))
		r = error_set(err, -EINVAL, "its ranges of memory overlap");
	return r < 0 ? error_wrap(err, r, "rank %u", rank->rank) : 0;
}

static int check_plan(const struct device_comm *comm,
		      const struct store_plan *source, uint32_t flags,
		      struct error *err)
{
	const uint32_t partial = JOB_PARTIAL_IN | JOB_PARTIAL_OUT;
	const struct plan *plan = &source->layout->plan;

	if (!plan->policy.is_per_rank || plan->n_shards != comm->n_shards ||
	    plan->n_shards * plan->n_replicas != comm->n_world)
		return error_set(err, -EINVAL,
				 "plan %" PRIu64
				 " does not belong to communicator '%s'",
				 source->number, comm->name);
	if (flags & ~(JOB_ACCUMULATE | partial) ||
	    (flags & partial && plan->n_replicas == 1))
		return error_set(err, -EINVAL,
				 "flags 0x%x do not fit a reduction over %u "
				 "replicas",
				 flags, plan->n_replicas);
	return 0;
}

static int fill_job(struct device_comms *comms, const struct device_comm *comm,
		    const struct job_device *message, struct device_job *job,
		    struct error *err)
{
	int r = store_ref_plan(comms->store, message->plan, &job->plan, err);

	job->flags = message->flags;
	job->has_factor = message->has_factor;
	job->is_sum_forced = message->is_sum_forced;
	job->factor = message->factor;
	if (r == 0)
		r = check_plan(comm, job->plan, job->flags, err);
	for (uint32_t i = 0; i < comm->n_ranks && r == 0; i++)
		r = take_share(comms, &comm->ranks[i], &message->ranks[i],
			       &job->shares[i], err);
	return r;
}

int device_comms_run(struct device_comms *comms,
		     const struct job_device *message, struct error *err)
{
	struct device_comm *comm;
	struct device_job *job;
	int r = find_for_job(comms, message->comm, &comm, err);

	if (r == 0)
		r = device_job_new(comms->sock_fd, message->kind,
				   message->number, comm->n_ranks, &job, err);
	if (r < 0)
		return r;
	r = fill_job(comms, comm, message, job, err);
	if (r < 0) {
		device_job_drop(job);
		return r;
	}
	return give(comm, job, err);
}
