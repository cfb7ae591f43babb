/*
 * Communicators on devices: NCCL and kernels for the ranks of this node.
 *
 * Each rank is a thread (device_rank.h), so that nothing that NCCL makes one
 * rank wait for keeps another from doing its part. The link's thread checks
 * jobs and gives every rank its share; the ranks do them in that order.
 *
 * With the first failure a communicator is over, for all ranks and jobs, until
 * it is forgotten; so it is then. What runs is aborted.
 */
#pragma once
#include "broker/worker/device_rank.h"
#include "broker/worker/job.h"

struct error;
struct store;

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

struct device_comms {
	int sock_fd;         /* borrowed */
	struct store *store; /* borrowed */
	struct device_comm *first;
};

/* Aborts and awaits them all. */
void device_comms_deinit(struct device_comms *comms);

/* The jobs: answered when they are done, or else an error, to be answered. */
int device_comms_open(struct device_comms *comms, const struct job_comm *job,
		      struct error *err);
int device_comms_agree(struct device_comms *comms, const struct job_agree *job,
		       struct error *err);
int device_comms_run(struct device_comms *comms, const struct job_device *job,
		     struct error *err);

/* A member's file; `fd` stays the caller's. -ECANCELED: the communicator is
 * not known. */
int device_comms_take_timelines(struct device_comms *comms,
				const struct job_timelines *message, int fd,
				struct error *err);

/* No-op for one that was refused. */
void device_comms_forget(struct device_comms *comms, uint64_t id);

/* A plan was forgotten: ranks that have it let it go, when they are idle. */
void device_comms_drop_plans(struct device_comms *comms);

/* --- for the ranks' threads ---------------------------------------------- */

/* It is over; the first one's error stays. */
void device_comm_fail(struct device_comm *comm, const struct error *err);

/* The broker's id, or one that is made when first wanted. */
int device_comm_take_id(struct device_comm *comm, const uint8_t **ret,
			struct error *err);
