#include "broker/worker/device_rank.h"
#include "broker/worker/device_comm.h"
#include "broker/worker/device_work.h"
#include "broker/worker/now.h"
#include "cuda/event_cache.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS     UINT64_C(1000000)
#define NS_PER_S      (1000 * NS_PER_MS)
#define PAUSE_MIN_NS  10000
#define PAUSE_MAX_NS  500000
#define PAUSE_GATE_NS 20000

/* --- taking shares ------------------------------------------------------- */

/* The caller has the lock. */
static void pause_for_work(struct device_rank *rank)
{
	uint64_t until_ns = now_ns() + rank->pause_ns;
	const struct timespec until = {
		.tv_sec = (time_t)(until_ns / NS_PER_S),
		.tv_nsec = (long)(until_ns % NS_PER_S),
	};

	(void)pthread_cond_timedwait(&rank->has_work, &rank->comm->lock,
				     &until);
	if (rank->pause_ns < PAUSE_MAX_NS)
		rank->pause_ns *= 2;
}

/* Returns NULL if there is no share yet. It waits only if the thread has
 * nothing else to look for. The caller has the lock. */
static struct device_share *take(struct device_rank *rank)
{
	struct device_share *share;

	if (!rank->first && rank->running)
		pause_for_work(rank);
	while (!rank->first && !rank->running && !rank->has_stale &&
	       rank->comm->failure.code == 0)
		pthread_cond_wait(&rank->has_work, &rank->comm->lock);
	share = rank->first;
	if (!share || rank->comm->failure.code < 0)
		return NULL;
	if (!share->is_prepared)
		return share; /* it stays in the queue */
	if (atomic_load(&share->job->n_unprepared) > 0) {
		pause_for_work(rank);
		return NULL;
	}
	rank->first = share->next;
	return share;
}

/* -ECANCELED: the communicator is over. */
static int next(struct device_rank *rank, struct device_share **ret,
		struct error *err)
{
	struct device_comm *comm = rank->comm;
	bool has_stale;
	int r;

	pthread_mutex_lock(&comm->lock);
	*ret = take(rank);
	has_stale = rank->has_stale && !rank->running && !*ret;
	if (has_stale)
		rank->has_stale = false;
	r = comm->failure.code;
	if (r < 0)
		*err = comm->failure;
	pthread_mutex_unlock(&comm->lock);
	if (has_stale)
		device_work_drop_groups(rank);
	return r;
}

/* --- doing them ---------------------------------------------------------- */

static void end_share(struct device_rank *rank, struct device_share *share)
{
	event_cache_put(share->done);
	rank->moved_ns = now_ns();
	rank->pause_ns = PAUSE_MIN_NS;
	device_share_end(share, share->failure.code ? &share->failure : NULL);
}

/*
 * A driver that maps or allocates may wait for all streams of the process.
 * Streams of other ranks are among them, and their collectives wait for this
 * rank. So no rank begins its share before all ranks have what they need.
 */
static int prepare(struct device_rank *rank, struct device_share *share,
		   struct error *err)
{
	struct device_comm *comm = rank->comm;
	int r = device_work_prepare(rank, share, err);

	if (r < 0)
		return r;
	share->is_prepared = true;
	if (atomic_fetch_sub(&share->job->n_unprepared, 1) > 1)
		return 0;
	pthread_mutex_lock(&comm->lock);
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		pthread_cond_signal(&comm->ranks[i].has_work);
	pthread_mutex_unlock(&comm->lock);
	return 0;
}

static int begin(struct device_rank *rank, struct device_share *share,
		 struct error *err)
{
	struct device_share **at = &rank->running;
	int r;

	device_share_begin(share);
	if (!rank->running)
		rank->moved_ns = now_ns();
	rank->pause_ns = PAUSE_MIN_NS;
	r = device_work_begin(rank, share, err);
	if (r == 0 && !share->done) {
		end_share(rank, share);
		return 0;
	}
	while (*at)
		at = &(*at)->next;
	share->next = NULL;
	*at = share;
	return r;
}

