#include "tests/fakes/nccl/collective.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/nccl/comm.h"
#include "tests/fakes/nccl/sum.h"
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096 /* number of elements that are summed at a time */
/* number of replies "in progress" before a group is enqueued */
#define N_ANSWERS   2
#define MAX_ELEMENT 8
/* offset in a rank's range, after the input */
#define RESULT_PLACE (BOARD_ROOM / 2)

enum kind {
	KIND_ALL_GATHER,
	KIND_REDUCE_SCATTER,
	KIND_ALL_REDUCE,
};

static const char *const kind_names[] = {"AllGather", "ReduceScatter",
					 "AllReduce"};

struct collective {
	struct collective *next;
	ncclComm_t comm;
	CUstream stream;
	uint64_t number; /* counts from 1 */
	struct call call;
	ncclRedOp_t op;
	const char *send;
	char *receive;
	uint64_t send_size, receive_size;
};

/* The group of this thread. */
static _Thread_local struct {
	unsigned int depth;
	ncclResult_t failure;
	struct collective *first, **end;
} group;

/* --- on the stream ------------------------------------------------------- */

static ncclResult_t check_calls(const struct collective *c)
{
	const struct seat *seats = c->comm->join.board.file->seats;

	for (uint32_t i = 0; i < c->comm->join.n_ranks; i++) {
		const struct call *other = &seats[i].call;

		if (other->kind == c->call.kind &&
		    other->type == c->call.type && other->op == c->call.op &&
		    other->count == c->call.count)
			continue;
		return api_fail(ncclInvalidUsage,
				"collective %lu: rank %u calls %s of %lu "
				"elements of type %u with operation %u, rank "
				"%u %s of %lu of type %u with %u",
				c->number, c->comm->join.rank,
				kind_names[c->call.kind], c->call.count,
				c->call.type, c->call.op, i,
				kind_names[other->kind], other->count,
				other->type, other->op);
	}
	return ncclSuccess;
}

static bool gather(const struct collective *c)
{
	const struct join *join = &c->comm->join;

	for (uint32_t i = 0; i < join->n_ranks; i++)
		if (!board_get(&join->board, i, 0,
			       c->receive + i * c->send_size, c->send_size))
			return false;
	return true;
}

/* Combines one block of all ranks' inputs. `at` is the offset of its first byte
 * in the result. */
static bool reduce_block(const struct collective *c, uint64_t at, uint64_t size,
			 const struct sum *sum, char *inputs)
{
	const struct join *join = &c->comm->join;
	uint64_t from = c->call.kind == KIND_REDUCE_SCATTER
				? join->rank * c->receive_size
				: 0;
	char out[BLOCK * MAX_ELEMENT];

	for (uint32_t i = 0; i < join->n_ranks; i++)
		if (!board_get(&join->board, i, from + at,
			       inputs + i * sizeof(out), size))
			return false;
	sum_run(sum, out, size / sum_type_size(sum->type));
	return board_put(&join->board, join->rank, RESULT_PLACE, out, size) &&
	       board_get(&join->board, join->rank, RESULT_PLACE,
			 c->receive + at, size);
}

static bool reduce(const struct collective *c)
{
	const struct join *join = &c->comm->join;
	const void *places[BOARD_MAX_RANKS];
	double factors[BOARD_MAX_RANKS];
	struct sum sum = {
		.type = (ncclDataType_t)c->call.type,
		.n_inputs = join->n_ranks,
		.inputs = places,
		.factors = factors,
		.divisor = c->call.op == ncclAvg ? join->n_ranks : 1,
	};
	uint64_t block = BLOCK * sum_type_size(sum.type);
	char *inputs = malloc(join->n_ranks * BLOCK * MAX_ELEMENT);
	bool is_done = inputs;

	for (uint32_t i = 0; is_done && i < join->n_ranks; i++) {
		places[i] = inputs + i * BLOCK * MAX_ELEMENT;
		factors[i] = join->board.file->seats[i].call.factor;
	}
	for (uint64_t at = 0; is_done && at < c->receive_size; at += block) {
		uint64_t left = c->receive_size - at;

		is_done = reduce_block(c, at, left < block ? left : block, &sum,
				       inputs);
	}
	free(inputs);
	return is_done;
}

