/*
 * Groups: registering, and the ways to what is in their memory.
 *
 * The broker says where this rank's part of every parameter lies. What follows
 * from the parameters alone (sizes, the cut) is computed here, compared with
 * that, and every range is checked against its place: from then on a pointer
 * is an addition.
 */
#include "client/comm.h"
#include "client/engine.h"
#include "client/places.h"
#include "client/spec.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(FSDP_MAX_PARAMS == MESSAGE_MAX_PARAMS, "one limit of params");

/* --- handles -------------------------------------------------------------- */

static void end_handle(struct fsdp_tensor **tensor)
{
	fsdp_free(*tensor);
	*tensor = NULL;
}

void group_end_handles(struct fsdp_group *group)
{
	end_handle(&group->shards[0]);
	end_handle(&group->shards[1]);
	end_handle(&group->grads);
	end_handle(&group->input);
	end_handle(&group->full);
	if (group->engine)
		engine_group_end_handles(group->engine);
}

void group_free(struct fsdp_group *group)
{
	engine_group_free(group->engine);
	free(group->params);
	free(group);
}

/* Memory of collectives is bytes; 0 for any other place. */
static uint64_t bytes_of(const struct tensor_place *place)
{
	const struct tensor_type *type = &place->type;

	if (type->dtype != DTYPE_U8 || type->n_dims != 1 ||
	    !tensor_type_is_contiguous(type))
		return 0;
	return (uint64_t)type->shape[0];
}

static bool fits(uint64_t offset, uint64_t size, uint64_t total)
{
	return offset <= total && size <= total - offset;
}

/* NULL: the place has no memory, or there is none: what is trained of a group
 * may have no elements. */
static uint8_t *at(const struct fsdp_tensor *tensor, uint64_t offset)
{
	return tensor && tensor->data ? tensor->data + offset : NULL;
}

/*
 * The one place of an answer, of at least `size` bytes; nothing stays held on
 * failure.
 */
static int adopt_one(struct fsdp_client *client, struct answer *answer,
		     bool is_writable, uint64_t size, struct fsdp_tensor **ret,
		     struct error *err)
{
	struct places_reply *places = &answer->reply.places;
	struct places_use use = {.n = 1, .is_writable = is_writable};

	places_take_chunks(client, answer, places->chunks, places->n_chunks, 0);
	if (places->n_places != 1 || bytes_of(&places->places[0]) < size) {
		places_give_back(client, places);
		return error_set(err, -EPROTO,
				 "fsdpd sent no place of %" PRIu64 " bytes",
				 size);
	}
	return places_adopt_batch(client, places, &use, ret, err);
}

/* --- registering: what is asked ------------------------------------------ */

static struct fsdp_group *group_new(struct fsdp_comm *comm, size_t n)
{
	struct fsdp_group *group = calloc(1, sizeof(*group));

	if (!group)
		return NULL;
	group->comm = comm;
	group->n_params = n;
	group->params = calloc(n + 1, sizeof(*group->params));
	if (group->params)
		return group;
	free(group);
	return NULL;
}

static int fill_params(struct fsdp_group *group,
		       const struct fsdp_param_spec *specs,
		       struct group_param *ret, struct error *err)
{
	for (size_t i = 0; i < group->n_params; i++) {
		struct param *param = &group->params[i];
		int r = spec_to_type(&specs[i].spec, NULL, &param->type, err);

		if (r < 0)
			return error_wrap(err, r, "parameter %zu", i);
		param->is_frozen = specs[i].is_frozen;
		ret[i] = (struct group_param){
			.name = specs[i].name,
			.type = param->type,
			.shard_dim = specs[i].shard_dim,
			.is_frozen = specs[i].is_frozen,
		};
	}
	return 0;
}

/* What the engine needs to know of it. On failure nothing is left of the
 * answer. */
static int plan_own(struct fsdp_group *group, const struct group_request *asked,
		    struct answer *answer, struct error *err)
{
	struct group_reply *reply = &answer->reply.group;
	struct places_reply places = {.n_places = reply->n_places,
				      .places = reply->places};
	int r = engine_group_new(group, asked, reply->hash, err);

