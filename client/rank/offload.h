/*
 * Offload: shards, gradients and partial sums of a group in host memory, and
 * the staging memory on the device that they pass through.
 *
 * Their pages are pinned for as long as the rank has them, so that copies run
 * on streams: one stream copies in and one copies out, beside the gathers and
 * reductions of other groups. Gathers alternate between two staging areas, and
 * so do reductions: the bytes of the next operation come in while the last one
 * is still in use. A staging area is a tensor of the broker, as large as the
 * largest group needs.
 */
#pragma once
#include "client/rank/engine.h"
#include "cuda/driver_api.h"

struct device_reduce;

/* Pin the pages of a group whose handles exist, and make streams and staging
 * areas as needed. On failure no page stays pinned. */
int offload_open(struct fsdp_group *group, struct error *err);
/* Unpin the pages, before the group's handles end and when no operation is
 * under way. Does nothing if the group is not open. */
void offload_close(struct engine_group *group);

/* Free the staging areas of all groups. No operation may be under way. */
void offload_free_areas(struct rank_engine *engine);
/* Destroy the streams. Call it in the device's context. */
void offload_end_streams(struct rank_engine *engine);

/* Copy in the committed shards; the gather stream waits for the copy. `*ret` is
 * valid in the staging area until offload_gathered(), or NULL if there are no
 * shards. */
int offload_shards_in(struct rank_engine *engine,
		      const struct fsdp_group *group,
		      const struct fsdp_tensor **ret, struct error *err);
/* Note that the work that reads them is on the gather stream. */
int offload_gathered(struct rank_engine *engine, struct error *err);

/* Copy in the values that the reduction adds to; the reduce stream waits for
 * the copy. Fills in the addresses of its gradients and sums. */
int offload_grads_in(struct rank_engine *engine, const struct fsdp_group *group,
		     struct device_reduce *reduce, struct error *err);
/* Copy out the results of a reduction on the reduce stream, after it.
 * `*ret_stream` is the stream of that copy. */
int offload_grads_out(struct rank_engine *engine,
		      const struct fsdp_group *group,
		      const struct device_reduce *reduce, CUstream *ret_stream,
		      struct error *err);
