/*
 * The replies of collectives, to protobuf and back; both directions of one
 * message stand side by side.
 *
 * As in message_reply.c: the client trusts the broker with its data, but a
 * broken or exchanged broker shall not be able to crash it. Offsets are not
 * compared with the sizes of places here: that takes the parameters, which
 * are in the request.
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MAX_LAYOUT 1 /* enum plan_layout, broker/collective/plan.h */

static void *build_comm(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__CommReply *pb =
		pb_arena_message(arena, &fsdp__comm_reply__descriptor);

	if (!pb)
		return NULL;
	pb->comm = from->comm.comm;
	pb->step = from->comm.step;
	if (from->comm.has_nccl_id)
		pb->nccl_id = bytes_from_nccl_id(from->comm.nccl_id);
	return pb;
}

static int take_comm(const void *body, struct room *room, void *ret,
		     struct error *err)
{
	const Fsdp__CommReply *pb = body;
	struct comm_reply *to = &((struct reply *)ret)->comm;

	int r = id_take(pb->comm, "communicator", &to->comm, err);

	(void)room;
	to->step = pb->step;
	if (r < 0)
		return r;
	return nccl_id_take(pb->nccl_id, &to->has_nccl_id, to->nccl_id, err);
}

static bool allocate_entries(Fsdp__GroupReply *pb, size_t n,
			     struct pb_arena *arena)
{
	pb->full_dtype.len = pb->input_dtype.len = pb->shard_dim.len = n;
	pb->n_shard_size = pb->n_shard_offset = pb->n_full_offset = n;
	pb->n_input_offset = pb->n_grad_offset = n;
	pb->full_dtype.data = pb_arena_alloc(arena, n, 1);
	pb->input_dtype.data = pb_arena_alloc(arena, n, 1);
	pb->shard_dim.data = pb_arena_alloc(arena, n, 1);
	pb->shard_size = pb_arena_alloc(arena, n, sizeof(*pb->shard_size));
	pb->shard_offset = pb_arena_alloc(arena, n, sizeof(*pb->shard_offset));
	pb->full_offset = pb_arena_alloc(arena, n, sizeof(*pb->full_offset));
	pb->input_offset = pb_arena_alloc(arena, n, sizeof(*pb->input_offset));
	pb->grad_offset = pb_arena_alloc(arena, n, sizeof(*pb->grad_offset));
	return pb->full_dtype.data && pb->input_dtype.data &&
	       pb->shard_dim.data && pb->shard_size && pb->shard_offset &&
	       pb->full_offset && pb->input_offset && pb->grad_offset;
}

static bool build_entries(const struct group_reply *from, Fsdp__GroupReply *pb,
			  struct pb_arena *arena)
{
	if (!allocate_entries(pb, from->n_entries, arena))
		return false;
	for (uint32_t i = 0; i < from->n_entries; i++) {
		const struct group_entry *entry = &from->entries[i];

		pb->full_dtype.data[i] = (uint8_t)entry->full_dtype;
		pb->input_dtype.data[i] = (uint8_t)entry->input_dtype;
		pb->shard_dim.data[i] = (uint8_t)entry->shard_dim;
		pb->shard_size[i] = entry->shard_size;
		pb->shard_offset[i] = entry->shard_offset;
		pb->full_offset[i] = entry->full_offset;
		pb->input_offset[i] = entry->input_offset;
		pb->grad_offset[i] = entry->grad_offset;
	}
	return true;
}

static void *build_group(const void *message, struct pb_arena *arena)
{
	const struct group_reply *from =
		&((const struct reply *)message)->group;
	Fsdp__GroupReply *pb =
		pb_arena_message(arena, &fsdp__group_reply__descriptor);

	if (!pb)
		return NULL;
	pb->group = from->group;
	pb->hash = from->hash;
	pb->step = from->step;
	pb->side = from->side;
	pb->places = places_build(from->places, sizeof(*from->places),
				  from->n_places, arena);
	pb->n_chunks = from->n_chunks;
	pb->chunks = chunks_build(from->chunks, from->n_chunks, arena);
	if (!pb->places || !pb->chunks || !build_entries(from, pb, arena))
		return NULL;
	return pb;
}