	if (r == 0)
		return 0;
	places_take_chunks(group->comm->client, answer, reply->chunks,
			   reply->n_chunks, 0);
	places_give_back(group->comm->client, &places);
	answer_deinit(answer);
	return r;
}

static int ask(struct fsdp_group *group, const char *name,
	       const struct fsdp_param_spec *specs,
	       const struct fsdp_policy *policy, struct answer *ret,
	       struct error *err)
{
	double gather_cap_mb = policy->gather_cap_mb;
	double reduce_cap_mb = policy->reduce_cap_mb;
	struct request request = {
		.kind = MESSAGE_GROUP,
		.group = {.comm = group->comm->id,
			  .name = name,
			  .param_dtype = policy->param_dtype,
			  .reduce_dtype = policy->reduce_dtype,
			  .layout = policy->layout,
			  .stays_unsharded = policy->stays_unsharded,
			  .n_gather_caps = gather_cap_mb != 0,
			  .n_reduce_caps = reduce_cap_mb != 0,
			  .gather_caps_mb = &gather_cap_mb,
			  .reduce_caps_mb = &reduce_cap_mb,
			  .n_params = (uint32_t)group->n_params},
	};
	int r;

	request.group.params =
		calloc(group->n_params + 1, sizeof(*request.group.params));
	if (!request.group.params)
		return error_set(err, -ENOMEM, "no memory for a request");
	r = fill_params(group, specs, request.group.params, err);
	if (r == 0)
		r = comm_call(group->comm, &request, ret, err);
	if (r == 0 && group->comm->engine)
		r = plan_own(group, &request.group, ret, err);
	free(request.group.params);
	return r;
}

/* --- registering: what is answered --------------------------------------- */

/* This rank's part, by the rule of torch.chunk (broker/collective/shard.h). */
static int cut(const struct fsdp_comm *comm, const struct group_entry *entry,
	       struct param *param, struct error *err)
{
	const struct tensor_type *type = &param->type;
	int64_t n = comm->n_shards, rank = comm->rank % comm->n_shards;
	uint32_t dim = entry->shard_dim;
	/* A 0-d parameter is cut as if it were 1-d of one element. */
	int64_t size = type->n_dims ? type->shape[dim] : 1;
	int64_t chunk = (size + n - 1) / n, start = chunk * rank, mine;
	uint64_t row;

	start = start < size ? start : size;
	mine = size - start < chunk ? size - start : chunk;
	if (dim >= (type->n_dims ? type->n_dims : 1) ||
	    entry->shard_size != mine || (dim > 0 && size % n != 0))
		return error_set(err, -EPROTO,
				 "fsdpd gave %" PRId64 " of dimension %u to "
				 "this rank, whose part is %" PRId64,
				 entry->shard_size, dim, mine);
	param->start = start;
	param->shard = *type;
	param->shard.n_dims = type->n_dims ? type->n_dims : 1;
	param->shard.shape[dim] = mine;
	tensor_type_contiguous(&param->shard);
	row = size ? tensor_type_numel(type) / (uint64_t)size *
			      dtype_size(type->dtype)
		   : 0;
	param->shard_size = row * (uint64_t)mine;
	param->chunk_size = row * (uint64_t)chunk;
	return 0;
}

static int locate(struct fsdp_group *group, const struct group_entry *entry,
		  struct param *param, struct error *err)
{
	uint64_t full_end, input_end;

	if (__builtin_mul_overflow(tensor_type_numel(&param->type),
				   dtype_size(entry->full_dtype),
				   &param->full_size) ||
	    __builtin_add_overflow(entry->full_offset, param->full_size,
				   &full_end) ||
	    __builtin_add_overflow(entry->input_offset, param->full_size,
				   &input_end))
		return error_set(err, -EPROTO,
				 "fsdpd put it beyond all memory");
	param->full_dtype = entry->full_dtype;
	param->shard_offset = entry->shard_offset;
	param->full_offset = entry->full_offset;
	param->input_offset = entry->input_offset;
	param->grad_offset = entry->grad_offset;
	if (full_end > group->full_size)
		group->full_size = full_end;
	if (!param->is_frozen && input_end > group->input_size)
		group->input_size = input_end;
	return 0;
}

