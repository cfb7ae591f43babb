/*
 * A rank's part of the shards, gradients or sums is one range. It is copied as
 * a whole, since the gaps between parameters are small.
 */
#include "client/rank/offload.h"
#include "client/device.h"
#include "client/rank/engine_impl.h"
#include "cuda/context.h"
#include "cuda/event_cache.h"
#include "shm/chunk.h"
#include <inttypes.h>

/* the alignment of the sums, which follow the gradients */
#define AREA_ALIGN 512

/* Return the size of one rank's part. */
static uint64_t part_of(const struct plan *plan, uint64_t size)
{
	return size / plan->n_shards;
}

/* --- staging areas ------------------------------------------------------- */

static uint64_t partial_offset(const struct plan *plan)
{
	uint64_t size = part_of(plan, plan->grads_size);

	return (size + AREA_ALIGN - 1) & ~(uint64_t)(AREA_ALIGN - 1);
}

/* Make an area of at least this size. A larger area replaces the earlier one,
 * which is not in use any more. */
static int ensure_area(struct rank_engine *engine, struct engine_area *area,
		       uint64_t size, struct error *err)
{
	const struct fsdp_device device = device_public(engine->device);
	const struct fsdp_spec spec = {FSDP_U8, 1, {(int64_t)size}};
	struct fsdp_tensor *tensor;
	int r;

	if (size <= area->size)
		return 0;
	r = engine_note_and_await(engine, err);
	if (r < 0)
		return r;
	r = fsdp_alloc_on(engine->comm->client, &device, &spec, 1, NULL,
			  engine->timeout_ms, &tensor);
	if (r < 0)
		return error_wrap(err, r,
				  "cannot make a staging area for offloaded "
				  "shards on the "
				  "device");
	fsdp_free(area->tensor);
	area->tensor = tensor;
	area->size = size;
	return 0;
}

static int ensure_areas(struct rank_engine *engine, const struct plan *plan,
			struct error *err)
{
	const uint64_t gather = part_of(plan, plan->shards_size);
	const uint64_t reduce =
		partial_offset(plan) + part_of(plan, plan->partial_size);
	int r = 0;

	for (int i = 0; i < 2 && r == 0; i++) {
		r = ensure_area(engine, &engine->gather_areas.areas[i], gather,
				err);
		if (r == 0)
			r = ensure_area(engine, &engine->reduce_areas.areas[i],
					reduce, err);
	}
	return r;
}

static void free_areas(struct engine_areas *areas)
{
	for (int i = 0; i < 2; i++) {
		fsdp_free(areas->areas[i].tensor);
		event_cache_put(areas->areas[i].used);
	}
	*areas = (struct engine_areas){.last = 0};
}

void offload_free_areas(struct rank_engine *engine)
{
	free_areas(&engine->gather_areas);
	free_areas(&engine->reduce_areas);
}

/* Return the next area; the two alternate. */
static struct engine_area *take_turn(struct engine_areas *areas)
{
	areas->last = !areas->last;
	return &areas->areas[areas->last];
}

/* Note that no work needs the area after the current work of the stream. */
static int note_used(struct rank_engine *engine, struct engine_areas *areas,
		     CUstream stream, struct error *err)
{
	struct engine_area *area = &areas->areas[areas->last];
	struct event *used;
	int r = engine_record(engine, stream, &used, err);

	if (r < 0)
		return r;
	event_cache_put(area->used);
	area->used = used;
	return 0;
}

/* --- streams ------------------------------------------------------------- */

static int want_streams(struct rank_engine *engine, struct error *err)
{
	CUstream *streams[] = {&engine->in_stream, &engine->out_stream};
	int r = context_enter(engine->device, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < 2 && r == 0; i++) {
		if (!*streams[i])
			r = driver_error(
				err,
				cu.StreamCreate(streams[i],
						CU_STREAM_NON_BLOCKING),
				"cannot make a stream for offloaded shards");
	}
	context_leave();
	return r;
}

void offload_end_streams(struct rank_engine *engine)
{
	if (engine->in_stream)
		(void)cu.StreamDestroy(engine->in_stream);
	if (engine->out_stream)
		(void)cu.StreamDestroy(engine->out_stream);
}

/* Let later work of `stream` begin after the current work of `first`. */
static int hand_over(struct rank_engine *engine, CUstream first,
		     CUstream stream, struct error *err)
{
	struct event *event;
	int r = engine_record(engine, first, &event, err);

	if (r < 0)
		return r;
	r = engine_follow(engine, stream, event, err);
	event_cache_put(event);
	return r;
}

/* --- pages of the host --------------------------------------------------- */

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
		r = want_streams(group->comm->engine, err);
	if (r == 0)
		r = ensure_areas(group->comm->engine, &group->engine->plan,
				 err);
	if (r < 0)
		offload_close(group->engine);
	return r;
}

