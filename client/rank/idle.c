#include "client/rank/idle.h"
#include "client/rank/gather_job.h"
#include "client/rank/group_impl.h"
#include "client/rank/host_reduce.h"
#include "client/rank/inputs.h"
#include "shm/bell.h"
#include <errno.h>

#define MS_NS INT64_C(1000000)
/* The time after which a rank that waits for memory looks again which of its
 * buffers other ranks have given up. */
#define SLICE_MS 1000

/* --- buffers ------------------------------------------------------------- */

void idle_drop_buffer(struct own_buffer *buffer)
{
	fsdp_free(buffer->tensor);
	buffer->tensor = NULL;
}

bool idle_is_in_use(const struct fsdp_comm *comm,
		    const struct own_buffer *buffer)
{
	const struct fsdp_group *group = comm->groups;

	while (group && group->gathered != buffer->tensor)
		group = group->next;
	return buffer->tensor && group;
}

/* A correct rank does not give up a buffer that another uses, but any rank may
 * write that. */
void idle_drop_stale(struct fsdp_comm *comm)
{
	struct gatherer *gatherer = comm->gatherer;

	for (uint32_t i = 0; i < gatherer->n_buffers; i++) {
		struct own_buffer *buffer = &gatherer->buffers[i];

		if (buffer->tensor && !idle_is_in_use(comm, buffer) &&
		    gathers_version(&comm->board, i) != buffer->version)
			idle_drop_buffer(buffer);
	}
}

/* Retire the idle buffers. If another rank has the lock, it is choosing a
 * buffer, and none is retired. */
static void retire_idle(struct fsdp_comm *comm)
{
	if (!gathers_lock(&comm->board, comm->rank))
		return;
	gathers_retire(&comm->board);
	gathers_unlock(&comm->board);
}

static void give_back_buffers(struct fsdp_comm *comm)
{
	if (!comm->gatherer || !comm->board.page)
		return;
	retire_idle(comm);
	idle_drop_stale(comm);
}

static bool has_idle_buffer(const struct fsdp_comm *comm)
{
	const struct gatherer *gatherer = comm->gatherer;

	for (uint32_t i = 0; gatherer && i < gatherer->n_buffers; i++) {
		if (gatherer->buffers[i].tensor &&
		    !idle_is_in_use(comm, &gatherer->buffers[i]))
			return true;
	}
	return false;
}

static bool is_recalled(const struct fsdp_comm *comm, uint32_t i)
{
	const struct own_buffer *buffer = &comm->gatherer->buffers[i];

	return buffer->tensor && buffer->recalls != board_recalls(&comm->board);
}

/* Retire the buffers that the broker has recalled. A buffer that is in use
 * stays recalled, and a later call retires it. */
static void retire_recalled(struct fsdp_comm *comm, uint32_t first)
{
	if (!gathers_lock(&comm->board, comm->rank))
		return;
	for (uint32_t i = first; i < comm->gatherer->n_buffers; i++) {
		if (is_recalled(comm, i))
			gathers_retire_one(&comm->board, i);
	}
	gathers_unlock(&comm->board);
}

/* The other ranks unmap their buffers with their next calls. */
void idle_heed_buffers(struct fsdp_comm *comm)
{
	struct gatherer *gatherer = comm->gatherer;
	uint32_t i = 0;

	if (!gatherer || !comm->board.page)
		return;
	while (i < gatherer->n_buffers && !is_recalled(comm, i))
		i++;
	if (i < gatherer->n_buffers)
		retire_recalled(comm, i);
	idle_drop_stale(comm);
}

/* --- inputs -------------------------------------------------------------- */

static struct slot_ref ref_of(const struct fsdp_tensor *tensor)
{
	return (struct slot_ref){tensor->slot, tensor->generation};
}

static uint64_t size_of(const struct fsdp_tensor *tensor)
{
	return desc_rest(tensor_desc(tensor))->size;
}

void idle_end_others(struct inputs *inputs, uint32_t n_ranks)
{
	for (uint32_t i = 0; i < n_ranks * inputs->n_max; i++) {
		fsdp_free(inputs->others[i].tensor);
		inputs->others[i] = (struct other_input){0};
	}
}

struct own_input *idle_find_input(struct inputs *inputs, uint64_t size)
{
	for (uint32_t i = 0; i < inputs->n; i++) {
		struct own_input *input = &inputs->own[i];

		if (!input->is_used && size_of(input->tensor) >= size)
			return input;
	}
	return NULL;
}

int idle_give_back_input(struct fsdp_comm *comm, struct own_input *input,
			 struct error *err)
{
	struct inputs *inputs = &comm->reducer->inputs;
	struct request request = {
		.kind = MESSAGE_INPUT_END,
		.input_end = {.comm = comm->id, .input = ref_of(input->tensor)},
	};

	tensor_end(input->tensor);
	*input = inputs->own[--inputs->n];
	return comm_command(comm, &request, err);
}

static int give_back_inputs(struct fsdp_comm *comm, struct error *err)
{
	struct inputs *inputs = &comm->reducer->inputs;
	struct own_input *input;
	int r = 0;

	idle_end_others(inputs, comm->n_shards * comm->n_replicas);
	while (r == 0 && (input = idle_find_input(inputs, 0)))
		r = idle_give_back_input(comm, input, err);
	return r;
}

int idle_heed_inputs(struct fsdp_comm *comm, struct error *err)
{
	uint32_t n;

	if (!comm->reducer || !comm->board.page)
		return 0;
	n = board_recalls(&comm->board);
	if (__builtin_expect(n == comm->reducer->inputs.n_recalls, 1))
		return 0;
	comm->reducer->inputs.n_recalls = n;
	return give_back_inputs(comm, err);
}

/* --- both ---------------------------------------------------------------- */

int idle_give_back(struct fsdp_comm *comm, struct error *err)
{
	give_back_buffers(comm);
	return comm->reducer ? give_back_inputs(comm, err) : 0;
}

int idle_heed(struct fsdp_comm *comm, struct error *err)
{
	idle_heed_buffers(comm);
	return idle_heed_inputs(comm, err);
}

/* Return the time-out of the next request. If this rank keeps no idle memory,
 * it need not look again, and keeps its turn at the broker. A time that no
 * request can name counts as for ever. */
static int32_t next_ms(const struct fsdp_comm *comm, int64_t until_ns)
{
	int64_t left_ms = (until_ns - bell_now_ns() + MS_NS - 1) / MS_NS;

	if (left_ms > SLICE_MS && has_idle_buffer(comm))
		return SLICE_MS;
	if (left_ms > INT32_MAX)
		return -1;
	return left_ms > 0 ? (int32_t)left_ms : 0;
}

static int32_t *timeout_of(struct request *request)
{
	switch (request->kind) {
	case MESSAGE_INPUT:
		return &request->input.timeout_ms;
	case MESSAGE_COMM_PLACE:
		return &request->comm_place.timeout_ms;
	default:
		return &request->gather_buffer.timeout_ms;
	}
}

int idle_ask(struct fsdp_comm *comm, struct request *request, int64_t until_ns,
	     uint64_t size, struct fsdp_tensor **ret, struct error *err)
{
	int32_t *timeout_ms = timeout_of(request);
	int r;

	*timeout_ms = 0;
	r = group_ask_one(comm, request, size, NULL, ret, err);
	while (r == -ETIMEDOUT) {
		r = idle_give_back(comm, err);
		if (r < 0)
			break;
		*timeout_ms = next_ms(comm, until_ns);
		r = group_ask_one(comm, request, size, NULL, ret, err);
		if (bell_now_ns() >= until_ns)
			break;
	}
	return r;
}