static int check_entries(const Fsdp__GroupReply *pb, struct error *err)
{
	size_t n = pb->full_dtype.len;
	int r = count_check(n, MESSAGE_MAX_PARAMS, "parameters", err);

	if (r < 0)
		return r;
	if (pb->input_dtype.len != n || pb->shard_dim.len != n ||
	    pb->n_shard_size != n || pb->n_shard_offset != n ||
	    pb->n_full_offset != n || pb->n_input_offset != n ||
	    pb->n_grad_offset != n)
		return error_set(err, -EPROTO,
				 "the columns of %zu entries differ in length",
				 n);
	return 0;
}

static int take_offsets(const Fsdp__GroupReply *pb, size_t i,
			struct group_entry *to, struct error *err)
{
	int r = size_take(pb->shard_offset[i], "offset", &to->shard_offset,
			  err);

	if (r == 0)
		r = size_take(pb->full_offset[i], "offset", &to->full_offset,
			      err);
	if (r == 0)
		r = size_take(pb->input_offset[i], "offset", &to->input_offset,
			      err);
	if (r == 0)
		r = size_take(pb->grad_offset[i], "offset", &to->grad_offset,
			      err);
	return r;
}

static int take_entry(const Fsdp__GroupReply *pb, size_t i,
		      struct group_entry *to, struct error *err)
{
	int r = dtype_take(pb->full_dtype.data[i], &to->full_dtype, err);

	if (r >= 0)
		r = dtype_take_or_none(pb->input_dtype.data[i],
				       &to->input_dtype, err);
	if (r < 0)
		return r;
	if (pb->shard_dim.data[i] >= TENSOR_MAX_DIMS || pb->shard_size[i] < 0)
		return error_set(err, -EPROTO,
				 "a shard of %" PRId64 " along dimension %u "
				 "cannot be",
				 pb->shard_size[i], pb->shard_dim.data[i]);
	to->shard_dim = pb->shard_dim.data[i];
	to->shard_size = pb->shard_size[i];
	return take_offsets(pb, i, to, err);
}

/* What does not need the entries. `n_places` was checked against `places`. */
static int take_group_places(const Fsdp__GroupReply *pb, struct room *room,
			     struct group_reply *to, struct error *err)
{
	int r = places_take(pb->places, sizeof(*to->places), room, to->places,
			    err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < to->n_places; i++) {
		if (to->places[i].type.dtype != DTYPE_U8 ||
		    to->places[i].type.n_dims != 1 ||
		    !tensor_type_is_contiguous(&to->places[i].type))
			return error_set(err, -EPROTO,
					 "place %u is not one of bytes", i);
	}
	if (to->places[0].size != to->places[1].size)
		return error_set(err, -EPROTO,
				 "shards of %" PRIu64 " and %" PRIu64
				 " bytes cannot take turns",
				 to->places[0].size, to->places[1].size);
	return chunks_take(pb->n_chunks, pb->chunks, to->chunks, err);
}

static int check_group(const Fsdp__GroupReply *pb, size_t *ret_n_places,
		       struct error *err)
{
	int r = places_count(pb->places, GROUP_REPLY_PLACES, ret_n_places, err);

	if (r < 0)
		return r;
	if (*ret_n_places < 2)
		return error_set(err, -EPROTO,
				 "%zu places; a group has two or three",
				 *ret_n_places);
	if (pb->side > 1)
		return error_set(err, -EPROTO, "there is no side %u", pb->side);
	r = chunks_check(pb->n_chunks, err);
	if (r < 0)
		return r;
	return check_entries(pb, err);
}

static int take_group_arrays(const Fsdp__GroupReply *pb, struct room *room,
			     struct group_reply *to, struct error *err)
{
	size_t n = pb->full_dtype.len;
	size_t entries_size = n * sizeof(*to->entries);
	size_t chunks_size = pb->n_chunks * sizeof(*to->chunks);
	int r = room_open(room, entries_size + chunks_size, 1, err);

	if (r < 0)
		return r;
	to->n_entries = (uint32_t)n;
	to->entries = room_array(room, entries_size);
	to->n_chunks = (uint32_t)pb->n_chunks;
	to->chunks = room_array(room, chunks_size);
	r = take_group_places(pb, room, to, err);
	for (size_t i = 0; r == 0 && i < n; i++) {
		memset(&to->entries[i], 0, sizeof(to->entries[i]));
		r = take_entry(pb, i, &to->entries[i], err);
		if (r < 0)
			return error_wrap(err, r, "parameter %zu", i);
	}
	return r;
}

