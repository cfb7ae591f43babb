/*
 * The requests of collectives, to protobuf and back; both directions of one
 * message stand side by side.
 *
 * As in message_request.c: the build functions borrow from the request, the
 * take functions check all that can be checked without knowing the broker's
 * state. Whether parameters can be cut, cast and reduced as asked, and what a
 * cap or a factor is worth, is for the plan (broker/collective).
 */
#include "proto/message_pb.h"

#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define REDUCE_ALL (REDUCE_ACCUMULATE | REDUCE_NO_ALL_REDUCE | REDUCE_FORCE_SUM)

static void *build_comm_join(const void *message, struct pb_arena *arena)
{
	const struct comm_join_request *from =
		&((const struct request *)message)->comm_join;
	Fsdp__CommJoinRequest *pb =
		pb_arena_message(arena, &fsdp__comm_join_request__descriptor);

	if (!pb)
		return NULL;
	pb->name = bytes_from_text(from->name);
	pb->gid = from->access.gid;
	pb->mode = from->access.mode;
	pb->n_ranks = from->n_ranks;
	pb->rank = from->rank;
	pb->n_shards = from->n_shards;
	pb->timeout_ms = from->timeout_ms;
	pb->ttl_ms = from->ttl_ms;
	pb->limiter = from->limiter;
	pb->limit = from->limit;
	pb->limit_bytes = from->limit_bytes;
	pb->n_inputs = from->n_inputs;
	pb->device = bytes_from_device(&from->device);
	pb->n_local = from->n_local;
	if (from->has_nccl_id)
		pb->nccl_id = bytes_from_nccl_id(from->nccl_id);
	pb->home = from->home;
	pb->memory = from->memory;
	return pb;
}

static int take_mesh(const Fsdp__CommJoinRequest *pb,
		     struct comm_join_request *to, struct error *err)
{
	uint32_t max = device_uuid_is_host(&to->device) ? MESSAGE_MAX_RANKS
							: MESSAGE_MAX_WORLD;

	if (pb->n_ranks == 0 || pb->n_ranks > max)
		return error_set(err, -EINVAL,
				 "a communicator has 1 to %u ranks, not %u",
				 max, pb->n_ranks);
	if (pb->rank >= pb->n_ranks)
		return error_set(err, -EINVAL,
				 "there is no rank %u among %u; they count "
				 "from 0",
				 pb->rank, pb->n_ranks);
	to->n_ranks = pb->n_ranks;
	to->rank = pb->rank;
	to->n_shards = pb->n_shards ? pb->n_shards : pb->n_ranks;
	if (to->n_ranks % to->n_shards != 0)
		return error_set(err, -EINVAL,
				 "%u ranks cannot be replicas of %u shards "
				 "each; the shards must divide the ranks",
				 to->n_ranks, to->n_shards);
	return 0;
}

/* What only one on devices can say. */
static int take_node(const Fsdp__CommJoinRequest *pb,
		     struct comm_join_request *to, struct error *err)
{
	bool is_host = device_uuid_is_host(&to->device);

	to->n_local = pb->n_local ? pb->n_local : pb->n_ranks;
	if (to->n_local > pb->n_ranks || to->n_local > MESSAGE_MAX_RANKS)
		return error_set(err, -EINVAL,
				 "%u of %u ranks cannot be on one node; it "
				 "takes %d at most (n_local)",
				 to->n_local, pb->n_ranks, MESSAGE_MAX_RANKS);
	if (is_host && (to->n_local != pb->n_ranks || pb->nccl_id.len))
		return error_set(err, -EINVAL,
				 "on host memory all ranks are on one node, "
				 "and there is no NCCL; give each rank a "
				 "device");
	if (pb->home > COMM_HOME_WORKER)
		return error_set(err, -EINVAL, "there is no home %u", pb->home);
	if (is_host && pb->home != COMM_HOME_RANK)
		return error_set(err, -EINVAL,
				 "a home is chosen on devices only; host "
				 "memory always is fsdp-worker's");
	to->home = pb->home;
	return nccl_id_take(pb->nccl_id, &to->has_nccl_id, to->nccl_id, err);
}

static int take_memory(const Fsdp__CommJoinRequest *pb,
		       struct comm_join_request *to, struct error *err)
{
	if (pb->memory > COMM_MEMORY_REGISTERED)
		return error_set(err, -EINVAL, "there is no kind of memory %u",
				 pb->memory);
	if (pb->memory != COMM_MEMORY_DEFAULT &&
	    (device_uuid_is_host(&to->device) || to->home != COMM_HOME_RANK))
		return error_set(err, -EINVAL,
				 "only ranks on devices that do the work "
				 "themselves can register memory with NCCL; "
				 "leave the kind of memory out");
	to->memory = pb->memory;
	return 0;
}

