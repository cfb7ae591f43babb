/* How a rank gets an input, and submits the gradients that it has written
 * there. */
#include "client/clock.h"
#include "client/rank/await.h"
#include "client/rank/engine.h"
#include "client/rank/group_impl.h"
#include "client/rank/host_reduce.h"
#include "client/rank/idle.h"
#include "client/rank/plain_device.h"
#include "client/sized.h"
#include <errno.h>

static bool has_input(const struct fsdp_group *group)
{
	return group->input || group->input_mapping.is_held;
}

int fsdp_input(struct fsdp_group *group, int32_t timeout_ms)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_INPUT};
	int r;

	r = comm_check_idle(group_comm(group), err);
	if (r < 0)
		return r;
	if (has_input(group))
		return error_set(err, -EBUSY,
				 "the group has an input in this rank already; "
				 "pass it to fsdp_reduce() first");
	if (group->comm->reducer)
		return host_reduce_input(group, timeout_ms, err);
	request.input = (struct input_request){.group = group->id,
					       .timeout_ms = timeout_ms};
	comm_end_spent(group->comm);
	if (group->comm->gatherer)
		return idle_ask(group->comm, &request, await_until(timeout_ms),
				group->input_size, &group->input, err);
	return group_ask_one(group->comm, &request, group->input_size,
			     &group->input_mapping, &group->input, err);
}

void *fsdp_input_data(struct fsdp_group *group, size_t param)
{
	/* Writable memory is not mapped in a forked child. */
	if (!group || guard_is_forked(&group->comm->client->guard) ||
	    group_map(group, &group->input_mapping, &group->input,
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

/* Let fsdp-worker wait until the stream has written the gradients. A broker
 * without ready fences cannot do that, so this rank then waits itself. */
static int order_gradients(struct fsdp_group *group, void *stream,
			   struct reduce_request *request, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	struct fence fence;
	int r = plain_note_stream(comm, stream, group->input, &fence, err);

	if (r < 0)
		return r;
	if (!comm->takes_fences)
		return plain_await(comm, &fence,
				   clock_now_ms() + comm->timeout_ms, err);
	request->timeline = fence.timeline;
	request->value = fence.value;
	return 0;
}

/* Store the number of the first reduction that changes the gradients. Without
 * replicas every reduction does. */
static void note_first_full(struct fsdp_group *group,
			    const struct fsdp_reduce_options *options,
			    uint64_t sequence)
{
	if (!group->first_full &&
	    (!options->no_all_reduce || group->comm->n_replicas == 1))
		group->first_full = sequence;
}

static int check_reduce(const struct fsdp_group *group,
			const struct fsdp_reduce_options *options,
			struct fsdp_reduce_options *ret, struct error *err)
{
	int r = comm_check_idle(group_comm(group), err);

	if (r == 0)
		r = sized_take(ret, options, SIZED(fsdp_reduce_options), err);
	if (r < 0)
		return r;
	if (!has_input(group))
		return error_set(err, -EINVAL,
				 "the group has no input in this rank; get one "
				 "with fsdp_input()");
	return ret->stream ? comm_check_stream(group->comm, ret->stream, err)
			   : 0;
}

/* Let the broker plan the reduction. `*ret` is the request. */
static int plan_reduce(struct fsdp_group *group,
		       const struct fsdp_reduce_options *o, struct request *ret,
		       struct fsdp_work *ret_work, struct error *err)
{
	struct received received;
	int r = 0;

	*ret = (struct request){.kind = MESSAGE_REDUCE};
	ret->reduce = (struct reduce_request){
		.group = group->id,
		.input = input_ref(group),
		.flags = reduce_flags(o),
		.has_factor = o->has_factor,
		.factor = o->factor,
	};
	if (o->stream && !group->engine)
		r = order_gradients(group, o->stream, &ret->reduce, err);
	if (r == 0)
		r = comm_call(group->comm, ret, &received, err);
	if (r < 0)
		return r;
	*ret_work = (struct fsdp_work){
		.comm = group->comm,
		.group = group,
		.kind = WORK_REDUCE,
		.sequence = received.reply.work.sequence,
	};
	received_deinit(&received);
	return 0;
}

/* Set the input aside until the next request. The broker keeps it until it is
 * reduced, so it need not be woken now. */
static void spend_input(struct fsdp_group *group)
{
	fsdp_free(group->comm->spent);
	group->comm->spent = group->input;
	group->input = NULL;
	lazy_mapping_drop(&group->input_mapping, group->comm->client);
}

int fsdp_reduce(struct fsdp_group *group,
		const struct fsdp_reduce_options *options,
		struct fsdp_work *ret)
{
	struct error *err = error_of_thread();
	struct fsdp_reduce_options o;
	struct request request;
	int r = check_reduce(group, options, &o, err);

	if (r < 0)
		return r;
	if (group->comm->reducer)
		r = host_reduce_begin(group, &o, ret, err);
	else
		r = plan_reduce(group, &o, &request, ret, err);
	if (r < 0)
		return r;
	note_first_full(group, &o, ret->sequence);
	if (group->comm->reducer)
		return 0;
	if (group->engine)
		return engine_reduce(group, &request.reduce, ret->sequence,
				     o.stream, err);
	spend_input(group);
	return 0;
}
