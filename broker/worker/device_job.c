#include "broker/worker/device_job.h"
#include "broker/worker/link.h"
#include "broker/worker/now.h"
#include <stdlib.h>
#include <string.h>

int device_job_new(int sock_fd, uint32_t kind, uint64_t number,
		   uint32_t n_shares, struct device_job **ret,
		   struct error *err)
{
	bool has_ranges =
		kind == JOB_DEVICE_GATHER || kind == JOB_DEVICE_REDUCE;
	struct device_job *job =
		calloc(1, sizeof(*job) + n_shares * sizeof(job->shares[0]));

	if (!job)
		return error_nomem(err, "the job");
	job->sock_fd = sock_fd;
	job->kind = kind;
	job->number = number;
	job->n_left = job->n_shares = n_shares;
	pthread_mutex_init(&job->lock, NULL);
	job->n_unprepared = has_ranges ? n_shares : 0;
	for (uint32_t i = 0; i < n_shares; i++) {
		job->shares[i].job = job;
		job->shares[i].is_prepared = !has_ranges;
	}
	*ret = job;
	return 0;
}

static void give_back(struct device_job *job)
{
	for (uint32_t i = 0; i < job->n_shares; i++)
		for (uint32_t k = 0; k < N_RANGES; k++)
			store_unref_chunk(job->shares[i].ranges[k].chunk);
	store_unref_plan(job->plan);
}

static void job_free(struct device_job *job)
{
	pthread_mutex_destroy(&job->lock);
	free(job);
}

void device_job_drop(struct device_job *job)
{
	give_back(job);
	job_free(job);
}

void device_share_begin(struct device_share *share)
{
	struct device_job *job = share->job;

	pthread_mutex_lock(&job->lock);
	if (!job->begin_ns)
		job->begin_ns = now_ns();
	pthread_mutex_unlock(&job->lock);
}

void device_job_send_done(const struct device_job *job, const struct error *err)
{
	struct job_done done = {.kind = JOB_DONE, .number = job->number};

	if (err->code < 0) {
		done.code = err->code;
		memcpy(done.sentence, err->msg, sizeof(done.sentence) - 1);
	} else {
		done.n_bytes = job->n_bytes;
		done.ns = job->end_ns - job->begin_ns;
	}
	/* A peer that closed the link does not need it, and the link's thread
	 * will see that the link is closed. */
	link_send_done(job->sock_fd, &done);
}

void device_share_end(struct device_share *share, const struct error *err)
{
	struct device_job *job = share->job;
	bool is_last;

	pthread_mutex_lock(&job->lock);
	if (err && job->failure.code == 0)
		job->failure = *err;
	is_last = --job->n_left == 0;
	pthread_mutex_unlock(&job->lock);
	if (!is_last)
		return;
	job->end_ns = now_ns();
	/* This comes before the broker learns that the job is done: what it
	 * then forgets is unmapped at once. */
	give_back(job);
	device_job_send_done(job, &job->failure);
	job_free(job);
}
