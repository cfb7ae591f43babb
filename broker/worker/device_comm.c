#include "broker/worker/device_comm.h"
#include "collective/job.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void init_rank(struct device_rank *rank, struct device_comm *comm,
		      const struct job_member *member)
{
	pthread_condattr_t attr;

	rank->comm = comm;
	rank->rank = member->rank;
	rank->uuid = member->device;
	rank->gate.timelines = TIMELINES_NULL;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&rank->has_work, &attr);
	pthread_condattr_destroy(&attr);
}

struct device_comm *device_comm_new(const struct job_comm *job)
{
	struct device_comm *comm = calloc(
		1, sizeof(*comm) + job->n_local * sizeof(comm->ranks[0]));

	if (!comm)
		return NULL;
	comm->id = job->comm;
	memcpy(comm->name, job->name, sizeof(comm->name) - 1);
	comm->n_world = job->n_world;
	comm->n_shards = job->n_shards;
	comm->timeout_ms = job->timeout_ms;
	comm->has_nccl_id = job->has_nccl_id;
	memcpy(comm->nccl_id, job->nccl_id, sizeof(comm->nccl_id));
	pthread_mutex_init(&comm->lock, NULL);
	pthread_mutex_init(&comm->id_lock, NULL);
	comm->n_ranks = job->n_local;
	for (uint32_t i = 0; i < job->n_local; i++)
		init_rank(&comm->ranks[i], comm, &job->members[i]);
	return comm;
}

void device_comm_free(struct device_comm *comm)
{
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		timelines_close(&comm->ranks[i].gate.timelines);
		pthread_cond_destroy(&comm->ranks[i].has_work);
	}
	pthread_mutex_destroy(&comm->lock);
	pthread_mutex_destroy(&comm->id_lock);
	free(comm);
}

bool device_comm_has_ended(struct device_comm *comm)
{
	bool has;

	pthread_mutex_lock(&comm->lock);
	has = comm->n_running == 0;
	pthread_mutex_unlock(&comm->lock);
	return has;
}

void device_comm_fail(struct device_comm *comm, const struct error *err)
{
	pthread_mutex_lock(&comm->lock);
	if (comm->failure.code == 0)
		comm->failure = *err;
	atomic_store(&comm->is_over, true);
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		pthread_cond_signal(&comm->ranks[i].has_work);
	pthread_mutex_unlock(&comm->lock);
}

int device_comm_take_id(struct device_comm *comm, const uint8_t **ret,
			struct error *err)
{
	int r = 0;

	pthread_mutex_lock(&comm->id_lock);
	if (!comm->has_nccl_id)
		r = nccl_id_make(comm->nccl_id, err);
	comm->has_nccl_id = r == 0;
	pthread_mutex_unlock(&comm->id_lock);
	*ret = comm->nccl_id;
	return r;
}