static int take_entry(struct fsdp_group *group, const struct group_reply *reply,
		      size_t i, struct error *err)
{
	const struct group_entry *entry = &reply->entries[i];
	struct param *param = &group->params[i];
	uint64_t grads = reply->n_places > 2 ? bytes_of(&reply->places[2]) : 0;
	int r;

	r = cut(group->comm, entry, param, err);
	if (r == 0)
		r = locate(group, entry, param, err);
	if (r < 0)
		return r;
	if (!fits(param->shard_offset, param->chunk_size,
		  bytes_of(&reply->places[0])) ||
	    !fits(param->shard_offset, param->chunk_size,
		  bytes_of(&reply->places[1])) ||
	    (!param->is_frozen &&
	     !fits(param->grad_offset, param->shard_size, grads)))
		return error_set(err, -EPROTO,
				 "fsdpd put it outside of its memory");
	return 0;
}

static int take_entries(struct fsdp_group *group,
			const struct group_reply *reply, struct error *err)
{
	if (reply->n_entries != group->n_params)
		return error_set(err, -EPROTO, "fsdpd sent %u of %zu entries",
				 reply->n_entries, group->n_params);
	for (size_t i = 0; i < group->n_params; i++) {
		int r = take_entry(group, reply, i, err);

		if (r < 0)
			return error_wrap(err, r, "parameter %zu", i);
	}
	group->id = reply->group;
	group->side = reply->side;
	group->step = reply->step;
	return 0;
}

static int take_group(struct fsdp_group *group, struct answer *answer,
		      struct error *err)
{
	struct fsdp_client *client = group->comm->client;
	struct group_reply *reply = &answer->reply.group;
	struct places_reply places = {.n_places = reply->n_places,
				      .places = reply->places};
	struct places_use use = {.n = reply->n_places, .is_writable = true};
	struct fsdp_tensor *tensors[GROUP_REPLY_PLACES] = {NULL};
	int r;

	places_take_chunks(client, answer, reply->chunks, reply->n_chunks, 0);
	r = take_entries(group, reply, err);
	if (r < 0) {
		places_give_back(client, &places);
		return r;
	}
	r = places_adopt_batch(client, &places, &use, tensors, err);
	if (r < 0)
		return r;
	group->shards[0] = tensors[0];
	group->shards[1] = tensors[1];
	group->grads = tensors[2];
	if (group->engine)
		engine_group_take_partial(group->engine, tensors[3]);
	else
		fsdp_free(tensors[3]);
	return 0;
}

static int zero_padding(struct fsdp_group *group, uint32_t side,
			struct error *err)
{
	if (group->engine)
		return engine_zero_padding(group, side, err);
	for (size_t i = 0; i < group->n_params; i++) {
		const struct param *param = &group->params[i];
		uint64_t size = param->chunk_size - param->shard_size;

		if (size > 0)
			memset(at(group->shards[side],
				  param->shard_offset + param->shard_size),
			       0, size);
	}
	return 0;
}

/* What is committed has its zeros, and others may be reading it. */
static int zero_all_padding(struct fsdp_group *group, struct error *err)
{
	int r = zero_padding(group, !group->side, err);

	if (r == 0 && group->step == 0)
		r = zero_padding(group, group->side, err);
	return r;
}

int fsdp_group_register(struct fsdp_comm *comm, const char *name,
			const struct fsdp_param_spec *params, size_t n,
			const struct fsdp_policy *policy,
			struct fsdp_group **ret)
{
	static const struct fsdp_policy defaults;
	struct error *err = error_of_thread();
	struct fsdp_group *group;
	struct answer answer;
	int r;

