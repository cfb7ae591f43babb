/*
 * Registering a group: the request, and the reply.
 *
 * The broker says where this rank's part of every parameter is. Everything that
 * follows from the parameters alone (sizes, parts) is computed here and
 * compared with the reply, and every range is checked against its place.
 * Afterwards the address of a parameter is one addition.
 */
#include "client/places.h"
#include "client/rank/engine.h"
#include "client/rank/group_impl.h"
#include "client/rank/host_group.h"
#include "client/rank/idle.h"
#include "client/rank/plain_device.h"
#include "client/sized.h"
#include "client/spec.h"
#include "collective/plan_request.h"
#include "collective/shard.h"
#include "shm/chunk.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert(FSDP_MAX_PARAMS == MESSAGE_MAX_PARAMS, "one limit of params");

/* Return the usable size of the memory. Offloaded memory is used from its first
 * whole page on. */
static uint64_t usable(const struct fsdp_group *group,
		       const struct tensor_place *place)
{
	uint64_t size = place_bytes(place);
	uint64_t skipped = chunk_page_up(place->offset) - place->offset;

	if (!group->is_offloaded)
		return size;
	return size > skipped ? size - skipped : 0;
}

static bool fits(uint64_t offset, uint64_t size, uint64_t total)
{
	return offset <= total && size <= total - offset;
}

/* --- registering: what is asked ------------------------------------------ */

static struct fsdp_group *group_new(struct fsdp_comm *comm, const char *name,
				    size_t n)
{
	struct fsdp_group *group = calloc(1, sizeof(*group));

	if (!group)
		return NULL;
	group->comm = comm;
	(void)snprintf(group->name, sizeof(group->name), "%s",
		       name ? name : "");
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
		struct fsdp_param_spec desc;
		int r;

		r = sized_take_item(&desc, specs, i, "params",
				    SIZED(fsdp_param_spec), err);
		if (r < 0)
			return r;
		r = spec_to_type(&desc.spec, NULL, &param->type, err);
		if (r < 0)
			return spec_wrap(err, r, "params", i);
		param->is_frozen = desc.is_frozen;
		ret[i] = (struct group_param){
			.name = desc.name,
			.type = param->type,
			.shard_dim = desc.shard_dim,
			.is_frozen = desc.is_frozen,
		};
	}
	return 0;
}

/* Plan the group in the same way as the broker, whose plan has this hash. */
static int make_plan(const struct fsdp_comm *comm,
		     const struct group_request *asked, uint64_t hash,
		     struct plan *ret, struct error *err)
{
	struct plan_policy policy;
	struct plan_param *params;
	int r = plan_read_request(asked, &params, &policy, err);

	if (r < 0)
		return r;
	policy.is_per_rank = comm->engine;
	r = plan_make(params, asked->n_params, &policy, comm->n_shards,
		      comm->n_replicas, ret, err);
	free(params);
	if (r < 0 || ret->hash == hash)
		return r;
	plan_deinit(ret);
	return error_set(err, -EPROTO,
			 "this library and fsdpd compute different layouts of "
			 "the group; install both from one build");
}

/* Make the plan that this rank needs to do the work. On failure the reply is
 * freed, with its holds. */
static int plan_own(struct fsdp_group *group, const struct group_request *asked,
		    struct received *received, struct error *err)
{
	struct group_reply *reply = &received->reply.group;
	struct places_reply places = {.n_places = reply->n_places,
				      .places = reply->places};
	struct fsdp_comm *comm = group->comm;
	struct plan plan;
	int r = make_plan(comm, asked, reply->hash, &plan, err);

	if (r == 0)
		r = comm->engine ? engine_group_new(group, &plan, err)
				 : host_group_new(group, &plan, err);
	if (r == 0)
		return 0;
	places_take_chunks(comm->client, received, reply->chunks,
			   reply->n_chunks, 0);
	places_give_back(comm->client, &places);
	received_deinit(received);
	return r;
}

