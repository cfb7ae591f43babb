/* Through these functions a program uses the memory of a group. */
#include "client/clock.h"
#include "client/places.h"
#include "client/rank/direct.h"
#include "client/rank/engine.h"
#include "client/rank/group_impl.h"
#include "client/rank/host_gather.h"
#include "client/rank/host_group.h"
#include "client/rank/host_reduce.h"
#include "client/rank/plain_device.h"
#include "client/sized.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- handles ------------------------------------------------------------- */

static void end_handle(struct fsdp_tensor **tensor)
{
	fsdp_free(*tensor);
	*tensor = NULL;
}

static void drop_mappings(struct fsdp_group *group)
{
	struct fsdp_client *client = group->comm->client;

	lazy_mapping_drop(&group->shard_mappings[0], client);
	lazy_mapping_drop(&group->shard_mappings[1], client);
	lazy_mapping_drop(&group->grads_mapping, client);
	lazy_mapping_drop(&group->input_mapping, client);
	lazy_mapping_drop(&group->full_mapping, client);
}

void group_end_handles(struct fsdp_group *group)
{
	if (group->engine)
		engine_group_end_handles(group->engine);
	if (group->host)
		host_group_end_handles(group->host);
	if (group->comm->reducer)
		group->input = NULL; /* the communicator owns it */
	end_handle(&group->shards[0]);
	end_handle(&group->shards[1]);
	end_handle(&group->grads);
	end_handle(&group->input);
	end_handle(&group->full);
	drop_mappings(group);
}

void group_free(struct fsdp_group *group)
{
	engine_group_free(group->engine);
	host_group_free(group->host);
	free(group->params);
	free(group);
}

/* If a rank cannot map memory for which others wait, it cannot take part. */
static int map(struct fsdp_group *group, struct lazy_mapping *lazy_mapping,
	       struct fsdp_tensor **ret, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	int r = lazy_mapping_map(lazy_mapping, comm->client, ret, err);

	if (r < 0) {
		comm_give_up(comm, err);
		comm->failure = *err;
	}
	return r;
}

int group_map_own(struct fsdp_group *group, struct error *err)
{
	int r;

	if (!group->shard_mappings[0].is_held)
		return 0;
	r = map(group, &group->grads_mapping, &group->grads, err);
	for (uint32_t i = 0; i < 2 && r == 0; i++)
		r = map(group, &group->shard_mappings[i], &group->shards[i],
			err);
	return r < 0 ? r : group_zero_padding(group, err);
}

int group_adopt_one(const struct fsdp_comm *comm, struct answer *answer,
		    bool is_writable, uint64_t size,
		    struct lazy_mapping *lazy_mapping, struct fsdp_tensor **ret,
		    struct error *err)
{
	struct fsdp_client *client = comm->client;
	struct places_reply *places = &answer->reply.places;
	struct places_use use = {.n = 1, .is_writable = is_writable};

	if (!plain_is_device(comm))
		places_take_chunks(client, answer, places->chunks,
				   places->n_chunks, 0);
	if (places->n_places != 1 || place_bytes(&places->places[0]) < size) {
		places_give_back(client, places);
		return error_set(err, -EPROTO,
				 "fsdpd sent no place of %" PRIu64 " bytes",
				 size);
	}
	if (plain_is_device(comm)) {
		lazy_mapping_take(lazy_mapping, &places->places[0],
				  is_writable);
		return 0;
	}
	return places_adopt_batch(client, places, &use, ret, err);
}

/* --- shards -------------------------------------------------------------- */

static int check_param(const struct fsdp_group *group, size_t param,
		       struct error *err)
{
	if (param >= group->n_params)
		return error_set(err, -EINVAL,
				 "there is no parameter %zu; the group has %zu",
				 param, group->n_params);
	return 0;
}

void group_note_reduced(struct fsdp_group *group, uint64_t sequence)
{
	if (sequence > group->reduced)
		group->reduced = sequence;
}

/* Until then the memory holds bytes of an earlier user. */
static bool has_gradients(const struct fsdp_group *group)
{
	return group->first_full && group->reduced >= group->first_full;
}

