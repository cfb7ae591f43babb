/*
 * Offload: shards, gradients and partial sums of a group in host memory, and
 * the rooms on the device through which they pass.
 *
 * Their pages are pinned for as long as the rank has them, so that copies are
 * on streams: one stream copies in and one copies out, so that a copy runs
 * beside the gathers and reductions of other groups. Gathers use two rooms in
 * turn, and so do reductions: the next one's bytes come in while the last one
 * is still being worked with. A room is a tensor of the broker's, as large as
 * the largest group needs.
 */
#pragma once
#include "client/rank/engine.h"
#include "cuda/driver_api.h"

struct device_reduce;

/* The group's handles are there: pin their pages, and see to rooms and streams.
 * On failure nothing stays pinned. */
int offload_open(struct fsdp_group *group, struct error *err);
/* Before its handles end; nothing is under way. No-op if it is not open. */
void offload_close(struct engine_group *group);

/* The rooms of all groups go; nothing is under way. */
void offload_end_rooms(struct rank_engine *engine);
/* The streams; in the device's context. */
void offload_end_streams(struct rank_engine *engine);

/* Bring the committed shards in; the gather stream waits for them. The room
 * has them until offload_gathered(); NULL: there are none. */
int offload_shards_in(struct rank_engine *engine,
		      const struct fsdp_group *group,
		      const struct fsdp_tensor **ret, struct error *err);
/* The gather stream was given what reads them. */
int offload_gathered(struct rank_engine *engine, struct error *err);

/* Bring in what the reduction adds to; the reduce stream waits for that. Fills
 * in where its gradients and sums are. */
int offload_grads_in(struct rank_engine *engine, const struct fsdp_group *group,
		     struct device_reduce *reduce, struct error *err);
/* The reduce stream was given the reduction: what it writes goes out after it.
 * `ret_stream`: that on which it does. */
int offload_grads_out(struct rank_engine *engine,
		      const struct fsdp_group *group,
		      const struct device_reduce *reduce, CUstream *ret_stream,
		      struct error *err);
