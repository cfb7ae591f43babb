/* The memory of a group, as this rank uses it. */
#include "client/places.h"
#include "client/rank/engine.h"
#include "client/rank/group_impl.h"
#include "client/rank/host_group.h"
#include "client/rank/plain_device.h"
#include "client/sized.h"
#include <assert.h>
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

/* If this rank has an engine, its memory is already mapped (adopt_one()). So if
 * this fails, there are no streams of ours that must be released. */
int group_map(struct fsdp_group *group, struct lazy_mapping *lazy_mapping,
	      struct fsdp_tensor **ret, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	int r = lazy_mapping_map(lazy_mapping, comm->client, ret, err);

	if (r < 0) {
		assert(!comm->engine);
		comm_give_up(comm, err);
		comm->failure = *err;
	}
	return r;
}

/* Tell whether the shards are on a device. */
static bool is_on_device(const struct fsdp_group *group)
{
	return !device_uuid_is_host(&group->comm->device) &&
	       !group->is_offloaded;
}

static int zero_padding(struct fsdp_group *group, uint32_t side,
			struct error *err)
{
	if (is_on_device(group))
		return plain_zero_padding(group, side, err);
	for (size_t i = 0; i < group->n_params; i++) {
		const struct param *param = &group->params[i];
		uint64_t size = param->chunk_size - param->shard_size;

		if (size > 0)
			memset(memory_at(group->shards[side],
					 param->shard_offset +
						 param->shard_size),
			       0, size);
	}
	return 0;
}

/* The committed shards are skipped after the first commit, since other ranks
 * may be reading them. */
int group_zero_padding(struct fsdp_group *group, struct error *err)
{
	int r = zero_padding(group, !group->side, err);

	if (r == 0 && group->step == 0)
		r = zero_padding(group, group->side, err);
	return r;
}

/* Map the shards and gradients that have only a lazy mapping. */
static int map_own(struct fsdp_group *group, struct error *err)
{
	int r;

	if (!group->shard_mappings[0].is_held)
		return 0;
	r = group_map(group, &group->grads_mapping, &group->grads, err);
	for (uint32_t i = 0; i < 2 && r == 0; i++)
		r = group_map(group, &group->shard_mappings[i],
			      &group->shards[i], err);
	return r < 0 ? r : group_zero_padding(group, err);
}

/* Take the only place of a reply, which has at least `size` bytes. On failure
 * its holds are dropped. */
static int adopt_one(const struct fsdp_comm *comm, struct received *received,
		     bool is_writable, uint64_t size,
		     struct lazy_mapping *lazy_mapping,
		     struct fsdp_tensor **ret, struct error *err)
{
	struct fsdp_client *client = comm->client;
	struct places_reply *places = &received->reply.places;
	struct places_use use = {.n = 1, .is_writable = is_writable};

	if (!plain_is_device(comm))
		places_take_chunks(client, received, places->chunks,
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

int group_ask_one(struct fsdp_comm *comm, const struct request *request,
		  uint64_t size, struct lazy_mapping *lazy_mapping,
		  struct fsdp_tensor **ret, struct error *err)
{
	struct received received;
	int r = comm_call(comm, request, &received, err);

	if (r < 0)
		return r;
	r = adopt_one(comm, &received, true, size, lazy_mapping, ret, err);
	received_deinit(&received);
	return r;
}

/* --- shards -------------------------------------------------------------- */

int group_check_param(const struct fsdp_group *group, size_t param,
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

/* Tell whether the gradients are valid. Before, the memory contains bytes of an
 * earlier user. */
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
		r = group_check_param(group, param, err);
	if (r == 0)
		r = map_own(group, err);
	if (r < 0)
		return r;
	it = &group->params[param];
	current = group->shards[group->side];
	next = group->shards[!group->side];
	/* The caller may write to `next`, which the commit must undo for a
	 * frozen parameter. */
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
	if (is_on_device(group)) {
		int r = map_own(group, err);

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

int group_check_open(const struct fsdp_group *group, uint64_t sequence,
		     struct error *err)
{
	if (sequence == group->open)
		return 0;
	return error_set(
		err, -EINVAL,
		"unshard %" PRIu64
		" of the group is not open in this rank: it was refused, or "
		"the group was resharded before it had finished",
		sequence);
}

void group_end_whole(struct fsdp_group *group)
{
	lazy_mapping_drop(&group->full_mapping, group->comm->client);
	end_handle(&group->full);
}

int group_take_full(struct fsdp_group *group, uint64_t sequence,
		    struct received *received, struct error *err)
{
	int r;

	/* If this rank has an engine, it fills the memory itself. */
	r = adopt_one(group->comm, received, group->engine != NULL,
		      group->full_size, &group->full_mapping, &group->full,
		      err);
	if (r < 0)
		return r;
	if (sequence != group->open) {
		group_end_whole(group);
		return error_set(
			err, -EPROTO,
			"fsdpd finished unshard %" PRIu64
			" of the group, which is not open in this rank",
			sequence);
	}
	group->whole = sequence;
	return 0;
}