int fsdp_shard(struct fsdp_group *group, size_t param, struct fsdp_shard *ret)
{
	struct error *err = error_of_thread();
	const struct fsdp_tensor *current, *next;
	struct fsdp_shard shard;
	struct param *it;
	int r;

	r = comm_check_idle(group_comm(group), err);
	if (r == 0)
		r = check_param(group, param, err);
	if (r == 0)
		r = group_map_own(group, err);
	if (r < 0)
		return r;
	it = &group->params[param];
	current = group->shards[group->side];
	next = group->shards[!group->side];
	/* The caller may write `next`; a commit must undo this for frozen
	 * parameters. */
	it->is_carried = false;
	shard = (struct fsdp_shard){
		.dtype = (enum fsdp_dtype)it->shard.dtype,
		.n_dims = it->shard.n_dims,
		.start = it->start,
		.numel = tensor_type_numel(&it->shard),
		.current = group->step ? memory_at(current, it->shard_offset)
				       : NULL,
		.next = memory_at(next, it->shard_offset),
		.grad = !it->is_frozen && has_gradients(group)
				? memory_at(group->grads, it->grad_offset)
				: NULL,
	};
	memcpy(shard.shape, it->shard.shape, sizeof(shard.shape));
	return sized_give(ret, &shard, SIZED(fsdp_shard), err);
}

static int carry(struct fsdp_group *group, const struct param *param,
		 struct error *err)
{
	if (param->chunk_size == 0)
		return 0;
	if (group->engine && !group->is_offloaded)
		return engine_carry(group, param->shard_offset,
				    param->chunk_size, err);
	if (plain_is_device(group->comm)) {
		int r = group_map_own(group, err);

		return r < 0 ? r
			     : plain_carry(group, param->shard_offset,
					   param->chunk_size, err);
	}
	memcpy(memory_at(group->shards[!group->side], param->shard_offset),
	       memory_at(group->shards[group->side], param->shard_offset),
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

void group_on_commit(struct fsdp_group *group, uint64_t step)
{
	group->side = !group->side;
	group->step = step;
}

/* --- whole parameters ---------------------------------------------------- */

/* Runs with the connection's lock. The result is read after the reply of a
 * later call. */
static void note_refusal(void *data, uint64_t number, const struct error *cause)
{
	struct fsdp_group *group = data;

	group->refused = number;
	group->refusal = *cause;
}

/* On host memory the broker orders the ranks. Its reply would contain nothing
 * for which the wait does not ask, so the request is one-way. */
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

/* If ranks do the work themselves, it begins in the order of the broker, and
 * not at all if the broker refuses it. */
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
	int r = comm_check_idle(group_comm(group), err);

	if (r == 0 && group->engine)
		r = ask_unshard(group, err);
	else if (r == 0 && direct_is_group(group))
		r = direct_unshard(group, err);
	else if (r == 0 && host_gather_is_group(group))
		r = host_gather_unshard(group, err);
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

static bool is_whole(const struct fsdp_group *group)
{
	if (direct_is_group(group) || host_gather_is_group(group))
		return group->open && group->whole == group->open;
	return group->full || group->full_mapping.is_held;
}

static void end_whole(struct fsdp_group *group)
{
	lazy_mapping_drop(&group->full_mapping, group->comm->client);
	end_handle(&group->full);
}

bool group_is_whole(const struct fsdp_group *group, uint64_t sequence)
{
	if (sequence == group->open)
		return is_whole(group);
	return sequence <= group->whole && sequence != group->refused;
}

int group_take_full(struct fsdp_group *group, uint64_t sequence,
		    struct answer *answer, struct error *err)
{
	int r;

	/* If this rank has an engine, it fills the memory itself. */
	r = group_adopt_one(group->comm, answer, group->engine != NULL,
			    group->full_size, &group->full_mapping,
			    &group->full, err);
	if (r < 0)
		return r;
	if (sequence != group->open) {
		end_whole(group);
		return error_set(err, -EPROTO,
				 "fsdpd made number %" PRIu64 " whole, which "
				 "this rank has not open",
				 sequence);
	}
	group->whole = sequence;
	return 0;
}

static const struct fsdp_tensor *whole_memory(const struct fsdp_group *group)
{
	if (direct_is_group(group))
		return group->shards[group->side];
	return host_gather_is_group(group) ? group->gathered : group->full;
}

int fsdp_param(struct fsdp_group *group, size_t param, struct fsdp_param *ret)
{
	struct error *err = error_of_thread();
	struct fsdp_param whole;
	const struct fsdp_tensor *memory;
	const struct param *it;
	int r;

	r = comm_check(group_comm(group), err);
	if (r == 0)
		r = check_param(group, param, err);
	if (r < 0)
		return r;
	if (!is_whole(group))
		return error_set(err, -EINVAL,
				 "the group is not whole here; fsdp_unshard() "
				 "it and fsdp_wait() for that");
	r = map(group, &group->full_mapping, &group->full, err);
	if (r < 0)
		return r;
	memory = whole_memory(group);
	it = &group->params[param];
	whole = (struct fsdp_param){
		.dtype = (enum fsdp_dtype)it->full_dtype,
		.n_dims = it->type.n_dims,
		.numel = tensor_type_numel(&it->type),
		.data = memory_at(memory, it->full_offset),
	};
	memcpy(whole.shape, it->type.shape, sizeof(whole.shape));
	return sized_give(ret, &whole, SIZED(fsdp_param), err);
}

/* End the use of the whole parameters; `stream` NULL: the caller does not use
 * them any more. */
static int end_full(struct fsdp_group *group, uint32_t n_mesh, void *stream,
		    struct error *err)
{
	if (group->engine)
		return engine_reshard(group, n_mesh, stream, err);
	/* The broker reclaims the memory when the stream has come so far.
	 * Memory that was never mapped is used by no stream. */
	if (stream && group->full) {
		int r = fsdp_release_on(group->full, stream);

		if (r < 0)
			return r;
	} else if (n_mesh == 0) {
		tensor_end(group->full);
		group->full = NULL;
	}
	end_whole(group);
	return 0;
}

/* The broker refuses a mesh that does not match, and then the group must not
 * change. */
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

/* The whole parameters can be released without waiting for the reply. */
int fsdp_reshard_on(struct fsdp_group *group, uint32_t n_mesh, void *stream)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_RESHARD};
	/* If the request is refused, fsdp_wait() has returned the cause, or
	 * will. */
	const struct post post = {0};
	int r;

