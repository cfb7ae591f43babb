/*
 * A rank's part of shards, gradients and sums is one range each, which travels
 * as a whole: gaps between parameters are few bytes.
 */
#include "client/offload.h"
#include "client/device.h"
#include "client/engine_impl.h"
#include "cuda/context.h"
#include "shm/chunk.h"
#include <inttypes.h>

/* Of the sums behind the gradients. */
#define ROOM_ALIGN 512

/* Of one rank. */
static uint64_t part_of(const struct plan *plan, uint64_t size)
{
	return size / plan->n_shards;
}

/* --- room on the device --------------------------------------------------- */

static uint64_t partial_offset(const struct plan *plan)
{
	uint64_t size = part_of(plan, plan->grads_size);

	return (size + ROOM_ALIGN - 1) & ~(uint64_t)(ROOM_ALIGN - 1);
}

/* A larger one takes the place of the last, which is used no more. */
static int want_room(struct engine *engine, struct engine_room *room,
		     uint64_t size, struct error *err)
{
	const struct fsdp_device device = device_public(engine->device);
	const struct fsdp_spec spec = {FSDP_U8, 1, {(int64_t)size}};
	struct fsdp_tensor *tensor;
	int r;

	if (size <= room->size)
		return 0;
	r = engine_settle(engine, NULL, err);
	if (r < 0)
		return r;
	r = fsdp_alloc_on(engine->comm->client, &device, &spec, 1, NULL,
			  engine->timeout_ms, &tensor);
	if (r < 0)
		return error_wrap(err, r,
				  "make room for offloaded shards on the "
				  "device");
	fsdp_free(room->tensor);
	*room = (struct engine_room){tensor, size};
	return 0;
}

static int want_rooms(struct engine *engine, const struct plan *plan,
		      struct error *err)
{
	int r = want_room(engine, &engine->gather_room,
			  part_of(plan, plan->shards_size), err);

	if (r < 0)
		return r;
	return want_room(
		engine, &engine->reduce_room,
		partial_offset(plan) + part_of(plan, plan->partial_size), err);
}

void offload_end_rooms(struct engine *engine)
{
	fsdp_free(engine->gather_room.tensor);
	fsdp_free(engine->reduce_room.tensor);
	engine->gather_room = engine->reduce_room = (struct engine_room){0};
}

/* --- pages of the host ---------------------------------------------------- */

static int pin_all(struct fsdp_group *group, struct error *err)
{
	struct engine_group *own = group->engine;
	const struct plan *plan = &own->plan;
	const struct {
		const struct fsdp_tensor *tensor;
		uint64_t size;
	} parts[ENGINE_PINNED] = {
		{group->shards[0], plan->shards_size},
		{group->shards[1], plan->shards_size},
		{group->grads, plan->grads_size},
		{own->partial, plan->partial_size},
	};
	int r = 0;

	for (size_t i = 0; i < ENGINE_PINNED && r == 0; i++) {
		uint64_t size = chunk_page_up(part_of(plan, parts[i].size));

		if (parts[i].tensor && size > 0)
			r = pinned_open(group->comm->engine->device,
					parts[i].tensor->data, size,
					&own->pinned[i], err);
	}
	return r;
}

int offload_open(struct fsdp_group *group, struct error *err)
{
	int r = pin_all(group, err);

	if (r == 0)
		r = want_rooms(group->comm->engine, &group->engine->plan, err);
	if (r < 0)
		offload_close(group->engine);
	return r;
}

void offload_close(struct engine_group *group)
{
	for (size_t i = 0; i < ENGINE_PINNED; i++)
		pinned_close(&group->pinned[i]);
}

/* --- copies --------------------------------------------------------------- */

static int copy_in(struct engine *engine, CUdeviceptr to,
		   const struct fsdp_tensor *from, uint64_t size,
		   CUstream stream, struct error *err)
{
	int r;

	if (size == 0)
		return 0;
	r = context_enter(engine->device, err);
	if (r < 0)
		return r;
	r = driver_error(err, cu.MemcpyHtoDAsync(to, from->data, size, stream),
			 "copy %" PRIu64 " offloaded bytes to the device",
			 size);
	context_leave();
	return r;
}

static int copy_out(struct engine *engine, const struct fsdp_tensor *to,
		    CUdeviceptr from, uint64_t size, struct error *err)
{
	int r;

	if (size == 0)
		return 0;
	r = context_enter(engine->device, err);
	if (r < 0)
		return r;
	r = driver_error(
		err,
		cu.MemcpyDtoHAsync(to->data, from, size, engine->reduce_stream),
		"copy %" PRIu64 " offloaded bytes from the device", size);
	context_leave();
	return r;
}

static CUdeviceptr begin_of(const struct engine_room *room)
{
	return room->tensor ? (CUdeviceptr)(uintptr_t)room->tensor->data : 0;
}

int offload_shards_in(struct engine *engine, const struct fsdp_group *group,
		      CUdeviceptr *ret, struct error *err)
{
	const struct plan *plan = &group->engine->plan;

	*ret = begin_of(&engine->gather_room);
	return copy_in(engine, *ret, group->shards[group->side],
		       part_of(plan, plan->shards_size), engine->gather_stream,
		       err);
}

int offload_grads_in(struct engine *engine, const struct fsdp_group *group,
		     struct device_reduce *reduce, struct error *err)
{
	const struct plan *plan = &group->engine->plan;
	CUstream stream = engine->reduce_stream;
	int r = 0;

	reduce->grads = begin_of(&engine->reduce_room);
	reduce->partial = reduce->grads + partial_offset(plan);
	if (reduce->flags & DEVICE_REDUCE_ACCUMULATE &&
	    !(reduce->flags & DEVICE_REDUCE_PARTIAL_OUT))
		r = copy_in(engine, reduce->grads, group->grads,
			    part_of(plan, plan->grads_size), stream, err);
	if (r == 0 && reduce->flags & DEVICE_REDUCE_PARTIAL_IN)
		r = copy_in(engine, reduce->partial, group->engine->partial,
			    part_of(plan, plan->partial_size), stream, err);
	return r;
}

int offload_grads_out(struct engine *engine, const struct fsdp_group *group,
		      const struct device_reduce *reduce, struct error *err)
{
	const struct plan *plan = &group->engine->plan;

	if (reduce->flags & DEVICE_REDUCE_PARTIAL_OUT)
		return copy_out(engine, group->engine->partial, reduce->partial,
				part_of(plan, plan->partial_size), err);
	return copy_out(engine, group->grads, reduce->grads,
			part_of(plan, plan->grads_size), err);
}