static int take_group(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__GroupReply *pb = body;
	struct group_reply *to = &((struct reply *)ret)->group;
	size_t n_places;
	int r = id_take(pb->group, "group", &to->group, err);

	if (r < 0)
		return r;
	r = check_group(pb, &n_places, err);
	if (r < 0)
		return r;
	to->n_places = (uint32_t)n_places;
	to->hash = pb->hash;
	to->step = pb->step;
	to->side = pb->side;
	return take_group_arrays(pb, room, to, err);
}

static void *build_work(const void *message, struct pb_arena *arena)
{
	const struct reply *from = message;
	Fsdp__WorkReply *pb =
		pb_arena_message(arena, &fsdp__work_reply__descriptor);

	if (pb)
		pb->sequence = from->work.sequence;
	return pb;
}

static int take_work(const void *body, struct room *room, void *ret,
		     struct error *err)
{
	const Fsdp__WorkReply *pb = body;

	(void)room;
	return id_take(pb->sequence, "work",
		       &((struct reply *)ret)->work.sequence, err);
}

static void build_comm_item(const struct comm_item *from, Fsdp__CommItem *pb)
{
	pb->name = bytes_from_text(from->name);
	pb->comm = from->comm;
	pb->uid = from->uid;
	pb->state = from->state;
	pb->n_ranks = from->n_ranks;
	pb->n_shards = from->n_shards;
	pb->n_joined = from->n_joined;
	pb->n_groups = from->n_groups;
	pb->step = from->step;
	pb->n_bytes = from->n_bytes;
	pb->ttl_left_ms = from->ttl_left_ms;
	pb->n_in_flight = from->n_in_flight;
	pb->n_limited = from->n_limited;
	pb->bytes_in_flight = from->bytes_in_flight;
	pb->note = bytes_from_text(from->note);
	pb->n_local = from->n_local;
	pb->is_on_devices = from->is_on_devices;
	pb->home = from->home;
}