static int ask(struct fsdp_group *group, const char *name,
	       const struct fsdp_param_spec *specs,
	       const struct fsdp_policy *policy, struct received *ret,
	       struct error *err)
{
	double gather_cap_mb = policy->gather_cap_mb;
	double reduce_cap_mb = policy->reduce_cap_mb;
	struct request request = {
		.kind = MESSAGE_GROUP,
		.group = {.comm = group->comm->id,
			  .name = name,
			  .param_dtype = policy->param_dtype,
			  .input_dtype = policy->input_dtype,
			  .reduce_dtype = policy->reduce_dtype,
			  .layout = policy->layout,
			  .stays_unsharded = policy->stays_unsharded,
			  .is_offloaded = policy->offload,
			  .n_gather_caps = gather_cap_mb != 0,
			  .n_reduce_caps = reduce_cap_mb != 0,
			  .gather_caps_mb = &gather_cap_mb,
			  .reduce_caps_mb = &reduce_cap_mb,
			  .n_params = (uint32_t)group->n_params},
	};
	int r;

	group->is_offloaded = policy->offload;
	request.group.params =
		calloc(group->n_params + 1, sizeof(*request.group.params));
	if (!request.group.params)
		return error_nomem(err, "a request");
	r = fill_params(group, specs, request.group.params, err);
	if (r == 0)
		r = comm_call(group->comm, &request, ret, err);
	if (r == 0 && (group->comm->engine || group->comm->gatherer ||
		       group->comm->reducer))
		r = plan_own(group, &request.group, ret, err);
	free(request.group.params);
	return r;
}

/* --- registering: the replies -------------------------------------------- */

/* Compute this rank's part, and compare it with the broker's. */
static int cut(const struct fsdp_comm *comm, const struct group_entry *entry,
	       struct param *param, struct error *err)
{
	uint32_t rank = comm->rank % comm->n_shards;
	struct shard shard;
	int64_t start, mine;
	uint64_t row;

	if (shard_make(&param->type, (int32_t)entry->shard_dim, comm->n_shards,
		       &shard, err) < 0)
		return error_wrap(err, -EPROTO, "fsdpd gave dimension %u",
				  entry->shard_dim);
	start = shard.chunk * rank;
	mine = shard_size_of(&shard, rank);
	if (entry->shard_size != mine)
		return error_set(err, -EPROTO,
				 "fsdpd gave %" PRId64 " of dimension %u to "
				 "this rank, whose part is %" PRId64,
				 entry->shard_size, shard.dim, mine);
	param->start = start < shard.size ? start : shard.size;
	param->shard = param->type;
	/* A 0-d parameter is cut like a 1-d parameter of one element. */
	if (!param->shard.n_dims)
		param->shard.n_dims = 1;
	param->shard.shape[shard.dim] = mine;
	tensor_type_contiguous(&param->shard);
	row = shard.n_rows * shard.row_numel * dtype_size(param->type.dtype);
	param->shard_size = row * (uint64_t)mine;
	param->chunk_size = row * (uint64_t)shard.chunk;
	return 0;
}

static int locate(struct fsdp_group *group, const struct group_entry *entry,
		  struct param *param, struct error *err)
{
	uint64_t numel = tensor_type_numel(&param->type);
	uint64_t input_size, full_end, input_end;

	if (__builtin_mul_overflow(numel, dtype_size(entry->full_dtype),
				   &param->full_size) ||
	    __builtin_mul_overflow(numel, dtype_size(entry->input_dtype),
				   &input_size) ||
	    __builtin_add_overflow(entry->full_offset, param->full_size,
				   &full_end) ||
	    __builtin_add_overflow(entry->input_offset, input_size, &input_end))
		return error_set(err, -EPROTO,
				 "fsdpd put it beyond 2^64 bytes");
	if (!param->is_frozen && !entry->input_dtype)
		return error_set(err, -EPROTO,
				 "fsdpd gave no dtype for its gradient");
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
	uint64_t grads =
		reply->n_places > 2 ? usable(group, &reply->places[2]) : 0;
	int r;

