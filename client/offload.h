/*
 * Offload: shards, gradients and partial sums of a group in host memory, and
 * the room on the device through which they pass.
 *
 * Their pages are pinned for as long as the rank has them, so that copies are
 * on the streams. The room is a tensor of the broker's for each stream, as
 * large as the largest group needs: gathers take turns in the one, reductions
 * in the other, each behind the one before.
 */
#pragma once
#include "client/engine.h"
#include "cuda/driver_api.h"

struct device_reduce;

/* The group's handles are there: pin their pages, and see to the room. On
 * failure nothing stays pinned. */
int offload_open(struct fsdp_group *group, struct error *err);
/* Before its handles end; nothing is under way. No-op if it is not open. */
void offload_close(struct engine_group *group);

/* The rooms of all groups go; nothing is under way. */
void offload_end_rooms(struct engine *engine);

/* Bring the committed shards in, on the gather stream: where they are then. */
int offload_shards_in(struct engine *engine, const struct fsdp_group *group,
		      CUdeviceptr *ret, struct error *err);

/* What the reduction adds to goes in, on the reduce stream; fills in where its
 * gradients and sums are. */
int offload_grads_in(struct engine *engine, const struct fsdp_group *group,
		     struct device_reduce *reduce, struct error *err);
/* And behind it what it has written goes out. */
int offload_grads_out(struct engine *engine, const struct fsdp_group *group,
		      const struct device_reduce *reduce, struct error *err);