void offload_close(struct engine_group *group)
{
	for (size_t i = 0; i < ENGINE_PINNED; i++)
		pinned_close(&group->pinned[i]);
}

/* --- copies -------------------------------------------------------------- */

/* Copy `size` bytes between the host and the device, on the stream of that
 * direction. */
static int copy(struct rank_engine *engine, bool is_in, CUdeviceptr device,
		const struct fsdp_tensor *host, uint64_t size,
		struct error *err)
{
	CUresult result;
	int r;

	if (size == 0)
		return 0;
	r = context_enter(engine->device, err);
	if (r < 0)
		return r;
	result = is_in ? cu.MemcpyHtoDAsync(device, host->data, size,
					    engine->in_stream)
		       : cu.MemcpyDtoHAsync(host->data, device, size,
					    engine->out_stream);
	r = driver_error(err, result,
			 "cannot copy %" PRIu64 " offloaded bytes %s", size,
			 is_in ? "to the device" : "from the device");
	context_leave();
	return r;
}

static CUdeviceptr begin_of(const struct engine_area *area)
{
	return area->tensor ? (CUdeviceptr)(uintptr_t)area->tensor->data : 0;
}

int offload_shards_in(struct rank_engine *engine,
		      const struct fsdp_group *group,
		      const struct fsdp_tensor **ret, struct error *err)
{
	const struct plan *plan = &group->engine->plan;
	struct engine_area *area = take_turn(&engine->gather_areas);
	int r = engine_follow(engine, engine->in_stream, area->used, err);

	if (r == 0)
		r = copy(engine, true, begin_of(area),
			 group->shards[group->side],
			 part_of(plan, plan->shards_size), err);
	if (r == 0)
		r = hand_over(engine, engine->in_stream,
			      engine->nccl.gather_stream, err);
	*ret = area->tensor;
	return r;
}

int offload_gathered(struct rank_engine *engine, struct error *err)
{
	return note_used(engine, &engine->gather_areas,
			 engine->nccl.gather_stream, err);
}

/* Copy in the earlier sums, after the group's last reduction has written
 * them. */
static int copy_sums_in(struct rank_engine *engine,
			const struct fsdp_group *group,
			const struct device_reduce *reduce, struct error *err)
{
	const struct plan *plan = &group->engine->plan;
	int r = engine_follow(engine, engine->in_stream,
			      group->engine->reduced_event, err);

	if (r == 0 && reduce->flags & DEVICE_REDUCE_ACCUMULATE &&
	    !(reduce->flags & DEVICE_REDUCE_PARTIAL_OUT))
		r = copy(engine, true, reduce->grads, group->grads,
			 part_of(plan, plan->grads_size), err);
	if (r == 0 && reduce->flags & DEVICE_REDUCE_PARTIAL_IN)
		r = copy(engine, true, reduce->partial, group->engine->partial,
			 part_of(plan, plan->partial_size), err);
	return r;
}

/* A reduction without copies to the device does not wait for the stream of
 * copies, because gathers use that stream, too. */
int offload_grads_in(struct rank_engine *engine, const struct fsdp_group *group,
		     struct device_reduce *reduce, struct error *err)
{
	const struct plan *plan = &group->engine->plan;
	struct engine_area *area = take_turn(&engine->reduce_areas);
	int r;

	reduce->grads = begin_of(area);
	reduce->partial = reduce->grads + partial_offset(plan);
	if (!(reduce->flags &
	      (DEVICE_REDUCE_ACCUMULATE | DEVICE_REDUCE_PARTIAL_IN)))
		return engine_follow(engine, engine->nccl.reduce_stream,
				     area->used, err);
	r = engine_follow(engine, engine->in_stream, area->used, err);
	if (r == 0)
		r = copy_sums_in(engine, group, reduce, err);
	return r < 0 ? r
		     : hand_over(engine, engine->in_stream,
				 engine->nccl.reduce_stream, err);
}

int offload_grads_out(struct rank_engine *engine,
		      const struct fsdp_group *group,
		      const struct device_reduce *reduce, CUstream *ret_stream,
		      struct error *err)
{
	const struct plan *plan = &group->engine->plan;
	int r = hand_over(engine, engine->nccl.reduce_stream,
			  engine->out_stream, err);

	*ret_stream = engine->out_stream;
	if (r == 0 && reduce->flags & DEVICE_REDUCE_PARTIAL_OUT)
		r = copy(engine, false, reduce->partial, group->engine->partial,
			 part_of(plan, plan->partial_size), err);
	else if (r == 0)
		r = copy(engine, false, reduce->grads, group->grads,
			 part_of(plan, plan->grads_size), err);
	return r < 0 ? r
		     : note_used(engine, &engine->reduce_areas,
				 engine->out_stream, err);
}