	r = cut(group->comm, entry, param, err);
	if (r == 0)
		r = locate(group, entry, param, err);
	if (r < 0)
		return r;
	if (!fits(param->shard_offset, param->chunk_size,
		  usable(group, &reply->places[0])) ||
	    !fits(param->shard_offset, param->chunk_size,
		  usable(group, &reply->places[1])) ||
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
			return error_wrap(err, r, "params[%zu]", i);
	}
	if (reply->index >= GATHERS_GROUPS)
		return error_set(err, -EPROTO,
				 "fsdpd gave the group number %u on a board of "
				 "%d",
				 reply->index, GATHERS_GROUPS);
	group->id = reply->group;
	group->side = reply->side;
	group->step = reply->step;
	group->is_in_place = reply->is_in_place;
	group->index = reply->index;
	return 0;
}

/* Let offloaded memory begin at whole pages. The group is the only user of the
 * handles, so they can be changed. */
static void skip_to_pages(struct fsdp_tensor **tensors)
{
	for (size_t i = 0; i < GROUP_REPLY_PLACES; i++) {
		if (tensors[i])
			tensors[i]->data = (uint8_t *)chunk_page_up(
				(uintptr_t)tensors[i]->data);
	}
}

static void map_group(struct fsdp_group *group, const struct group_reply *reply)
{
	lazy_mapping_take(&group->shard_mappings[0], &reply->places[0], true);
	lazy_mapping_take(&group->shard_mappings[1], &reply->places[1], true);
	if (reply->n_places > 2)
		lazy_mapping_take(&group->grads_mapping, &reply->places[2],
				  true);
}

static int take_group(struct fsdp_group *group, struct received *received,
		      struct error *err)
{
	struct fsdp_client *client = group->comm->client;
	struct group_reply *reply = &received->reply.group;
	struct places_reply places = {.n_places = reply->n_places,
				      .places = reply->places};
	struct places_use use = {.n = reply->n_places, .is_writable = true};
	struct fsdp_tensor *tensors[GROUP_REPLY_PLACES] = {NULL};
	int r;

	if (!plain_is_device(group->comm))
		places_take_chunks(client, received, reply->chunks,
				   reply->n_chunks, 0);
	r = take_entries(group, reply, err);
	if (r < 0) {
		places_give_back(client, &places);
		return r;
	}
	if (plain_is_device(group->comm)) {
		map_group(group, reply);
		return 0;
	}
	r = places_adopt_batch(client, &places, &use, tensors, err);
	if (r < 0)
		return r;
	if (group->is_offloaded)
		skip_to_pages(tensors);
	group->shards[0] = tensors[0];
	group->shards[1] = tensors[1];
	group->grads = tensors[2];
	if (group->engine)
		return engine_group_take_memory(group, tensors[3], err);
	fsdp_free(tensors[3]);
	return group->host ? host_group_check_memory(group, err) : 0;
}

int fsdp_group_register(struct fsdp_comm *comm, const char *name,
			const struct fsdp_param_spec *params, size_t n,
			const struct fsdp_policy *policy,
			struct fsdp_group **ret)
{
	struct error *err = error_of_thread();
	struct fsdp_policy desc;
	struct fsdp_group *group;
	struct received received;
	int r;

	r = comm_check_idle(comm, err);
	if (r == 0)
		r = sized_take(&desc, policy, SIZED(fsdp_policy), err);
	if (r < 0)
		return r;
	if (n > FSDP_MAX_PARAMS)
		return error_set(err, -E2BIG,
				 "n_params is %zu, but a group has at most %d",
				 n, FSDP_MAX_PARAMS);
	/* The request may wait for memory that only idle memory keeps. */
	r = idle_give_back(comm, err);
	if (r < 0)
		return r;
	group = group_new(comm, name, n);
	if (!group)
		return error_nomem(err, "a group");
	r = ask(group, name, params, &desc, &received, err);
	if (r == 0) {
		r = take_group(group, &received, err);
		received_deinit(&received);
	}
	if (r == 0)
		r = group->shards[0] ? group_zero_padding(group, err) : 0;
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
