/*
 * A rank of a communicator on devices: a thread that does the rank's shares of
 * jobs in their order, on its own streams, and says when they are done.
 *
 * It polls its device: the longer nothing happens, the longer it sleeps between
 * looks.
 */
#pragma once
#include "broker/worker/device_gate.h"
#include "cuda/nccl_rank.h"
#include <pthread.h>

struct device_comm;
struct rank_group;

struct device_rank {
	struct device_comm *comm;
	uint32_t rank; /* in the world */
	struct device_uuid uuid;
	pthread_t thread;
	bool is_started; /* the thread runs; only the link's thread uses it */
	/* protected by the communicator's lock */
	pthread_cond_t has_work;
	struct device_share *first, *last; /* shares to be done */
	bool has_stale;                    /* plans may have been forgotten */
	/* only the rank's thread uses the rest */
	struct device_share *running; /* enqueued shares, the oldest first */
	/* NULL: its context could not be entered */
	const struct device *device;
	struct nccl_rank nccl;
	struct rank_group *groups;
	/* The link's thread uses its timelines until a job names them. */
	struct device_gate gate;
	uint64_t moved_ns; /* when a share last began or ended */
	uint64_t pause_ns;
};

/* The main function of its thread; `data` is the rank. It returns when the
 * communicator is over. */
void *device_rank_run(void *data);