	r = comm_check_idle(comm, err);
	if (r < 0)
		return r;
	if (n > FSDP_MAX_PARAMS)
		return error_set(err, -E2BIG,
				 "%zu parameters; a group has at most %d", n,
				 FSDP_MAX_PARAMS);
	group = group_new(comm, n);
	if (!group)
		return error_set(err, -ENOMEM, "no memory for a group");
	r = ask(group, name, params, policy ? policy : &defaults, &answer, err);
	if (r == 0) {
		r = take_group(group, &answer, err);
		answer_deinit(&answer);
	}
	if (r == 0)
		r = zero_all_padding(group, err);
	if (r < 0) {
		group_end_handles(group);
		group_free(group);
		return r;
	}
	group->next = comm->groups;
	comm->groups = group;
	*ret = group;
	return 0;
}

/* --- shards --------------------------------------------------------------- */

static int check_param(const struct fsdp_group *group, size_t param,
		       struct error *err)
{
	if (param >= group->n_params)
		return error_set(err, -EINVAL,
				 "there is no parameter %zu; the group has %zu",
				 param, group->n_params);
	return 0;
}

int fsdp_shard(struct fsdp_group *group, size_t param, struct fsdp_shard *ret)
{
	struct error *err = error_of_thread();
	const struct fsdp_tensor *current, *next;
	struct param *it;
	int r;

	r = comm_check_idle(group->comm, err);
	if (r == 0)
		r = check_param(group, param, err);
	if (r < 0)
		return r;
	it = &group->params[param];
	current = group->shards[group->side];
	next = group->shards[!group->side];
	/* The caller may write `next`, which a commit must undo if frozen. */
	it->is_carried = false;
	*ret = (struct fsdp_shard){
		.dtype = (enum fsdp_dtype)it->shard.dtype,
		.n_dims = it->shard.n_dims,
		.start = it->start,
		.numel = tensor_type_numel(&it->shard),
		.current = group->step ? at(current, it->shard_offset) : NULL,
		.next = at(next, it->shard_offset),
		.grad = it->is_frozen ? NULL
				      : at(group->grads, it->grad_offset),
	};
	memcpy(ret->shape, it->shard.shape, sizeof(ret->shape));
	return 0;
}

static int carry(struct fsdp_group *group, const struct param *param,
		 struct error *err)
{
	if (param->chunk_size == 0)
		return 0;
	if (group->engine)
		return engine_carry(group, param->shard_offset,
				    param->chunk_size, err);
	memcpy(at(group->shards[!group->side], param->shard_offset),
	       at(group->shards[group->side], param->shard_offset),
	       param->chunk_size);
	return 0;
}

int group_carry_frozen(struct fsdp_group *group, struct error *err)
{
	int r = 0;

	for (size_t i = 0; group->step && i < group->n_params && r == 0; i++) {
		struct param *param = &group->params[i];

		if (!param->is_frozen || param->is_carried)
			continue;
		r = carry(group, param, err);
		param->is_carried = r == 0;
	}
	return r;
}

void group_commit(struct fsdp_group *group, uint64_t step)
{
	group->side = !group->side;
	group->step = step;
}

/* --- whole parameters ----------------------------------------------------- */

/* With the connection's lock; read behind the answer to a later call. */
static void note_refusal(void *data, uint64_t number, const struct error *cause)
{
	struct fsdp_group *group = data;

	group->refused = number;
	group->refusal = *cause;
}

/* On host memory the broker orders the ranks, and its answer would say nothing
 * that the wait does not ask for. */
static int post_unshard(struct fsdp_group *group, struct error *err)
{
	struct request request = {.kind = MESSAGE_UNSHARD,
				  .unshard = {.group = group->id}};
	struct post post = {
		.refused = note_refusal,
		.data = group,
		.number = group->n_posted + 1,
	};
	int r = client_post(group->comm->client, &request, &post, err);

	if (r == 0)
		group->open = ++group->n_posted;
	return r;
}

/* What each rank does itself is begun in the order in which the broker has it,
 * and not at all if it is refused. */
static int ask_unshard(struct fsdp_group *group, struct error *err)
{
	struct request request = {.kind = MESSAGE_UNSHARD,
				  .unshard = {.group = group->id}};
	struct answer answer;
	int r = comm_call(group->comm, &request, &answer, err);

	if (r < 0)
		return r;
	group->open = answer.reply.work.sequence;
	answer_deinit(&answer);
	return engine_unshard(group, group->open, err);
}