static int ask_events(struct device_rank *rank, struct error *err)
{
	struct device_share *share = rank->running;
	int r = 0;

	for (; share && r == 0; share = share->next) {
		CUresult result = cu.EventQuery(share->done->handle);

		share->is_done = result == CUDA_SUCCESS;
		if (result != CUDA_ERROR_NOT_READY)
			r = driver_error(err, result,
					 "cannot wait for a stream");
	}
	return r;
}

static void end_done(struct device_rank *rank)
{
	struct device_share **at = &rank->running;

	while (*at) {
		struct device_share *share = *at;

		if (!share->is_done) {
			at = &share->next;
			continue;
		}
		*at = share->next;
		end_share(rank, share);
	}
}

static int check_late(const struct device_rank *rank, struct error *err)
{
	const struct device_comm *comm = rank->comm;

	if (!rank->running ||
	    now_ns() - rank->moved_ns < comm->timeout_ms * NS_PER_MS)
		return 0;
	return error_set(err, -ETIMEDOUT,
			 "communicator '%s': rank %u has waited for %u ms in a "
			 "%s; another rank is late, or does something else",
			 comm->name, rank->rank, comm->timeout_ms,
			 rank->running->job->kind == JOB_DEVICE_GATHER
				 ? "gather"
				 : "reduction");
}

/* Somebody waits for each of these, so they are ended soon. */
static void open_gates(struct device_rank *rank)
{
	const struct device_share *share = rank->running;

	while (share && device_gate_open(&rank->gate, share))
		share = share->next;
	if (share && rank->pause_ns > PAUSE_GATE_NS)
		rank->pause_ns = PAUSE_GATE_NS;
}

/* NCCL reports a failure before it lets a stream go on, so the events are asked
 * first. */
static int look(struct device_rank *rank, struct error *err)
{
	int r;

	if (!rank->running)
		return 0;
	open_gates(rank);
	r = ask_events(rank, err);
	if (r == 0)
		r = nccl_comm_poll(rank->nccl.comm, err);
	if (r < 0)
		return r;
	if (r == 0)
		end_done(rank);
	return check_late(rank, err);
}

static int step(struct device_rank *rank, struct error *err)
{
	struct device_share *share;
	int r = next(rank, &share, err);

	if (r < 0)
		return r;
	if (!share)
		return look(rank, err);
	return share->is_prepared ? begin(rank, share, err)
				  : prepare(rank, share, err);
}

/* --- the end ------------------------------------------------------------- */

/* End all shares that have not ended; no more will come. */
static struct device_share *take_rest(struct device_rank *rank)
{
	struct device_share *rest = rank->running, *share;

	pthread_mutex_lock(&rank->comm->lock);
	while ((share = rank->first)) {
		rank->first = share->next;
		share->next = rest;
		rest = share;
	}
	pthread_mutex_unlock(&rank->comm->lock);
	rank->running = NULL;
	return rest;
}

/* No call of the driver can work in this process any more, or one does not
 * return. If several ranks see that, one of them says so. */
static void die(struct device_rank *rank, const struct error *err)
{
	static atomic_flag is_dying = ATOMIC_FLAG_INIT;
	struct device_share *share = take_rest(rank);

	while (atomic_flag_test_and_set(&is_dying))
		(void)pause();
	for (; share; share = share->next)
		device_job_send_done(share->job, err);
	fprintf(stderr, "fsdp-worker: %s\n", err->msg);
	_exit(EXIT_FAILURE);
}

static void end(struct device_rank *rank)
{
	struct device_comm *comm = rank->comm;
	struct device_share *share;
	struct error err;

	if (device_work_abort(rank, &err) < 0)
		die(rank, &err);
	share = take_rest(rank);
	while (share) {
		struct device_share *following = share->next;

		event_cache_put(share->done);
		device_share_end(share, &comm->failure);
		share = following;
	}
	device_work_close(rank);
	pthread_mutex_lock(&comm->lock);
	comm->n_running--;
	pthread_mutex_unlock(&comm->lock);
}

void *device_rank_run(void *data)
{
	struct device_rank *rank = data;
	struct error err;

	rank->pause_ns = PAUSE_MIN_NS;
	while (step(rank, &err) == 0)
		;
	device_comm_fail(rank->comm, &err);
	if (device_work_check(rank, &err) < 0)
		die(rank, &err);
	end(rank);
	return NULL;
}