static int take_limits(const Fsdp__CommJoinRequest *pb,
		       struct comm_join_request *to, struct error *err)
{
	if (pb->limiter > COMM_LIMITER_FAITHFUL)
		return error_set(err, -EINVAL, "there is no limiter %u",
				 pb->limiter);
	if (pb->n_inputs == 0)
		return error_set(err, -EINVAL,
				 "a rank needs at least one gradient input");
	to->limiter = pb->limiter;
	to->limit = pb->limit;
	to->n_inputs = pb->n_inputs;
	return size_take(pb->limit_bytes, "limit of bytes", &to->limit_bytes,
			 err);
}

static int take_times(const Fsdp__CommJoinRequest *pb,
		      struct comm_join_request *to, struct error *err)
{
	if (pb->timeout_ms <= 0 || pb->ttl_ms == 0)
		return error_set(err, -EINVAL,
				 "a communicator needs a time-out and a time "
				 "to live, both above 0");
	to->timeout_ms = pb->timeout_ms;
	return ttl_take(pb->ttl_ms, &to->ttl_ms, err);
}

static int take_comm_join(const void *body, struct room *room, void *ret,
			  struct error *err)
{
	const Fsdp__CommJoinRequest *pb = body;
	struct comm_join_request *to = &((struct request *)ret)->comm_join;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	r = name_take(pb->name, NAME_OF_TENSOR, room, &to->name, err);
	if (r < 0)
		return r;
	r = access_take(0, pb->gid, pb->mode, &to->access, err);
	if (r < 0)
		return r;
	r = device_take(pb->device, &to->device, err);
	if (r < 0)
		return r;
	r = take_mesh(pb, to, err);
	if (r < 0)
		return r;
	r = take_node(pb, to, err);
	if (r < 0)
		return r;
	r = take_memory(pb, to, err);
	if (r < 0)
		return r;
	r = take_limits(pb, to, err);
	if (r < 0)
		return r;
	return take_times(pb, to, err);
}

static void *build_comm_leave(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__CommLeaveRequest *pb =
		pb_arena_message(arena, &fsdp__comm_leave_request__descriptor);

	if (pb)
		pb->comm = from->comm_leave.comm;
	return pb;
}

static int take_comm_leave(const void *body, struct room *room, void *ret,
			   struct error *err)
{
	const Fsdp__CommLeaveRequest *pb = body;

	(void)room;
	return id_take(pb->comm, "communicator",
		       &((struct request *)ret)->comm_leave.comm, err);
}

static void *build_comm_fail(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__CommFailRequest *pb =
		pb_arena_message(arena, &fsdp__comm_fail_request__descriptor);

	if (!pb)
		return NULL;
	pb->comm = from->comm_fail.comm;
	pb->sentence = bytes_from_text(from->comm_fail.sentence);
	return pb;
}

static int take_comm_fail(const void *body, struct room *room, void *ret,
			  struct error *err)
{
	const Fsdp__CommFailRequest *pb = body;
	struct comm_fail_request *to = &((struct request *)ret)->comm_fail;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	r = id_take(pb->comm, "communicator", &to->comm, err);
	if (r < 0)
		return r;
	return text_take(pb->sentence, MESSAGE_MAX_TEXT, "sentence", room,
			 &to->sentence, err);
}

static void *build_comm_remove(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__CommRemoveRequest *pb =
		pb_arena_message(arena, &fsdp__comm_remove_request__descriptor);

	if (pb)
		pb->name = bytes_from_text(from->comm_remove.name);
	return pb;
}

static int take_comm_remove(const void *body, struct room *room, void *ret,
			    struct error *err)
{
	const Fsdp__CommRemoveRequest *pb = body;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	return name_take(pb->name, NAME_OF_TENSOR, room,
			 &((struct request *)ret)->comm_remove.name, err);
}

static Fsdp__GroupParam **build_params(const struct group_request *from,
				       struct pb_arena *arena)
{
	Fsdp__GroupParam **pb = pb_arena_messages(
		arena, &fsdp__group_param__descriptor, from->n_params);

	for (uint32_t i = 0; pb && i < from->n_params; i++) {
		const struct group_param *param = &from->params[i];

		pb[i]->name = bytes_from_text(param->name);
		pb[i]->dtype = param->type.dtype;
		pb[i]->n_shape = param->type.n_dims;
		pb[i]->shape = (int64_t *)(uintptr_t)param->type.shape;
		pb[i]->shard_dim = param->shard_dim;
		pb[i]->is_frozen = param->is_frozen;
	}
	return pb;
}