static void *build_comms(const void *message, struct pb_arena *arena)
{
	const struct comms_reply *from =
		&((const struct reply *)message)->comms;
	Fsdp__CommsReply *pb =
		pb_arena_message(arena, &fsdp__comms_reply__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__comm_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_comm_item(&from->items[i], pb->items[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}

/* All but its texts. */
static void take_comm_numbers(const Fsdp__CommItem *pb, struct comm_item *to)
{
	to->comm = pb->comm;
	to->uid = pb->uid;
	to->state = pb->state;
	to->n_ranks = pb->n_ranks;
	to->n_shards = pb->n_shards;
	to->n_joined = pb->n_joined;
	to->n_groups = pb->n_groups;
	to->step = pb->step;
	to->n_bytes = pb->n_bytes;
	to->ttl_left_ms = pb->ttl_left_ms;
	to->n_in_flight = pb->n_in_flight;
	to->n_limited = pb->n_limited;
	to->bytes_in_flight = pb->bytes_in_flight;
	to->n_local = pb->n_local;
	to->is_on_devices = pb->is_on_devices;
	to->home = pb->home;
}

static int take_comm_item(const Fsdp__CommItem *pb, struct room *room,
			  struct comm_item *to, struct error *err)
{
	int r = name_take(pb->name, NAME_OF_TENSOR, room, &to->name, err);

	if (r < 0)
		return r;
	if (pb->state < COMM_KEPT || pb->state > COMM_FAILED)
		return error_set(err, -EPROTO,
				 "there is no state %u of a communicator",
				 pb->state);
	if (pb->n_shards == 0 || pb->n_ranks % pb->n_shards != 0)
		return error_set(err, -EPROTO,
				 "%u ranks of %u shards cannot be", pb->n_ranks,
				 pb->n_shards);
	if (pb->home > COMM_HOME_WORKER)
		return error_set(err, -EPROTO, "there is no home %u", pb->home);
	take_comm_numbers(pb, to);
	return text_take(pb->note, MESSAGE_MAX_NOTE, "note", room, &to->note,
			 err);
}

static int take_comms(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__CommsReply *pb = body;
	struct comms_reply *to = &((struct reply *)ret)->comms;
	int r = page_open(room, pb->n_items, sizeof(*to->items),
			  2 * pb->n_items, (void **)&to->items, err);

	if (r < 0)
		return r;
	to->next_cursor = pb->next_cursor;
	to->n_items = (uint32_t)pb->n_items;
	for (size_t i = 0; r == 0 && i < pb->n_items; i++)
		r = take_comm_item(pb->items[i], room, &to->items[i], err);
	return r;
}

static void build_group_item(const struct group_item *from, Fsdp__GroupItem *pb)
{
	pb->comm = bytes_from_text(from->comm);
	pb->name = bytes_from_text(from->name);
	pb->n_params = from->n_params;
	pb->n_gather_buckets = from->n_gather_buckets;
	pb->n_reduce_buckets = from->n_reduce_buckets;
	pb->step = from->step;
	pb->hash = from->hash;
	pb->shards_bytes = from->shards_bytes;
	pb->full_bytes = from->full_bytes;
	pb->is_unsharded = from->is_unsharded;
	pb->n_gathers = from->n_gathers;
	pb->n_reductions = from->n_reductions;
}

static void *build_groups(const void *message, struct pb_arena *arena)
{
	const struct groups_reply *from =
		&((const struct reply *)message)->groups;
	Fsdp__GroupsReply *pb =
		pb_arena_message(arena, &fsdp__groups_reply__descriptor);

	if (!pb)
		return NULL;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__group_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_group_item(&from->items[i], pb->items[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}

static int take_group_item(const Fsdp__GroupItem *pb, struct room *room,
			   struct group_item *to, struct error *err)
{
	int r = name_take(pb->comm, NAME_OF_TENSOR, room, &to->comm, err);

	if (r < 0)
		return r;
	to->n_params = pb->n_params;
	to->n_gather_buckets = pb->n_gather_buckets;
	to->n_reduce_buckets = pb->n_reduce_buckets;
	to->step = pb->step;
	to->hash = pb->hash;
	to->shards_bytes = pb->shards_bytes;
	to->full_bytes = pb->full_bytes;
	to->is_unsharded = pb->is_unsharded;
	to->n_gathers = pb->n_gathers;
	to->n_reductions = pb->n_reductions;
	return name_take(pb->name, NAME_OF_TENSOR, room, &to->name, err);
}

static int take_groups(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__GroupsReply *pb = body;
	struct groups_reply *to = &((struct reply *)ret)->groups;
	int r = page_open(room, pb->n_items, sizeof(*to->items),
			  2 * pb->n_items, (void **)&to->items, err);

	if (r < 0)
		return r;
	to->next_cursor = pb->next_cursor;
	to->n_items = (uint32_t)pb->n_items;
	for (size_t i = 0; r == 0 && i < pb->n_items; i++)
		r = take_group_item(pb->items[i], room, &to->items[i], err);
	return r;
}

static void build_plan_item(const struct plan_item *from, Fsdp__PlanItem *pb)
{
	pb->name = bytes_from_text(from->name);
	pb->dtype = from->type.dtype;
	pb->n_shape = from->type.n_dims;
	pb->shape = (int64_t *)(uintptr_t)from->type.shape;
	pb->shard_dim = from->shard_dim;
	pb->full_dtype = from->full_dtype;
	pb->input_dtype = from->input_dtype;
	pb->reduce_dtype = from->reduce_dtype;
	pb->gather_bucket = from->gather_bucket;
	pb->reduce_bucket = from->reduce_bucket;
	pb->shard_offset = from->shard_offset;
	pb->shard_stride = from->shard_stride;
	pb->full_offset = from->full_offset;
	pb->input_offset = from->input_offset;
	pb->grad_offset = from->grad_offset;
	pb->chunk_bytes = from->chunk_bytes;
}

static void *build_group_plan(const void *message, struct pb_arena *arena)
{
	const struct group_plan_reply *from =
		&((const struct reply *)message)->group_plan;
	Fsdp__GroupPlanReply *pb =
		pb_arena_message(arena, &fsdp__group_plan_reply__descriptor);

	if (!pb)
		return NULL;
	pb->hash = from->hash;
	pb->n_shards = from->n_shards;
	pb->n_replicas = from->n_replicas;
	pb->layout = from->layout;
	pb->is_in_place = from->is_in_place;
	pb->n_items = from->n_items;
	pb->items = pb_arena_messages(arena, &fsdp__plan_item__descriptor,
				      from->n_items);
	if (!pb->items)
		return NULL;
	for (uint32_t i = 0; i < from->n_items; i++)
		build_plan_item(&from->items[i], pb->items[i]);
	pb->next_cursor = from->next_cursor;
	return pb;
}

static int take_plan_types(const Fsdp__PlanItem *pb, struct plan_item *to,
			   struct error *err)
{
	uint64_t span;
	int r = type_take(pb->dtype, pb->n_shape, pb->shape, NULL, &to->type,
			  &span, err);

	if (r < 0)
		return r;
	if (pb->shard_dim >= TENSOR_MAX_DIMS)
		return error_set(err, -EPROTO, "there is no dimension %u",
				 pb->shard_dim);
	to->shard_dim = pb->shard_dim;
	r = dtype_take(pb->full_dtype, &to->full_dtype, err);
	if (r >= 0)
		r = dtype_take_or_none(pb->input_dtype, &to->input_dtype, err);
	if (r >= 0)
		r = dtype_take_or_none(pb->reduce_dtype, &to->reduce_dtype,
				       err);
	return r;
}

static int take_plan_item(const Fsdp__PlanItem *pb, struct room *room,
			  struct plan_item *to, struct error *err)
{
	int r = name_take(pb->name, NAME_OF_TENSOR, room, &to->name, err);

	if (r < 0)
		return r;
	to->gather_bucket = pb->gather_bucket;
	to->reduce_bucket = pb->reduce_bucket;
	to->shard_offset = pb->shard_offset;
	to->shard_stride = pb->shard_stride;
	to->full_offset = pb->full_offset;
	to->input_offset = pb->input_offset;
	to->grad_offset = pb->grad_offset;
	to->chunk_bytes = pb->chunk_bytes;
	return take_plan_types(pb, to, err);
}

static int take_plan_head(const Fsdp__GroupPlanReply *pb,
			  struct group_plan_reply *to, struct error *err)
{
	if (pb->n_shards == 0 || pb->n_shards > MESSAGE_MAX_WORLD ||
	    pb->n_replicas == 0 ||
	    pb->n_replicas > MESSAGE_MAX_WORLD / pb->n_shards ||
	    pb->layout > MAX_LAYOUT)
		return error_set(err, -EPROTO,
				 "a plan of %u shards, %u replicas and layout "
				 "%u cannot be",
				 pb->n_shards, pb->n_replicas, pb->layout);
	to->hash = pb->hash;
	to->n_shards = pb->n_shards;
	to->n_replicas = pb->n_replicas;
	to->layout = pb->layout;
	to->is_in_place = pb->is_in_place;
	to->next_cursor = pb->next_cursor;
	return 0;
}

static int take_group_plan(const void *body, struct room *room, void *ret,
			   struct error *err)
{
	const Fsdp__GroupPlanReply *pb = body;
	struct group_plan_reply *to = &((struct reply *)ret)->group_plan;
	int r = take_plan_head(pb, to, err);

	if (r < 0)
		return r;
	r = page_open(room, pb->n_items, sizeof(*to->items), pb->n_items,
		      (void **)&to->items, err);
	if (r < 0)
		return r;
	to->n_items = (uint32_t)pb->n_items;
	for (size_t i = 0; i < pb->n_items; i++) {
		r = take_plan_item(pb->items[i], room, &to->items[i], err);
		if (r < 0)
			return error_wrap(err, r, "parameter %zu", i);
	}
	return 0;
}

#define EMPTY                                                                  \
	{                                                                      \
		&fsdp__empty__descriptor, NULL, NULL                           \
	}
#define CODEC(noun)                                                            \
	{                                                                      \
		&fsdp__##noun##_reply__descriptor, build_##noun, take_##noun   \
	}

/* Replies to input and wait are places: message_reply.c has them. */
const struct codec collective_reply_codecs[MESSAGE_MAX + 1] = {
	[MESSAGE_COMM_JOIN] = CODEC(comm),
	[MESSAGE_COMM_LEAVE] = EMPTY,
	[MESSAGE_COMM_FAIL] = EMPTY,
	[MESSAGE_COMM_REMOVE] = EMPTY,
	[MESSAGE_GROUP] = CODEC(group),
	[MESSAGE_UNSHARD] = CODEC(work),
	[MESSAGE_RESHARD] = EMPTY,
	[MESSAGE_REDUCE] = CODEC(work),
	[MESSAGE_COMMIT] = CODEC(work),
	[MESSAGE_COMMS] = CODEC(comms),
	[MESSAGE_GROUPS] = CODEC(groups),
	[MESSAGE_GROUP_PLAN] = CODEC(group_plan),
};