	r = comm_check(group_comm(group), err);
	if (r < 0)
		return r;
	if (!group->open)
		return error_set(err, -EINVAL,
				 "the group is not unsharded here");
	request.reshard =
		(struct reshard_request){.group = group->id, .n_mesh = n_mesh};
	if (stream) {
		r = comm_check_stream(group->comm, stream, err);
		if (r < 0)
			return r;
	}
	if (direct_is_group(group))
		return direct_reshard(group, n_mesh, err);
	if (host_gather_is_group(group))
		return host_gather_reshard(group, n_mesh, err);
	if (group->engine) {
		r = engine_begin(group, err);
		if (r < 0)
			return r;
	}
	if (n_mesh > 0)
		return reshard_to_mesh(group, &request, stream, err);
	/* This comes first, so that the broker handles both at once. The memory
	 * is kept by the broker until it has received the reshard. */
	r = end_full(group, 0, stream, err);
	if (r < 0)
		return r;
	r = client_post(group->comm->client, &request, &post, err);
	if (r < 0)
		return r;
	group->open = 0;
	return 0;
}

/* --- gradients ----------------------------------------------------------- */

static bool has_input(const struct fsdp_group *group)
{
	return group->input || group->input_mapping.is_held;
}

int fsdp_input(struct fsdp_group *group, int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_INPUT};
	struct answer answer;
	int r;

	r = comm_check_idle(group_comm(group), err);
	if (r < 0)
		return r;
	if (has_input(group))
		return error_set(err, -EBUSY,
				 "the group has an input here already; "
				 "fsdp_reduce() it first");
	if (group->comm->reducer)
		return host_reduce_input(group, timeout_ms, err);
	request.input = (struct input_request){.group = group->id,
					       .timeout_ms = timeout_ms};
	comm_end_spent(group->comm);
	r = comm_call(group->comm, &request, &answer, err);
	if (r < 0)
		return r;
	r = group_adopt_one(group->comm, &answer, true, group->input_size,
			    &group->input_mapping, &group->input, err);
	answer_deinit(&answer);
	return r;
}

