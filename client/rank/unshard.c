#include "client/rank/unshard.h"
#include "client/rank/engine.h"
#include "client/rank/group_impl.h"
#include "client/rank/host_gather.h"
#include "client/rank/idle.h"
#include "client/sized.h"
#include "collective/plan.h"
#include <errno.h>
#include <string.h>

static bool is_in_place(const struct fsdp_group *group)
{
	return group->is_in_place && group->comm->verdict;
}

bool unshard_is_by_ranks(const struct fsdp_group *group)
{
	return is_in_place(group) || host_gather_is_group(group);
}

/* --- beginning ----------------------------------------------------------- */

/* Store the refusal of a one-way unshard. This runs with the connection's lock;
 * the result is read after the reply of a later call. */
static void note_refusal(void *data, uint64_t number, const struct error *cause)
{
	struct fsdp_group *group = data;

	group->refused = number;
	group->refusal = *cause;
}

/* Send an unshard of a communicator on host memory. The reply would contain
 * nothing that the wait does not return, so the request is one-way. */
static int send_unshard(struct fsdp_group *group, struct error *err)
{
	struct request request = {.kind = MESSAGE_UNSHARD,
				  .unshard = {.group = group->id}};
	struct one_way one_way = {
		.refused = note_refusal,
		.data = group,
		.number = group->n_one_way + 1,
	};
	int r = client_send_one_way(group->comm->client, &request, &one_way,
				    err);

	if (r == 0)
		group->open = ++group->n_one_way;
	return r;
}

/* Send an unshard and wait for the reply. If ranks do the work themselves, they
 * begin it in the order of the broker, and not at all if the broker refuses
 * it. */
static int ask_unshard(struct fsdp_group *group, struct error *err)
{
	struct request request = {.kind = MESSAGE_UNSHARD,
				  .unshard = {.group = group->id}};
	struct received received;
	int r = comm_call(group->comm, &request, &received, err);

	if (r < 0)
		return r;
	group->open = received.reply.work.sequence;
	received_deinit(&received);
	return engine_unshard(group, group->open, err);
}

static int begin_by_ranks(struct fsdp_group *group, struct error *err)
{
	int r;

	if (!group->step)
		return error_set(err, -ENODATA,
				 "group '%s' has no committed step yet: write "
				 "the shards and commit a step first",
				 group->name);
	r = comm_check_run(group->comm, err);
	if (r == 0)
		r = idle_heed(group->comm, err);
	if (r < 0)
		return r;
	if (!is_in_place(group))
		return host_gather_unshard(group, err);
	group->open = ++group->n_one_way;
	return 0;
}

int fsdp_unshard(struct fsdp_group *group, struct fsdp_work *ret)
{
	struct error *err = error_of_thread();
	int r = comm_check_idle(group_comm(group), err);

	if (r == 0 && group->engine)
		r = ask_unshard(group, err);
	else if (r == 0 && !group->open)
		r = unshard_is_by_ranks(group) ? begin_by_ranks(group, err)
					       : send_unshard(group, err);
	if (r < 0)
		return r;
	*ret = (struct fsdp_work){.comm = group->comm,
				  .group = group,
				  .kind = WORK_UNSHARD,
				  .sequence = group->open};
	return 0;
}

/* --- whole parameters ---------------------------------------------------- */

bool unshard_is_refused(struct fsdp_group *group, struct error *ret)
{
	if (group->refused != group->open)
		return false;
	*ret = group->refusal;
	group->open = 0;
	return true;
}

static bool is_whole(const struct fsdp_group *group)
{
	if (unshard_is_by_ranks(group))
		return group->open && group->whole == group->open;
	return group->full || group->full_mapping.is_held;
}

bool unshard_is_whole(const struct fsdp_group *group, uint64_t sequence)
{
	if (sequence == group->open)
		return is_whole(group);
	return sequence <= group->whole && sequence != group->refused;
}

int unshard_wait_by_ranks(struct fsdp_group *group, uint64_t sequence,
			  int32_t timeout_ms, struct error *err)
{
	int r = group_check_open(group, sequence, err);

	if (r == 0)
		r = comm_check_run(group->comm, err);
	if (r < 0)
		return r;
	if (!is_in_place(group))
		return host_gather_wait(group, sequence, timeout_ms, err);
	group->whole = sequence;
	return 0;
}