static ncclResult_t illegal_address(const struct collective *c)
{
	return api_fail(ncclUnhandledCudaError,
			"%s: an illegal memory access was encountered",
			kind_names[c->call.kind]);
}

static ncclResult_t context_error(const struct collective *c)
{
	return api_fail(ncclUnhandledCudaError, "%s: the context has an error",
			kind_names[c->call.kind]);
}

static bool is_stopped(const void *join)
{
	return join_is_stopped(join) || fake_is_stopping();
}

static ncclResult_t wait_for(const struct collective *c, enum board_count which,
			     uint64_t value)
{
	struct join *join = &c->comm->join;
	int r = board_wait(&join->board, which, value, is_stopped, join);

	if (r == BOARD_STOPPED)
		return fake_is_stopping() ? context_error(c) : ncclInProgress;
	if (r > 0)
		return api_fail(ncclRemoteError,
				"%s: rank %d has gone, or has failed",
				kind_names[c->call.kind], r - 1);
	return ncclSuccess;
}

/* Puts the input on the board, and waits until all ranks have done so. Before
 * that it waits for the communicator's own last collective, on any stream. */
static ncclResult_t exchange(const struct collective *c)
{
	struct join *join = &c->comm->join;
	ncclResult_t result = wait_for(c, COUNT_DONE, c->number - 1);

	if (result != ncclSuccess)
		return result;
	if (!board_put(&join->board, join->rank, 0, c->send, c->send_size))
		return illegal_address(c);
	join->board.file->seats[join->rank].call = c->call;
	board_tell(&join->board, join->rank, COUNT_READY, c->number);
	result = wait_for(c, COUNT_READY, c->number);
	return result == ncclSuccess ? check_calls(c) : result;
}

static ncclResult_t run(const struct collective *c)
{
	struct join *join = &c->comm->join;
	ncclResult_t result = (ncclResult_t)atomic_load(&c->comm->failure);
	bool is_done;

	if (result != ncclSuccess || join_is_stopped(join))
		return result;
	if (fake_is_stopping())
		return context_error(c);
	result = api_fault("Run");
	if (result == ncclSuccess)
		result = exchange(c);
	if (result != ncclSuccess)
		return result;
	is_done = c->call.kind == KIND_ALL_GATHER ? gather(c) : reduce(c);
	if (!is_done)
		return illegal_address(c);
	board_tell(&join->board, join->rank, COUNT_DONE, c->number);
	return ncclSuccess;
}

/* An error of a system call becomes one of the context, as it would for a
 * kernel. */
static void touch(const char *begin, uint64_t size)
{
	for (const char *at = begin; at < begin + size; at += 4096)
		(void)*(const volatile char *)at;
}

static void run_on_stream(void *data)
{
	struct collective *c = data, copy = *c;
	ncclComm_t comm = c->comm;
	ncclResult_t result;

	api_delay();
	result = run(c);
	if (result != ncclSuccess && result != ncclInProgress)
		comm_fail(comm, result);
	atomic_fetch_add(&comm->n_run, 1);
	comm_settle(comm);
	comm_unref(comm);
	free(c);
	if (result == ncclUnhandledCudaError && !fake_is_stopping()) {
		touch(copy.send, copy.send_size);
		touch(copy.receive, copy.receive_size);
	}
}

/* --- on its way there ---------------------------------------------------- */

static void issue(struct collective *c)
{
	ncclComm_t comm = c->comm;

	comm_ref(comm);
	if (fake_stream_enqueue(c->stream, run_on_stream, c) == CUDA_SUCCESS) {
		comm->n_enqueued++;
		return;
	}
	free(c);
	comm_fail(comm, api_fail(ncclUnhandledCudaError, "launch failed"));
	comm_unref(comm);
}

/* By default the real library connects ranks in the first collective of a kind
 * (in truth, of an algorithm), and enqueues it when all have begun it. */
static bool is_early(void)
{
	const char *setting = getenv("NCCL_RUNTIME_CONNECT");

	return setting && strcmp(setting, "0") == 0;
}

