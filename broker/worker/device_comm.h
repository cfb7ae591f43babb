/*
 * A communicator on devices. Each of its ranks of this node is a thread
 * (device_rank.h), so that a rank that waits in NCCL does not keep another from
 * its part.
 *
 * The first failure ends the communicator for all ranks and jobs; what runs is
 * aborted.
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
	bool is_forgotten;       /* only the link's thread uses it */
	atomic_bool is_over;     /* is set together with `failure` */
	pthread_mutex_t id_lock; /* protects the next two */
	bool has_nccl_id;
	uint8_t nccl_id[JOB_NCCL_ID_SIZE];
	/* protects the next two and the queues of the ranks */
	pthread_mutex_t lock;
	struct error failure; /* code 0: the communicator works */
	uint32_t n_running;   /* threads that have not ended */
	uint32_t n_ranks;
	struct device_rank ranks[];
};

/* No thread is started. Returns NULL if there is no memory. */
struct device_comm *device_comm_new(const struct job_comm *job);
/* Its threads have ended and were joined. */
void device_comm_free(struct device_comm *comm);

/* Have all threads ended? */
bool device_comm_has_ended(struct device_comm *comm);

/* End the communicator. If it has an error already, that stays. Any thread may
 * call it. */
void device_comm_fail(struct device_comm *comm, const struct error *err);

/* Gives the id that the broker sent, or makes one when it is first needed. Any
 * thread may call it. */
int device_comm_take_id(struct device_comm *comm, const uint8_t **ret,
			struct error *err);
