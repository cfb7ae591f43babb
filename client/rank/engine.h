/*
 * The engine of a rank: it does the work of a communicator on devices in this
 * process, on streams of the library.
 *
 * The broker says when a gather or a reduction may begin (admission) and where
 * its memory is; each rank then enqueues it on its device, and NCCL connects
 * the ranks. NCCL requires the same order on all ranks. So a rank keeps its
 * operations in a list in the order of its calls, and enqueues them in that
 * order only, each after it was admitted: a wait for one also enqueues those
 * before it.
 *
 * Only functions whose comment says so wait for the device. The broker may
 * reuse the memory of whole parameters at once, because the gather stream waits
 * for the work of the ranks' own streams on it (reshards).
 *
 * If NCCL fails, the broker is told the reason, and the other ranks of the node
 * get it from the broker. If the broker says that the communicator has failed,
 * NCCL is aborted, which releases the streams that wait for a dead rank.
 */
#pragma once
#include "client/rank/comm.h"
#include "cuda/driver_api.h"
#include <stdbool.h>
#include <stdint.h>

struct comm_join_request;
struct plan;
struct rank_engine;
struct engine_group;

/*
 * Open an engine for a communicator that this rank has joined. This waits for
 * all ranks of the world. Returns -ETIMEDOUT, -ECONNABORTED, or errors of the
 * driver and NCCL.
 */
int engine_new(struct fsdp_comm *comm, const struct comm_join_request *joined,
	       const uint8_t *nccl_id, struct rank_engine **ret,
	       struct error *err);

/* Release waiting streams and enqueue nothing more, because the communicator
 * has failed. */
void engine_abort(struct rank_engine *engine);

/*
 * End all work of this engine on the device. This waits for the work within the
 * communicator's time-out, and for a moment for the other ranks to do the same.
 * Returns -ETIMEDOUT if the work has not ended; the call may be repeated when
 * the communicator has failed.
 */
int engine_quiesce(struct rank_engine *engine, struct error *err);
/* stopped before; NULL is allowed */
void engine_free(struct rank_engine *engine);

/* Make the engine's part of a registered group. Takes its plan, also on
 * failure. */
int engine_group_new(struct fsdp_group *group, struct plan *plan,
		     struct error *err);
void engine_group_free(struct engine_group *group); /* NULL is allowed */

/* Prepare the memory of a group whose handles exist. Takes `partial`, the
 * memory of this rank's sums before an all-reduce (NULL: there is none), also
 * on failure. */
int engine_group_take_memory(struct fsdp_group *group,
			     struct fsdp_tensor *partial, struct error *err);
/* Release the memory again. No operation of the group may be under way. */
void engine_group_end_handles(struct engine_group *group);

/* Check that `stream` belongs to the device. Returns -EINVAL if not. */
int engine_check_stream(const struct rank_engine *engine, void *stream,
			struct error *err);

/* Return the stream of gathers, which also changes shards. */
CUstream engine_stream(const struct rank_engine *engine);

/* Append an unshard, which the broker has recorded, to the list. */
int engine_unshard(struct fsdp_group *group, uint64_t sequence,
		   struct error *err);

/*
 * Do the same for a reduction, and take the group's input. `stream` writes the
 * gradients; NULL: they are already written.
 */
int engine_reduce(struct fsdp_group *group, const struct reduce_request *asked,
		  uint64_t sequence, void *stream, struct error *err);

/*
 * Make `stream` wait until the operation is done; if it is NULL, wait on the
 * host. In both cases the call waits for the admission. Returns -ETIMEDOUT if
 * the time is over.
 */
int engine_wait(const struct fsdp_work *work, void *stream, int32_t timeout_ms,
		struct error *err);

/* Enqueue the works up to the open unshard of the group. */
int engine_begin(struct fsdp_group *group, struct error *err);

/* Enqueue all reductions that were begun. Returns -EBUSY if the broker has not
 * admitted all of them. */
int engine_begin_reductions(struct rank_engine *engine, struct error *err);

/* End the use of the whole parameters, after the current work of `stream`, or
 * at once if it is NULL. Call engine_begin() before. */
int engine_reshard(struct fsdp_group *group, uint32_t n_mesh, void *stream,
		   struct error *err);

/* Copy bytes of the host to the device or back, and wait for the copy. */
int engine_put(struct rank_engine *engine, void *to, const void *from,
	       uint64_t size, struct error *err);
int engine_get(struct rank_engine *engine, void *to, const void *from,
	       uint64_t size, struct error *err);

/* engine_note() records the progress of `stream` (may be NULL) and of our
 * streams. */
int engine_note(struct rank_engine *engine, void *stream, struct error *err);
/* engine_await_noted() waits on the host until they have reached it. It may be
 * repeated. */
int engine_await_noted(struct rank_engine *engine, int64_t deadline_ms,
		       struct error *err);
/* engine_note_and_await() does both for our streams. */
int engine_note_and_await(struct rank_engine *engine, struct error *err);

/* Wait until all ranks have reached this point with the same step, if there are
 * several nodes. */
int engine_verify_step(struct rank_engine *engine, uint64_t step,
		       struct error *err);