int fsdp_unshard(struct fsdp_group *group, struct fsdp_work *ret)
{
	struct error *err = error_of_thread();
	int r = comm_check_idle(group->comm, err);

	if (r == 0 && group->engine)
		r = ask_unshard(group, err);
	else if (r == 0 && !group->open)
		r = post_unshard(group, err);
	if (r < 0)
		return r;
	*ret = (struct fsdp_work){.comm = group->comm,
				  .group = group,
				  .kind = WORK_UNSHARD,
				  .sequence = group->open};
	return 0;
}

int group_check_open(const struct fsdp_group *group, uint64_t sequence,
		     struct error *err)
{
	if (sequence == group->open)
		return 0;
	return error_set(err, -EINVAL,
			 "unshard %" PRIu64 " of the group is not open here: "
			 "it was refused, or resharded before it was whole",
			 sequence);
}

bool group_is_refused(struct fsdp_group *group, struct error *ret)
{
	if (group->refused != group->open)
		return false;
	*ret = group->refusal;
	group->open = 0;
	return true;
}

bool group_is_whole(const struct fsdp_group *group, uint64_t sequence)
{
	if (sequence == group->open)
		return group->full;
	return sequence <= group->whole && sequence != group->refused;
}

int group_take_full(struct fsdp_group *group, uint64_t sequence,
		    struct answer *answer, struct error *err)
{
	struct fsdp_tensor *full;
	int r;

	/* On a device it is ours to fill. */
	r = adopt_one(group->comm->client, answer, group->engine != NULL,
		      group->full_size, &full, err);
	if (r < 0)
		return r;
	if (sequence != group->open) {
		fsdp_free(full);
		return error_set(err, -EPROTO,
				 "fsdpd made number %" PRIu64 " whole, which "
				 "this rank has not open",
				 sequence);
	}
	group->full = full;
	group->whole = sequence;
	return 0;
}

int fsdp_param(struct fsdp_group *group, size_t param, struct fsdp_param *ret)
{
	struct error *err = error_of_thread();
	const struct param *it;
	int r;

	r = comm_check(group->comm, err);
	if (r == 0)
		r = check_param(group, param, err);
	if (r < 0)
		return r;
	if (!group->full)
		return error_set(err, -EINVAL,
				 "the group is not whole here; fsdp_unshard() "
				 "it and fsdp_wait() for that");
	it = &group->params[param];
	*ret = (struct fsdp_param){
		.dtype = (enum fsdp_dtype)it->full_dtype,
		.n_dims = it->type.n_dims,
		.numel = tensor_type_numel(&it->type),
		.data = at(group->full, it->full_offset),
	};
	memcpy(ret->shape, it->type.shape, sizeof(ret->shape));
	return 0;
}

/* Of what is whole here; NULL: the caller does not use it any more. */
static int end_full(struct fsdp_group *group, uint32_t n_mesh, void *stream,
		    struct error *err)
{
	if (group->engine)
		return engine_reshard(group, n_mesh, stream, err);
	if (n_mesh > 0)
		fsdp_free(group->full);
	else
		tensor_end(group->full);
	group->full = NULL;
	return 0;
}

/* A mesh that does not fit is refused, which is to change nothing. */
static int reshard_to_mesh(struct fsdp_group *group,
			   const struct request *request, void *stream,
			   struct error *err)
{
	struct answer answer;
	int r = comm_call(group->comm, request, &answer, err);

	if (r < 0)
		return r;
	answer_deinit(&answer);
	group->open = 0;
	return end_full(group, request->reshard.n_mesh, stream, err);
}

int fsdp_reshard(struct fsdp_group *group, uint32_t n_mesh)
{
	return fsdp_reshard_on(group, n_mesh, NULL);
}