static void *build_group(const void *message, struct pb_arena *arena)
{
	const struct group_request *from =
		&((const struct request *)message)->group;
	Fsdp__GroupRequest *pb =
		pb_arena_message(arena, &fsdp__group_request__descriptor);

	if (!pb)
		return NULL;
	pb->comm = from->comm;
	pb->name = bytes_from_text(from->name);
	pb->param_dtype = from->param_dtype;
	pb->input_dtype = from->input_dtype;
	pb->reduce_dtype = from->reduce_dtype;
	pb->layout = from->layout;
	pb->stays_unsharded = from->stays_unsharded;
	pb->is_offloaded = from->is_offloaded;
	pb->n_gather_caps_mb = from->n_gather_caps;
	pb->gather_caps_mb = from->gather_caps_mb;
	pb->n_reduce_caps_mb = from->n_reduce_caps;
	pb->reduce_caps_mb = from->reduce_caps_mb;
	pb->n_params = from->n_params;
	pb->params = build_params(from, arena);
	return pb->params ? pb : NULL;
}

static int take_param(const Fsdp__GroupParam *pb, struct room *room,
		      struct group_param *to, struct error *err)
{
	uint64_t span;
	int r = name_take(pb->name, NAME_OF_TENSOR, room, &to->name, err);

	if (r < 0)
		return r;
	r = type_take(pb->dtype, pb->n_shape, pb->shape, NULL, &to->type, &span,
		      err);
	if (r < 0)
		return error_wrap(err, r, "\"%s\"", to->name);
	to->shard_dim = pb->shard_dim;
	to->is_frozen = pb->is_frozen;
	return 0;
}

static int take_policy(const Fsdp__GroupRequest *pb, struct group_request *to,
		       struct error *err)
{
	int r = dtype_take_or_none(pb->param_dtype, &to->param_dtype, err);

	if (r < 0)
		return error_wrap(err, r, "param dtype");
	r = dtype_take_or_none(pb->input_dtype, &to->input_dtype, err);
	if (r < 0)
		return error_wrap(err, r, "input dtype");
	r = dtype_take_or_none(pb->reduce_dtype, &to->reduce_dtype, err);
	if (r < 0)
		return error_wrap(err, r, "reduce dtype");
	if (pb->layout > 1)
		return error_set(err, -EINVAL, "there is no layout %u",
				 pb->layout);
	if (pb->n_gather_caps_mb > MESSAGE_MAX_CAPS ||
	    pb->n_reduce_caps_mb > MESSAGE_MAX_CAPS)
		return error_set(err, -E2BIG,
				 "%zu and %zu caps of buckets; at most %d of "
				 "each may be",
				 pb->n_gather_caps_mb, pb->n_reduce_caps_mb,
				 MESSAGE_MAX_CAPS);
	to->layout = pb->layout;
	to->stays_unsharded = pb->stays_unsharded;
	to->is_offloaded = pb->is_offloaded;
	return 0;
}

static double *take_caps(size_t n, const double *caps_mb, struct room *room,
			 uint32_t *ret_n)
{
	double *caps = room_array(room, n * sizeof(*caps));

	if (n > 0)
		memcpy(caps, caps_mb, n * sizeof(*caps));
	*ret_n = (uint32_t)n;
	return caps;
}

/* After its counts were checked. */
static int take_group_arrays(const Fsdp__GroupRequest *pb, struct room *room,
			     struct group_request *to, struct error *err)
{
	size_t params_size = pb->n_params * sizeof(*to->params);
	size_t n_caps = pb->n_gather_caps_mb + pb->n_reduce_caps_mb;
	int r = room_open(room, params_size + n_caps * sizeof(double),
			  pb->n_params + 1, err);

	if (r < 0)
		return r;
	to->n_params = (uint32_t)pb->n_params;
	to->params = room_array(room, params_size);
	memset(to->params, 0, params_size);
	to->gather_caps_mb = take_caps(pb->n_gather_caps_mb, pb->gather_caps_mb,
				       room, &to->n_gather_caps);
	to->reduce_caps_mb = take_caps(pb->n_reduce_caps_mb, pb->reduce_caps_mb,
				       room, &to->n_reduce_caps);
	r = name_take(pb->name, NAME_OF_TENSOR, room, &to->name, err);
	for (size_t i = 0; r == 0 && i < pb->n_params; i++) {
		r = take_param(pb->params[i], room, &to->params[i], err);
		if (r < 0)
			return error_wrap(err, r, "parameter %zu", i);
	}
	return r;
}

