/*
 * What engine.c and engine_open.c share: nobody else needs it.
 */
#pragma once
#include "client/rank/engine.h"
#include "client/rank/registrations.h"
#include "collective/device/device_group.h"
#include "cuda/nccl_rank.h"
#include "cuda/pinned.h"

struct event;

/* A gather or a reduction that is not enqueued yet. */
struct engine_work {
	struct fsdp_group *group;
	uint32_t kind; /* enum work_kind */
	uint64_t sequence;
	struct device_reduce
		reduce;            /* its addresses are filled in at the end */
	struct fsdp_tensor *input; /* owned */
	struct event *ready; /* owned; the gradients are; NULL: they are */
	struct engine_work *next;
};

/* Memory of whole parameters, and the event behind which nothing of the last
 * ones is needed. */
struct engine_use {
	uint32_t slot;
	uint64_t generation;
	struct event *event; /* owned */
	struct engine_use *next;
};

/* Of the device; tensor NULL: none. */
struct engine_room {
	struct fsdp_tensor *tensor; /* owned */
	uint64_t size;
	struct event *used; /* owned; after it nothing needs it; NULL: now */
};

/* Used in turn. */
struct engine_rooms {
	struct engine_room rooms[2];
	uint32_t last;
};

/* The caller's stream and ours. */
#define ENGINE_NOTED 4

struct rank_engine {
	struct fsdp_comm *comm;
	const struct device *device;
	struct nccl_rank nccl; /* owned */
	int32_t timeout_ms;
	struct staging *staging;          /* owned; NULL: not wanted yet */
	struct engine_work *first, *last; /* owned, in the order of the calls */
	struct engine_use *uses;          /* owned */
	struct registrations registrations;
	/* offload.h; streams NULL: nothing is offloaded */
	struct engine_rooms gather_rooms, reduce_rooms;
	CUstream in_stream, out_stream;    /* owned */
	struct event *noted[ENGINE_NOTED]; /* owned; NULL: none */
};

/* Both shards, gradients, sums. */
#define ENGINE_PINNED 4

struct engine_group {
	struct plan plan; /* owned */
	struct device_group *work;
	struct fsdp_tensor *partial;               /* NULL: no replicas */
	struct event *whole_event, *reduced_event; /* owned; NULL: none yet */
	uint64_t whole, reduced; /* sequences that were enqueued last */
	bool has_grads, has_partial;
	/* Resharded to a smaller mesh: what was whole, and may be so still. */
	uint32_t kept_slot;
	uint64_t kept_generation;            /* 0: not */
	struct pinned pinned[ENGINE_PINNED]; /* offload.h */
};

void engine_drop_works(struct rank_engine *engine);

int engine_record(struct rank_engine *engine, CUstream stream,
		  struct event **ret, struct error *err);

/* Have the stream wait for the event; NULL: nothing to wait for. */
int engine_follow(struct rank_engine *engine, CUstream stream,
		  const struct event *event, struct error *err);

/* Wait here for the event, and until NCCL is ready; NULL: for that alone.
 * deadline_ms < 0: for ever. */
int engine_await_event(struct rank_engine *engine, const struct event *event,
		       int64_t deadline_ms, struct error *err);