/* What is whole here can be let go of without waiting for the answer. */
int fsdp_reshard_on(struct fsdp_group *group, uint32_t n_mesh, void *stream)
{
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_RESHARD,
		.reshard = {.group = group->id, .n_mesh = n_mesh},
	};
	/* Refused is what fsdp_wait() has told already, or will. */
	const struct post post = {0};
	int r;

	r = comm_check(group->comm, err);
	if (r < 0)
		return r;
	if (!group->open)
		return error_set(err, -EINVAL,
				 "the group is not unsharded here");
	if (stream) {
		r = comm_check_stream(group->comm, stream, err);
		if (r < 0)
			return r;
	}
	if (group->engine) {
		r = engine_begin(group, err);
		if (r < 0)
			return r;
	}
	if (n_mesh > 0)
		return reshard_to_mesh(group, &request, stream, err);
	/* First, so that the broker looks at both at once. The memory stays:
	 * the broker keeps it until it has heard of the reshard. */
	r = end_full(group, 0, stream, err);
	if (r < 0)
		return r;
	r = client_post(group->comm->client, &request, &post, err);
	if (r < 0)
		return r;
	group->open = 0;
	return 0;
}

/* --- gradients ------------------------------------------------------------ */

int fsdp_input(struct fsdp_group *group, int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_INPUT,
		.input = {.group = group->id, .timeout_ms = timeout_ms},
	};
	struct answer answer;
	int r;

	r = comm_check_idle(group->comm, err);
	if (r < 0)
		return r;
	if (group->input)
		return error_set(err, -EBUSY,
				 "the group has an input here already; "
				 "fsdp_reduce() it first");
	comm_end_spent(group->comm);
	r = comm_call(group->comm, &request, &answer, err);
	if (r < 0)
		return r;
	r = adopt_one(group->comm->client, &answer, true, group->input_size,
		      &group->input, err);
	answer_deinit(&answer);
	return r;
}

void *fsdp_input_data(struct fsdp_group *group, size_t param)
{
	/* Writable memory is not mapped in a forked child. */
	if (guard_is_forked(&group->comm->client->guard) || !group->input ||
	    param >= group->n_params || group->params[param].is_frozen)
		return NULL;
	return at(group->input, group->params[param].input_offset);
}

static uint32_t reduce_flags(const struct fsdp_reduce_options *options)
{
	return (options->accumulates ? REDUCE_ACCUMULATE : 0u) |
	       (options->no_all_reduce ? REDUCE_NO_ALL_REDUCE : 0u) |
	       (options->is_sum_forced ? REDUCE_FORCE_SUM : 0u);
}

int fsdp_reduce(struct fsdp_group *group,
		const struct fsdp_reduce_options *options,
		struct fsdp_work *ret)
{
	static const struct fsdp_reduce_options defaults;
	const struct fsdp_reduce_options *o = options ? options : &defaults;
	struct error *err = error_of_thread();
	struct request request = {
		.kind = MESSAGE_REDUCE,
		.reduce = {.group = group->id,
			   .flags = reduce_flags(o),
			   .has_factor = o->has_factor,
			   .factor = o->factor},
	};
	struct answer answer;
	int r;

	r = comm_check_idle(group->comm, err);
	if (r < 0)
		return r;
	if (!group->input)
		return error_set(err, -EINVAL,
				 "the group has no input here; fsdp_input() "
				 "gives one");
	if (o->stream) {
		r = comm_check_stream(group->comm, o->stream, err);
		if (r < 0)
			return r;
	}
	request.reduce.input =
		(struct slot_ref){group->input->slot, group->input->generation};
	r = comm_call(group->comm, &request, &answer, err);
	if (r < 0)
		return r;
	*ret = (struct fsdp_work){.comm = group->comm,
				  .group = group,
				  .kind = WORK_REDUCE,
				  .sequence = answer.reply.work.sequence};
	answer_deinit(&answer);
	if (group->engine)
		return engine_reduce(group, &request.reduce, ret->sequence,
				     o->stream, err);
	/* The broker keeps it until it is reduced: no need to wake it now. */
	fsdp_free(group->comm->spent);
	group->comm->spent = group->input;
	group->input = NULL;
	return 0;
}