static int take_group(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__GroupRequest *pb = body;
	struct group_request *to = &((struct request *)ret)->group;
	int r = id_take(pb->comm, "communicator", &to->comm, err);

	if (r < 0)
		return r;
	r = count_check(pb->n_params, MESSAGE_MAX_PARAMS, "parameters", err);
	if (r < 0)
		return r;
	r = take_policy(pb, to, err);
	if (r < 0)
		return r;
	return take_group_arrays(pb, room, to, err);
}

static void *build_unshard(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__UnshardRequest *pb =
		pb_arena_message(arena, &fsdp__unshard_request__descriptor);

	if (pb)
		pb->group = from->unshard.group;
	return pb;
}

static int take_unshard(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__UnshardRequest *pb = body;

	(void)room;
	return id_take(pb->group, "group",
		       &((struct request *)ret)->unshard.group, err);
}

static void *build_reshard(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__ReshardRequest *pb =
		pb_arena_message(arena, &fsdp__reshard_request__descriptor);

	if (!pb)
		return NULL;
	pb->group = from->reshard.group;
	pb->n_mesh = from->reshard.n_mesh;
	return pb;
}

static int take_reshard(const void *body, struct room *room, void *ret,
			struct error *err)
{
	const Fsdp__ReshardRequest *pb = body;
	struct reshard_request *to = &((struct request *)ret)->reshard;

	(void)room;
	if (pb->n_mesh > MESSAGE_MAX_WORLD)
		return error_set(err, -EINVAL,
				 "a mesh of %u ranks; a communicator has at "
				 "most %d",
				 pb->n_mesh, MESSAGE_MAX_WORLD);
	to->n_mesh = pb->n_mesh;
	return id_take(pb->group, "group", &to->group, err);
}

static void *build_input(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__InputRequest *pb =
		pb_arena_message(arena, &fsdp__input_request__descriptor);

	if (!pb)
		return NULL;
	pb->group = from->input.group;
	pb->timeout_ms = from->input.timeout_ms;
	return pb;
}

static int take_input(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__InputRequest *pb = body;
	struct input_request *to = &((struct request *)ret)->input;
	int r = id_take(pb->group, "group", &to->group, err);

	(void)room;
	if (r < 0)
		return r;
	return timeout_take(pb->timeout_ms, &to->timeout_ms, err);
}

static void *build_reduce(const void *message, struct pb_arena *arena)
{
	const struct reduce_request *from =
		&((const struct request *)message)->reduce;
	Fsdp__ReduceRequest *pb =
		pb_arena_message(arena, &fsdp__reduce_request__descriptor);

	if (!pb)
		return NULL;
	pb->group = from->group;
	pb->slot = from->input.slot;
	pb->generation = from->input.generation;
	pb->flags = from->flags;
	if (from->has_factor) {
		pb->has_factor = true;
		pb->factor = from->factor;
	}
	return pb;
}

static int take_reduce(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__ReduceRequest *pb = body;
	struct reduce_request *to = &((struct request *)ret)->reduce;
	int r = id_take(pb->group, "group", &to->group, err);

	(void)room;
	if (r < 0)
		return r;
	r = ref_take(pb->slot, pb->generation, &to->input, err);
	if (r < 0)
		return r;
	to->has_factor = pb->has_factor;
	to->factor = pb->has_factor ? pb->factor : 0;
	return flags_take(pb->flags, REDUCE_ALL, &to->flags, err);
}

static void *build_commit(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__CommitRequest *pb =
		pb_arena_message(arena, &fsdp__commit_request__descriptor);

	if (!pb)
		return NULL;
	pb->comm = from->commit.comm;
	pb->step = from->commit.step;
	return pb;
}

static int take_commit(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__CommitRequest *pb = body;
	struct commit_request *to = &((struct request *)ret)->commit;
	int r = id_take(pb->comm, "communicator", &to->comm, err);

	(void)room;
	if (r < 0)
		return r;
	if (pb->step == 0)
		return error_set(err, -EINVAL,
				 "step 0 cannot be committed; it stands for "
				 "none");
	to->step = pb->step;
	return 0;
}

static void *build_wait(const void *message, struct pb_arena *arena)
{
	const struct wait_request *from =
		&((const struct request *)message)->wait;
	Fsdp__WaitRequest *pb =
		pb_arena_message(arena, &fsdp__wait_request__descriptor);

	if (!pb)
		return NULL;
	pb->comm = from->comm;
	pb->group = from->group;
	pb->kind = from->kind;
	pb->sequence = from->sequence;
	pb->timeout_ms = from->timeout_ms;
	return pb;
}