static ncclResult_t connect_kind(ncclComm_t comm, uint32_t kind)
{
	struct board *board = &comm->join.board;
	enum board_count which = COUNT_CONNECT + kind;
	int left;

	if (comm->is_connected[kind] || is_early())
		return ncclSuccess;
	board_tell(board, comm->join.rank, which, 1);
	comm->is_connected[kind] = board_has(board, which, 1);
	if (comm->is_connected[kind])
		return ncclSuccess;
	left = board_find_left(board, which, 1);
	if (left == 0)
		return ncclInProgress;
	comm_fail(comm, ncclRemoteError);
	return api_fail(ncclRemoteError, "%s: rank %d has left",
			kind_names[kind], left - 1);
}

ncclResult_t collective_connect(ncclComm_t comm)
{
	ncclResult_t result = ncclSuccess;

	for (struct collective *c = comm->pending; c && result == ncclSuccess;
	     c = c->next)
		result = connect_kind(comm, c->call.kind);
	return result;
}

/* A thread that queries the state need not have entered the context. */
void collective_issue(ncclComm_t comm)
{
	struct collective *c = comm->pending, *next;
	CUcontext before;

	comm->pending = NULL;
	comm->pending_end = &comm->pending;
	if (!c)
		return;
	cuCtxPushCurrent(comm->context);
	for (; c; c = next) {
		next = c->next;
		issue(c);
	}
	cuCtxPopCurrent(&before);
}

void collective_drop(struct collective *list)
{
	while (list) {
		struct collective *next = list->next;

		free(list);
		list = next;
	}
}

/* Gives the collectives of the group to their communicators, which enqueue them
 * when their state is queried. */
static ncclResult_t issue_group(void)
{
	struct collective *c = group.first, *next;
	ncclResult_t result = c ? ncclInProgress : ncclSuccess;

	for (; c; c = next) {
		next = c->next;
		c->next = NULL;
		c->number = ++c->comm->n_issued;
		c->comm->n_answers = N_ANSWERS;
		*c->comm->pending_end = c;
		c->comm->pending_end = &c->next;
	}
	return result;
}

static void start_group(void)
{
	if (group.depth++ > 0)
		return;
	group.failure = ncclSuccess;
	group.first = NULL;
	group.end = &group.first;
}

static ncclResult_t end_group(ncclResult_t failure)
{
	if (group.failure == ncclSuccess)
		group.failure = failure;
	if (--group.depth > 0)
		return failure;
	if (group.failure == ncclSuccess)
		return issue_group();
	collective_drop(group.first);
	return group.failure;
}

ncclResult_t ncclGroupStart(void)
{
	ncclResult_t result = api_fault("GroupStart");

	if (result == ncclSuccess)
		start_group();
	return result;
}

ncclResult_t ncclGroupEnd(void)
{
	if (group.depth == 0)
		return api_fail(ncclInvalidUsage,
				"GroupEnd without GroupStart");
	return end_group(api_fault("GroupEnd"));
}

/* --- calls --------------------------------------------------------------- */

static bool overlap(const struct collective *c)
{
	return c->send < c->receive + c->receive_size &&
	       c->receive < c->send + c->send_size;
}

/* In these cases only, input and output may be the same memory. */
static bool is_in_place(const struct collective *c)
{
	uint32_t rank = c->comm->join.rank;

	if (c->call.kind == KIND_ALL_GATHER)
		return c->send == c->receive + rank * c->send_size;
	if (c->call.kind == KIND_REDUCE_SCATTER)
		return c->receive == c->send + rank * c->receive_size;
	return c->send == c->receive;
}

/* Returns whether all of it is device memory, which may be several chunks. */
static bool is_device_memory(const char *begin, uint64_t size)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)begin, end = at + size, base;
	size_t range;

	while (at < end) {
		if (cuMemGetAddressRange(&base, &range, at) != CUDA_SUCCESS)
			return false;
		at = base + range;
	}
	return true;
}

