#include "client/rank/inputs.h"
#include "client/rank/await.h"
#include "client/rank/comm.h"
#include "client/rank/group_impl.h"
#include "client/rank/host_group.h"
#include "client/rank/host_reduce.h"
#include "client/rank/idle.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int inputs_init(struct inputs *inputs, uint32_t n_ranks, uint32_t n_max,
		struct error *err)
{
	*inputs = (struct inputs){.n_max = n_max};
	inputs->others =
		calloc((size_t)n_ranks * n_max, sizeof(*inputs->others));
	return inputs->others ? 0 : error_nomem(err, "the inputs");
}

void inputs_end_handles(struct inputs *inputs, uint32_t n_ranks)
{
	for (uint32_t i = 0; i < inputs->n; i++)
		fsdp_free(inputs->own[i].tensor);
	inputs->n = 0;
	idle_end_others(inputs, n_ranks);
}

void inputs_deinit(struct inputs *inputs)
{
	free(inputs->others);
}

/* --- this rank's --------------------------------------------------------- */

static uint64_t size_of(const struct fsdp_tensor *tensor)
{
	return desc_rest(tensor_desc(tensor))->size;
}

static int add(struct fsdp_comm *comm, const struct fsdp_group *group,
	       int64_t until_ns, struct own_input **ret, struct error *err)
{
	struct inputs *inputs = &comm->reducer->inputs;
	struct own_input input = {.tensor = NULL};
	struct request request = {.kind = MESSAGE_INPUT,
				  .input = {.group = group->id}};
	int r = idle_ask(comm, &request, until_ns, group->host->plan.input_size,
			 &input.tensor, err);

	if (r < 0)
		return r;
	inputs->own[inputs->n] = input;
	*ret = &inputs->own[inputs->n++];
	return 0;
}

/* Return one unused input, so that another can be requested. */
static int drop_unused(struct fsdp_comm *comm, struct error *err)
{
	struct inputs *inputs = &comm->reducer->inputs;
	struct own_input *input = idle_find_input(inputs, 0);

	if (input)
		return idle_give_back_input(comm, input, err);
	return error_set(
		err, -EBUSY,
		"rank %u has %u inputs that it has not reduced, which is its "
		"limit; reduce one first, or join with a larger n_inputs",
		comm->rank, inputs->n_max);
}

int inputs_take(struct fsdp_comm *comm, const struct fsdp_group *group,
		int64_t until_ns, struct fsdp_tensor **ret, struct error *err)
{
	struct inputs *inputs = &comm->reducer->inputs;
	struct own_input *input =
		idle_find_input(inputs, group->host->plan.input_size);
	int r = 0;

	if (!input && inputs->n == inputs->n_max)
		r = drop_unused(comm, err);
	if (r == 0 && !input)
		r = add(comm, group, until_ns, &input, err);
	if (r < 0)
		return r;
	input->is_used = true;
	*ret = input->tensor;
	return 0;
}

void inputs_free(struct inputs *inputs, const struct fsdp_tensor *input)
{
	for (uint32_t i = 0; i < inputs->n; i++) {
		if (inputs->own[i].tensor == input)
			inputs->own[i].is_used = false;
	}
}

/* --- those of others ----------------------------------------------------- */

static bool is_equal(const struct slot_ref *a, const struct slot_ref *b)
{
	return a->slot == b->slot && a->generation == b->generation;
}

/* Return the entry for an input of another rank, or the entry in which it will
 * be stored. This rank does not know which inputs the other rank has returned.
 * If the row is full, its entries are replaced in turn; at worst an input is
 * requested again. */
static struct other_input *find_other(struct inputs *inputs, uint32_t rank,
				      const struct slot_ref *ref)
{
	struct other_input *row = &inputs->others[(size_t)rank * inputs->n_max];
	struct other_input *free = NULL;

	for (uint32_t i = 0; i < inputs->n_max; i++) {
		if (row[i].tensor && is_equal(&row[i].ref, ref))
			return &row[i];
		if (!row[i].tensor)
			free = &row[i];
	}
	return free ? free : &row[inputs->next_victim++ % inputs->n_max];
}

static int fetch_other(struct fsdp_comm *comm, const struct fsdp_group *group,
		       const struct slot_ref *ref, struct other_input *ret,
		       struct error *err)
{
	const struct request request = {
		.kind = MESSAGE_COMM_PLACE,
		.comm_place = {.group = group->id,
			       .is_input = true,
			       .input = *ref},
	};

	fsdp_free(ret->tensor);
	*ret = (struct other_input){.ref = *ref};
	return group_ask_one(comm, &request, group->host->plan.input_size, NULL,
			     &ret->tensor, err);
}

int inputs_find(struct fsdp_comm *comm, const struct fsdp_group *group,
		uint32_t rank, const struct slot_ref *ref, const uint8_t **ret,
		struct error *err)
{
	struct other_input *other =
		find_other(&comm->reducer->inputs, rank, ref);
	uint64_t size = group->host->plan.input_size;
	int r = 0;

	if (!other->tensor || !is_equal(&other->ref, ref))
		r = fetch_other(comm, group, ref, other, err);
	if (r < 0)
		return r;
	if (size_of(other->tensor) < size)
		return error_set(
			err, -EPROTO,
			"rank %u handed in an input that is too small for '%s'",
			rank, group->name);
	*ret = other->tensor->data;
	return 0;
}

int inputs_find_partial(struct fsdp_group *group, struct error *err)
{
	struct fsdp_comm *comm = group->comm;
	const struct plan *plan = &group->host->plan;
	struct request request = {.kind = MESSAGE_COMM_PLACE,
				  .comm_place = {.group = group->id}};

	if (group->host->partial)
		return 0;
	return idle_ask(comm, &request, await_until(comm->timeout_ms),
			plan->partial_size * plan->n_replicas,
			&group->host->partial, err);
}