static int take_wait(const void *body, struct room *room, void *ret,
		     struct error *err)
{
	const Fsdp__WaitRequest *pb = body;
	struct wait_request *to = &((struct request *)ret)->wait;
	int r = id_take(pb->comm, "communicator", &to->comm, err);

	(void)room;
	if (r < 0)
		return r;
	if (pb->kind < WORK_UNSHARD || pb->kind > WORK_COMMIT)
		return error_set(err, -EINVAL, "there is no work of kind %u",
				 pb->kind);
	if ((pb->group == 0) != (pb->kind == WORK_COMMIT) ||
	    (pb->sequence == 0 && pb->kind != WORK_UNSHARD))
		return error_set(err, -EINVAL,
				 "number %" PRIu64 " of kind %u of group "
				 "%" PRIu64 " is no work; commits alone are of "
				 "no group",
				 pb->sequence, pb->kind, pb->group);
	to->group = pb->group;
	to->kind = pb->kind;
	to->sequence = pb->sequence;
	return timeout_take(pb->timeout_ms, &to->timeout_ms, err);
}

static void *build_comms(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__CommsRequest *pb =
		pb_arena_message(arena, &fsdp__comms_request__descriptor);

	if (pb)
		pb->cursor = from->comms.cursor;
	return pb;
}

static int take_comms(const void *body, struct room *room, void *ret,
		      struct error *err)
{
	const Fsdp__CommsRequest *pb = body;

	(void)room;
	(void)err;
	((struct request *)ret)->comms.cursor = pb->cursor;
	return 0;
}

static void *build_groups(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__GroupsRequest *pb =
		pb_arena_message(arena, &fsdp__groups_request__descriptor);

	if (!pb)
		return NULL;
	pb->comm = bytes_from_text(from->groups.comm);
	pb->cursor = from->groups.cursor;
	return pb;
}

static int take_groups(const void *body, struct room *room, void *ret,
		       struct error *err)
{
	const Fsdp__GroupsRequest *pb = body;
	struct groups_request *to = &((struct request *)ret)->groups;
	int r = room_open(room, 0, 1, err);

	if (r < 0)
		return r;
	to->cursor = pb->cursor;
	return name_take(pb->comm, NAME_OF_TENSOR_OR_NONE, room, &to->comm,
			 err);
}

static void *build_group_plan(const void *message, struct pb_arena *arena)
{
	const struct request *from = message;
	Fsdp__GroupPlanRequest *pb =
		pb_arena_message(arena, &fsdp__group_plan_request__descriptor);

	if (!pb)
		return NULL;
	pb->comm = bytes_from_text(from->group_plan.comm);
	pb->group = bytes_from_text(from->group_plan.group);
	pb->cursor = from->group_plan.cursor;
	return pb;
}

static int take_group_plan(const void *body, struct room *room, void *ret,
			   struct error *err)
{
	const Fsdp__GroupPlanRequest *pb = body;
	struct group_plan_request *to = &((struct request *)ret)->group_plan;
	int r = room_open(room, 0, 2, err);

	if (r < 0)
		return r;
	to->cursor = pb->cursor;
	r = name_take(pb->comm, NAME_OF_TENSOR, room, &to->comm, err);
	if (r < 0)
		return error_wrap(err, r, "communicator");
	r = name_take(pb->group, NAME_OF_TENSOR, room, &to->group, err);
	if (r < 0)
		return error_wrap(err, r, "group");
	return 0;
}

#define CODEC(noun)                                                            \
	{                                                                      \
		&fsdp__##noun##_request__descriptor, build_##noun, take_##noun \
	}

const struct codec collective_request_codecs[MESSAGE_MAX + 1] = {
	[MESSAGE_COMM_JOIN] = CODEC(comm_join),
	[MESSAGE_COMM_LEAVE] = CODEC(comm_leave),
	[MESSAGE_COMM_FAIL] = CODEC(comm_fail),
	[MESSAGE_COMM_REMOVE] = CODEC(comm_remove),
	[MESSAGE_GROUP] = CODEC(group),
	[MESSAGE_UNSHARD] = CODEC(unshard),
	[MESSAGE_RESHARD] = CODEC(reshard),
	[MESSAGE_INPUT] = CODEC(input),
	[MESSAGE_REDUCE] = CODEC(reduce),
	[MESSAGE_COMMIT] = CODEC(commit),
	[MESSAGE_WAIT] = CODEC(wait),
	[MESSAGE_COMMS] = CODEC(comms),
	[MESSAGE_GROUPS] = CODEC(groups),
	[MESSAGE_GROUP_PLAN] = CODEC(group_plan),
};
