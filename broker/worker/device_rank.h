/*
 * A rank of a communicator on devices: a thread that does its shares of jobs,
 * in their order, on streams of its own, and says when they are done.
 *
 * It waits for its device by looking: the longer nothing comes, the more
 * seldom.
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
	bool is_started; /* the thread: the link's thread's */
	/* with the communicator's lock */
	pthread_cond_t has_work;
	struct device_share *first, *last; /* to be done */
	bool has_stale;                    /* plans may have been forgotten */
	/* of the thread, from here on */
	struct device_share *running; /* enqueued; the oldest first */
	const struct device *device;  /* NULL: its context was not entered */
	struct nccl_rank nccl;
	struct rank_group *groups;
	/* Its timelines are the link's thread's until a job names them. */
	struct device_gate gate;
	uint64_t moved_ns; /* when it last began or ended something */
	uint64_t pause_ns;
};

/* Its thread; `data` is the rank. Ends when the communicator is over. */
void *device_rank_run(void *data);
