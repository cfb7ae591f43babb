/*
 * A communicator on devices: its ranks of this node, each of which is a thread
 * (device_rank.h), so that nothing that NCCL makes one rank wait for keeps
 * another from doing its part.
 *
 * With the first failure a communicator is over, for all ranks and jobs. What
 * runs is aborted.
 */
#pragma once
#include "broker/worker/device_rank.h"
#include "collective/job.h"

struct error;

struct device_comm {
	struct device_comm *next;
	uint64_t id;
	char name[JOB_MAX_TEXT]; /* for sentences */
	uint32_t n_world, n_shards, timeout_ms;
	bool is_forgotten;       /* the link's thread's */
	atomic_bool is_over;     /* set with `failure` */
	pthread_mutex_t id_lock; /* of the next two */
	bool has_nccl_id;
	uint8_t nccl_id[JOB_NCCL_ID_SIZE];
	pthread_mutex_t lock; /* of the next two, and of the ranks' queues */
	struct error failure; /* code 0: it works */
	uint32_t n_running;   /* threads */
	uint32_t n_ranks;
	struct device_rank ranks[];
};

/* No thread is started. NULL: memory ran out. */
struct device_comm *device_comm_new(const struct job_comm *job);
/* Its threads have ended, and were joined. */
void device_comm_free(struct device_comm *comm);

/* Have all threads ended? */
bool device_comm_has_ended(struct device_comm *comm);

/* It is over; the first one's error stays. Any thread calls it. */
void device_comm_fail(struct device_comm *comm, const struct error *err);

/* The broker's id, or one that is made when first wanted. Any thread calls it.
 */
int device_comm_take_id(struct device_comm *comm, const uint8_t **ret,
			struct error *err);