static const struct fsdp_tensor *whole_memory(const struct fsdp_group *group)
{
	if (is_in_place(group))
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
		r = group_check_param(group, param, err);
	if (r < 0)
		return r;
	if (!is_whole(group))
		return error_set(err, -EINVAL,
				 "the group is not unsharded in this rank; "
				 "call fsdp_unshard(), and fsdp_wait() for it");
	if (group->full_mapping.is_held)
		r = group_map(group, &group->full_mapping, &group->full, err);
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

/* --- ending -------------------------------------------------------------- */

int unshard_check_commit(const struct fsdp_comm *comm, struct error *err)
{
	const struct fsdp_group *group = comm->groups;

	while (group && !(group->open && unshard_is_by_ranks(group)))
		group = group->next;
	if (!group)
		return 0;
	return error_set(err, -EBUSY,
			 "rank %u has '%s' unsharded; reshard it before the "
			 "commit",
			 comm->rank, group->name);
}

static int check_mesh(const struct fsdp_group *group, uint32_t n_mesh,
		      struct error *err)
{
	const struct plan plan = {.n_shards = group->comm->n_shards};
	int r = plan_check_mesh(&plan, n_mesh, err);

	return r < 0 ? error_wrap(err, r, "cannot reshard '%s'", group->name)
		     : 0;
}

static int reshard_by_ranks(struct fsdp_group *group, uint32_t n_mesh,
			    struct error *err)
{
	int r = n_mesh ? check_mesh(group, n_mesh, err) : 0;

	if (r < 0)
		return r;
	if (!is_in_place(group))
		return host_gather_reshard(group, n_mesh, err);
	/* All shards are mapped here, so a smaller mesh needs no copy. */
	group->open = 0;
	return 0;
}

/* End the use of the whole parameters, after the current work of `stream`, or
 * at once if it is NULL. */
static int end_full(struct fsdp_group *group, uint32_t n_mesh, void *stream,
		    struct error *err)
{
	if (group->engine)
		return engine_reshard(group, n_mesh, stream, err);
	/* The broker reclaims the memory when the stream has reached this
	 * point. Memory that was never mapped is not used by a stream. */
	if (stream && group->full) {
		int r = fsdp_release_on(group->full, stream);

		if (r < 0)
			return r;
	} else if (n_mesh == 0) {
		tensor_end(group->full);
		group->full = NULL;
	}
	group_end_whole(group);
	return 0;
}

/* The request is sent first, because the broker refuses a mesh that does not
 * match, and then the group must not change. */
static int reshard_to_mesh(struct fsdp_group *group, uint32_t n_mesh,
			   void *stream, struct error *err)
{
	const struct request request = {
		.kind = MESSAGE_RESHARD,
		.reshard = {.group = group->id, .n_mesh = n_mesh},
	};
	int r = comm_command(group->comm, &request, err);

	if (r < 0)
		return r;
	group->open = 0;
	return end_full(group, n_mesh, stream, err);
}

/* The whole parameters are released without waiting for the reply. */
static int reshard_fully(struct fsdp_group *group, void *stream,
			 struct error *err)
{
	const struct request request = {.kind = MESSAGE_RESHARD,
					.reshard = {.group = group->id}};
	/* If the request is refused, fsdp_wait() has returned the cause
	 * already, or will return it. */
	const struct one_way one_way = {0};
	int r;

	/* This comes first, so that the broker handles both at once. It keeps
	 * the memory until it has received the reshard. */
	r = end_full(group, 0, stream, err);
	if (r == 0)
		r = client_send_one_way(group->comm->client, &request, &one_way,
					err);
	if (r < 0)
		return r;
	group->open = 0;
	return 0;
}

int fsdp_reshard(struct fsdp_group *group, uint32_t n_mesh)
{
	return fsdp_reshard_on(group, n_mesh, NULL);
}

int fsdp_reshard_on(struct fsdp_group *group, uint32_t n_mesh, void *stream)
{
	struct error *err = error_of_thread();
	int r = comm_check(group_comm(group), err);

	if (r < 0)
		return r;
	if (!group->open)
		return error_set(err, -EINVAL,
				 "the group is not unsharded in this rank");
	if (stream)
		r = comm_check_stream(group->comm, stream, err);
	if (r < 0)
		return r;
	if (unshard_is_by_ranks(group))
		return reshard_by_ranks(group, n_mesh, err);
	if (group->engine)
		r = engine_begin(group, err);
	if (r < 0)
		return r;
	return n_mesh > 0 ? reshard_to_mesh(group, n_mesh, stream, err)
			  : reshard_fully(group, stream, err);
}
