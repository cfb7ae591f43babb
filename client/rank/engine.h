/*
 * A rank's own engine: the work of a communicator on devices, done in this
 * process, on streams of the library's.
 *
 * The broker says when a gather or a reduction may begin (admission) and where
 * its memory is; the ranks then enqueue it, each on its device, where NCCL
 * brings them together. NCCL wants the same order on all ranks. So a rank's
 * works are a list in the order of its calls, and are enqueued in that order
 * only, each when it is admitted: who waits for one enqueues those before it.
 *
 * Nothing here waits for the device but what says so. Whole parameters are
 * written again as soon as the broker hands their memory out again; the gather
 * stream waits for what the ranks' own streams did with them (reshards).
 *
 * If NCCL fails, the broker is told why, and with it the other ranks of the
 * node; if the broker says that the communicator has failed, NCCL is aborted:
 * streams that wait for a rank that is gone go on then.
 */
#pragma once
#include "client/rank/comm.h"
#include <stdbool.h>
#include <stdint.h>

struct comm_join_request;
struct rank_engine;
struct engine_group;

/*
 * Open it for a communicator that the broker let this rank join: waits for all
 * ranks of the world. -ETIMEDOUT, -ECONNABORTED, and what the driver and NCCL
 * say.
 */
int engine_new(struct fsdp_comm *comm, const struct comm_join_request *joined,
	       const uint8_t *nccl_id, struct rank_engine **ret,
	       struct error *err);

/* It has failed: streams are let go, nothing is enqueued any more. */
void engine_abort(struct rank_engine *engine);

/*
 * Nothing of ours runs on the device any more: waits for it, within the
 * communicator's time-out, and for the other ranks to do the same, for a
 * moment. -ETIMEDOUT: it is not stopped; may be called again once the
 * communicator has failed.
 */
int engine_quiesce(struct rank_engine *engine, struct error *err);
void engine_free(struct rank_engine *engine); /* stopped; NULL is fine */

/* The group was registered as `asked`: its plan must have this hash. */
int engine_group_new(struct fsdp_group *group,
		     const struct group_request *asked, uint64_t hash,
		     struct error *err);
void engine_group_free(struct engine_group *group); /* NULL is fine */

/* Its handles are there; takes over `partial`, where this rank's sums wait for
 * an all-reduce (NULL: it has none), also on failure. */
int engine_group_take_memory(struct fsdp_group *group,
			     struct fsdp_tensor *partial, struct error *err);
/* Nothing of it is under way. */
void engine_group_end_handles(struct engine_group *group);

/* Is `stream` one of the device's? -EINVAL. */
int engine_check_stream(const struct rank_engine *engine, void *stream,
			struct error *err);

/* Zero what is behind this rank's part of each parameter. */
int engine_zero_padding(struct fsdp_group *group, uint32_t side,
			struct error *err);

/* Copy a part of the committed shards to the next; waits for that. */
int engine_carry(struct fsdp_group *group, uint64_t offset, uint64_t size,
		 struct error *err);

/* The broker has noted the unshard: next in our order. */
int engine_unshard(struct fsdp_group *group, uint64_t sequence,
		   struct error *err);

/*
 * The same for a reduction; takes the group's input over. `stream`: where the
 * gradients come from; NULL: they are there.
 */
int engine_reduce(struct fsdp_group *group, const struct reduce_request *asked,
		  uint64_t sequence, void *stream, struct error *err);

/*
 * Have `stream` wait until the work is done; NULL: wait here. Admission is
 * waited for in either case. -ETIMEDOUT.
 */
int engine_wait(const struct fsdp_work *work, void *stream, int32_t timeout_ms,
		struct error *err);

/* What the rank has unsharded is enqueued, at least. */
int engine_begin(struct fsdp_group *group, struct error *err);

/* Enqueue all reductions that were handed in. -EBUSY: the broker has not
 * admitted all of them. */
int engine_begin_reductions(struct rank_engine *engine, struct error *err);

/* This rank needs the whole parameters no more once `stream` is done with them;
 * NULL: it is. Follows engine_begin(). */
int engine_reshard(struct fsdp_group *group, uint32_t n_mesh, void *stream,
		   struct error *err);

/* Bytes of the host to the device and back; waits for them. */
int engine_put(struct rank_engine *engine, void *to, const void *from,
	       uint64_t size, struct error *err);
int engine_get(struct rank_engine *engine, void *to, const void *from,
	       uint64_t size, struct error *err);

/* Note how far `stream` (NULL: none) and ours are. */
int engine_note(struct rank_engine *engine, void *stream, struct error *err);
/* Wait here until they have come so far; may be repeated. */
int engine_await_noted(struct rank_engine *engine, int64_t deadline_ms,
		       struct error *err);
/* Both at once. */
int engine_settle(struct rank_engine *engine, void *stream, struct error *err);

/* Over several nodes: all ranks have come so far, with the same step. */
int engine_verify_step(struct rank_engine *engine, uint64_t step,
		       struct error *err);
