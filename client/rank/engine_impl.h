/* Internals that engine*.c and offload.c share. */
#pragma once
#include "client/rank/engine.h"
#include "client/rank/engine_watch.h"
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
	/* its addresses are set when it is enqueued */
	struct device_reduce reduce;
	struct fsdp_tensor *input; /* owned */
	/* owned; signals that the gradients are written; NULL: they are already
	 * written */
	struct event *ready;
	struct engine_work *next;
};

/* Memory of whole parameters, and the event after which no work uses its
 * earlier contents. */
struct engine_use {
	uint32_t slot;
	uint64_t generation;
	struct event *event; /* owned */
	struct engine_use *next;
};

/* staging memory on the device; `tensor` is NULL if there is none */
struct engine_area {
	struct fsdp_tensor *tensor; /* owned */
	uint64_t size;
	/* Owned; after this event no work uses the memory. NULL: no work uses
	 * it. */
	struct event *used;
};

/* two areas that are used alternately */
struct engine_areas {
	struct engine_area areas[2];
	uint32_t last;
};

/* the number of streams: the caller's and ours */
#define ENGINE_NOTED 4

struct rank_engine {
	struct fsdp_comm *comm;
	const struct device *device;
	struct nccl_rank nccl; /* owned */
	/* of NCCL's communicator, which the watch may abort; held for calls of
	 * NCCL */
	pthread_mutex_t nccl_lock;
	/* why an abort did not end, until the communicator's failure says it */
	struct error stuck;
	struct engine_watch watch;
	int32_t timeout_ms;
	struct staging *staging;          /* owned; NULL: not needed yet */
	struct engine_work *first, *last; /* owned, in the order of the calls */
	struct engine_use *uses;          /* owned */
	struct registrations registrations;
	/* offload.h; streams NULL: no group is offloaded */
	struct engine_areas gather_areas, reduce_areas;
	CUstream in_stream, out_stream; /* owned */
	/* owned; NULL: nothing was recorded */
	struct event *noted[ENGINE_NOTED];
};

/* the pinned ranges: both shards, gradients, sums */
#define ENGINE_PINNED 4

struct engine_group {
	struct plan plan; /* owned */
	struct device_group *work;
	/* NULL: there are no replicas */
	struct fsdp_tensor *partial;
	/* owned; NULL: not recorded yet */
	struct event *whole_event, *reduced_event;
	/* sequences of the last works that were enqueued */
	uint64_t whole, reduced;
	bool has_grads, has_partial;
	/* the whole parameters that a reshard to a smaller mesh kept, and that
	 * may still be valid */
	uint32_t kept_slot;
	uint64_t kept_generation;            /* 0: none were kept */
	struct pinned pinned[ENGINE_PINNED]; /* offload.h */
};

/* --- engine_base.c ------------------------------------------------------- */

void engine_drop_first(struct rank_engine *engine); /* the list is not empty */

/* Take the lock for calls of NCCL. Returns -ECONNABORTED, without the lock, if
 * NCCL has been ended or is ending: what it uses must then stay as it is. */
int engine_enter_nccl(struct rank_engine *engine, struct error *err);
void engine_leave_nccl(struct rank_engine *engine);

/* Abort NCCL. Memory that NCCL still uses stays registered. The watch was
 * stopped. */
int engine_abort_nccl(struct rank_engine *engine, struct error *err);
/* Do the same with the lock, unless NCCL is ending already. */
void engine_abort_once(struct rank_engine *engine);

/* Record a new event after the current work of the stream. */
int engine_record(struct rank_engine *engine, CUstream stream,
		  struct event **ret, struct error *err);

/* Make the stream wait for the event. Does nothing if it is NULL. */
int engine_follow(struct rank_engine *engine, CUstream stream,
		  const struct event *event, struct error *err);

/* --- engine_await.c ------------------------------------------------------ */

/* Fail the communicator because the engine has failed, which all ranks on this
 * node must learn. */
int engine_fail(struct rank_engine *engine, struct error *err);

/* Wait on the host for the event and until NCCL is ready; if the event is NULL,
 * only until NCCL is ready. If deadline_ms is negative, there is no
 * time-out. */
int engine_await_event(struct rank_engine *engine, const struct event *event,
		       int64_t deadline_ms, struct error *err);