static ncclResult_t check_memory(const struct collective *c)
{
	const char *name = kind_names[c->call.kind];

	if (!is_device_memory(c->send, c->send_size))
		return api_fail(ncclInvalidArgument,
				"%s: the input is no device memory", name);
	if (!is_device_memory(c->receive, c->receive_size))
		return api_fail(ncclInvalidArgument,
				"%s: the output is no device memory", name);
	if (overlap(c) && !is_in_place(c))
		return api_fail(ncclInvalidArgument,
				"%s: input and output overlap, and are not in "
				"place",
				name);
	return ncclSuccess;
}

/* Checks all arguments of the call except the memory. */
static ncclResult_t check_call(struct collective *c)
{
	ncclComm_t comm = c->comm;
	CUcontext context;
	unsigned int i = c->op - ncclNumOps;

	c->call.factor = 1;
	c->call.op = c->op;
	if (sum_type_size((ncclDataType_t)c->call.type) == 0)
		return api_fail(ncclInvalidArgument, "type %u", c->call.type);
	if (cuStreamGetCtx(c->stream, &context) != CUDA_SUCCESS ||
	    context != comm->context)
		return api_fail(ncclUnhandledCudaError,
				"the stream is of another context");
	if (c->op == ncclSum || c->op == ncclAvg)
		return ncclSuccess;
	if (c->op < ncclNumOps || i >= COMM_MAX_OPS || !comm->ops[i].is_used ||
	    comm->ops[i].type != (ncclDataType_t)c->call.type)
		return api_fail(ncclInvalidArgument,
				"operation %d: not known here, or not for this "
				"type",
				c->op);
	c->call.factor = comm->ops[i].factor;
	c->call.op = ncclNumOps;
	return ncclSuccess;
}

/* Sizes are in elements of the type. */
static void set_sizes(struct collective *c)
{
	uint64_t n_ranks = c->comm->join.n_ranks;
	uint64_t size =
		c->call.count * sum_type_size((ncclDataType_t)c->call.type);

	c->send_size = c->receive_size = size;
	if (c->call.kind == KIND_ALL_GATHER)
		c->receive_size *= n_ranks;
	if (c->call.kind == KIND_REDUCE_SCATTER)
		c->send_size *= n_ranks;
}

static ncclResult_t check(struct collective *c)
{
	const char *name = kind_names[c->call.kind];
	ncclResult_t result = comm_enter_ready(c->comm, name);
	CUcontext before;

	if (result != ncclSuccess)
		return result;
	cuCtxPushCurrent(c->comm->context);
	result = check_call(c);
	if (result == ncclSuccess) {
		set_sizes(c);
		result = check_memory(c);
	}
	cuCtxPopCurrent(&before);
	comm_leave(c->comm);
	return result;
}

/* A call outside of a group is a group of its own. */
static ncclResult_t submit(const struct collective *template)
{
	struct collective *c = malloc(sizeof(*c));
	ncclResult_t result;

	if (!c)
		return api_fail(ncclSystemError, "out of memory");
	*c = *template;
	start_group();
	result = check(c);
	if (result == ncclSuccess) {
		*group.end = c;
		group.end = &c->next;
	} else {
		free(c);
	}
	return end_group(result);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count,
			   ncclDataType_t type, ncclComm_t comm,
			   CUstream stream)
{
	return submit(&(struct collective){
		.comm = comm,
		.stream = stream,
		.call = {.kind = KIND_ALL_GATHER, .type = type, .count = count},
		.send = send,
		.receive = receive,
	});
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count,
			       ncclDataType_t type, ncclRedOp_t op,
			       ncclComm_t comm, CUstream stream)
{
	return submit(&(struct collective){
		.comm = comm,
		.stream = stream,
		.call = {.kind = KIND_REDUCE_SCATTER,
			 .type = type,
			 .count = count},
		.op = op,
		.send = send,
		.receive = receive,
	});
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count,
			   ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
			   CUstream stream)
{
	return submit(&(struct collective){
		.comm = comm,
		.stream = stream,
		.call = {.kind = KIND_ALL_REDUCE, .type = type, .count = count},
		.op = op,
		.send = send,
		.receive = receive,
	});
}