void *fsdp_input_data(struct fsdp_group *group, size_t param)
{
	/* Writable memory is not mapped in a forked child. */
	if (!group || guard_is_forked(&group->comm->client->guard) ||
	    map(group, &group->input_mapping, &group->input,
		error_of_thread()) < 0 ||
	    !group->input || param >= group->n_params ||
	    group->params[param].is_frozen)
		return NULL;
	return memory_at(group->input, group->params[param].input_offset);
}

static struct slot_ref input_ref(const struct fsdp_group *group)
{
	if (!group->input)
		return group->input_mapping.place.ref;
	return (struct slot_ref){group->input->slot, group->input->generation};
}

static uint32_t reduce_flags(const struct fsdp_reduce_options *options)
{
	return (options->accumulates ? REDUCE_ACCUMULATE : 0u) |
	       (options->no_all_reduce ? REDUCE_NO_ALL_REDUCE : 0u) |
	       (options->is_sum_forced ? REDUCE_FORCE_SUM : 0u);
}

/* fsdp-worker waits until the stream has written the gradients. A broker
 * without ready fences cannot do that. */
static int order_gradients(struct fsdp_group *group, void *stream,
			   struct reduce_request *request, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	struct fence fence;
	int r = plain_note_stream(comm, stream, &fence, err);

	if (r < 0)
		return r;
	if (!comm->takes_fences)
		return plain_await(comm, &fence,
				   clock_now_ms() + comm->timeout_ms, err);
	request->timeline = fence.timeline;
	request->value = fence.value;
	return 0;
}

/* Without replicas no sums are kept for an all-reduce. */
static void note_first_full(struct fsdp_group *group,
			    const struct fsdp_reduce_options *options,
			    uint64_t sequence)
{
	if (!group->first_full &&
	    (!options->no_all_reduce || group->comm->n_replicas == 1))
		group->first_full = sequence;
}

int fsdp_reduce(struct fsdp_group *group,
		const struct fsdp_reduce_options *options,
		struct fsdp_work *ret)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_REDUCE};
	struct fsdp_reduce_options o;
	struct answer answer;
	int r;

	r = comm_check_idle(group_comm(group), err);
	if (r == 0)
		r = sized_take(&o, options, SIZED(fsdp_reduce_options), err);
	if (r < 0)
		return r;
	if (!has_input(group))
		return error_set(err, -EINVAL,
				 "the group has no input here; fsdp_input() "
				 "gives one");
	if (o.stream)
		r = comm_check_stream(group->comm, o.stream, err);
	if (r < 0)
		return r;
	if (group->comm->reducer) {
		r = host_reduce_begin(group, &o, ret, err);
		if (r == 0)
			note_first_full(group, &o, ret->sequence);
		return r;
	}
	request.reduce = (struct reduce_request){
		.group = group->id,
		.input = input_ref(group),
		.flags = reduce_flags(&o),
		.has_factor = o.has_factor,
		.factor = o.factor,
	};
	if (o.stream && !group->engine)
		r = order_gradients(group, o.stream, &request.reduce, err);
	if (r < 0)
		return r;
	r = comm_call(group->comm, &request, &answer, err);
	if (r < 0)
		return r;
	*ret = (struct fsdp_work){.comm = group->comm,
				  .group = group,
				  .kind = WORK_REDUCE,
				  .sequence = answer.reply.work.sequence};
	answer_deinit(&answer);
	note_first_full(group, &o, ret->sequence);
	if (group->engine)
		return engine_reduce(group, &request.reduce, ret->sequence,
				     o.stream, err);
	/* The broker keeps the input until it is reduced, so it need not be
	 * woken now. */
	fsdp_free(group->comm->spent);
	group->comm->spent = group->input;
	group->input = NULL;
	lazy_mapping_drop(&group->input_mapping, group->comm->client);
	return 0;
}
