/*
 * A task is a range of the ranks' inputs. It is processed in blocks whose sums
 * stay in the first-level cache through all steps. So each input is read from
 * main memory once, and each gradient is written once.
 */
#include "collective/host/reduce.h"
#include "collective/divide.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

/* bytes that a task reads and writes */
#define TASK_BYTES (UINT64_C(512) << 10)
/* the same for shared tasks, at least */
#define TASK_MIN    (UINT64_C(32) << 10)
#define TASK_UNIT   UINT64_C(1024) /* bytes of the input; tasks are multiples */
#define BLOCK       512            /* elements */
#define MAX_ELEMENT sizeof(uint64_t)

/* A pile has a block for each rank. Blocks are shorter if there are many ranks,
 * so that all of them stay in the second-level cache. */
#define PILE_SIZE (UINT64_C(64) << 10)

struct block {
	_Alignas(PLAN_ALIGN) uint8_t bytes[BLOCK * MAX_ELEMENT];
};

struct pile {
	_Alignas(PLAN_ALIGN) uint8_t bytes[PILE_SIZE];
};

struct buffers {
	struct pile inputs, sums; /* cast inputs; sums of the replicas */
	struct block scratch, value;
};

/* The state that the steps of a task share. */
struct task {
	const struct reduce *reduce;
	const struct plan_entry *entry;
	const struct reduce_steps *steps;
	/* The dtype to which sums are rounded between two steps: the reduce
	 * dtype, or 64 bits for integers. */
	uint32_t sum_dtype;
	bool is_streamed;
	/* The only step is one sum, over the shards or over the replicas. */
	bool is_one_step;
	uint64_t position; /* of the block */
	size_t n, n_max;   /* elements of the block; maximum for any block */
	struct buffers *buffers; /* NULL if it is one step */
};

/* Describes where the elements of an entry are in grads or partial. */
struct place {
	uint8_t *base; /* of the replica */
	uint64_t offset, stride;
	uint32_t dtype;
};

/* --- setting up ---------------------------------------------------------- */

static int make_steps(struct reduce *reduce, uint32_t dtype,
		      const struct reduce_options *options, struct error *err)
{
	const struct plan *plan = &reduce->layout->plan;
	const struct divide_input input = {
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
		.dtype = dtype,
		.has_factor = options->has_factor,
		.factor = options->factor,
		.is_sum_forced = options->is_sum_forced,
	};
	struct divide divide;
	int exponent, r = divide_make(&input, &divide, err);

	if (r < 0)
		return r;
	/* A power of two has an exact reciprocal. If post divides, no sum is
	 * AVG. */
	assert(frexp(divide.pre, &exponent) == 0.5);
	assert(divide.post == 1 || (divide.scatter_op != REDUCE_OP_AVG &&
				    divide.reduce_op != REDUCE_OP_AVG));
	reduce->steps[dtype] = (struct reduce_steps){
		.factor = divide.premul / divide.pre,
		.shards =
			divide.scatter_op == REDUCE_OP_AVG ? plan->n_shards : 1,
		.replicas = divide.reduce_op == REDUCE_OP_AVG ? plan->n_replicas
							      : 1,
		.post = divide.post,
	};
	return 0;
}

/* Returns the input size of a task that reads and writes `bytes` bytes. */
static uint64_t task_size(const struct plan *plan, uint64_t bytes)
{
	uint64_t size = bytes / (plan->n_shards * plan->n_replicas + 1);

	return size > TASK_UNIT ? size / TASK_UNIT * TASK_UNIT : TASK_UNIT;
}

void reduce_share(struct reduce *reduce)
{
	const struct plan *plan = &reduce->layout->plan;
	/* A reduction reads and writes about input_size bytes for each rank, so
	 * this makes four tasks for each rank. */
	uint64_t bytes = plan->input_size / 4;

	bytes = bytes < TASK_MIN ? TASK_MIN : bytes;
	bytes = bytes > TASK_BYTES ? TASK_BYTES : bytes;
	reduce->task_size = task_size(plan, bytes);
}

int reduce_init(struct reduce *reduce, const struct layout *layout,
		const struct kernels *kernels,
		const struct reduce_options *options, struct error *err)
{
	const uint32_t partial =
		HOST_REDUCE_PARTIAL_IN | HOST_REDUCE_PARTIAL_OUT;

	*reduce = (struct reduce){
		.layout = layout,
		.kernels = kernels,
		.flags = options->flags,
		.task_size = task_size(&layout->plan, TASK_BYTES),
	};
	if (options->flags & ~(HOST_REDUCE_ACCUMULATE | partial))
		return error_set(err, -EINVAL, "unknown flags 0x%x",
				 options->flags);
	if ((options->flags & partial) && layout->plan.n_replicas == 1)
		return error_set(err, -EINVAL,
				 "partial sums are for several replicas; this "
				 "plan has one");
	for (uint32_t i = 0; i < layout->n_input_spans; i++) {
		uint32_t dtype = layout->input_spans[i].entry->reduce_dtype;
		int r = 0;

		if (reduce->steps[dtype].post == 0)
			r = make_steps(reduce, dtype, options, err);
		if (r < 0)
			return r;
	}
	return 0;
}

uint64_t reduce_count_tasks(const struct reduce *reduce)
{
	uint64_t size = reduce->task_size;

	if (reduce->layout->n_input_spans == 0)
		return 0;
	return (reduce->layout->plan.input_size + size - 1) / size;
}

uint64_t reduce_count_bytes(const struct reduce *reduce)
{
	const struct plan *plan = &reduce->layout->plan;
	uint64_t n = 0;

	for (uint32_t i = 0; i < reduce->layout->n_input_spans; i++) {
		const struct plan_entry *entry =
			reduce->layout->input_spans[i].entry;
		uint64_t inputs = (uint64_t)plan->n_shards *
				  dtype_size(entry->input_dtype);
		uint64_t grads = dtype_size(entry->dtype);
		uint64_t partial = dtype_size(entry->reduce_dtype);
		uint64_t each = inputs;

		if (reduce->flags & HOST_REDUCE_PARTIAL_IN)
			each += partial;
		if (reduce->flags & HOST_REDUCE_PARTIAL_OUT)
			each += partial;
		else
			each += reduce->flags & HOST_REDUCE_ACCUMULATE
					? 2 * grads
					: grads;
		n += entry->shard.numel * each * plan->n_replicas;
	}
	return n;
}

/* --- places -------------------------------------------------------------- */

static struct place grads_of(const struct task *task, uint32_t replica)
{
	uint64_t size = task->reduce->layout->plan.grads_size;

	return (struct place){
		.base = task->reduce->grads + replica * size,
		.offset = task->entry->grad_offset,
		.stride = task->entry->grad_stride,
		.dtype = task->entry->dtype,
	};
}

static struct place partial_of(const struct task *task, uint32_t replica)
{
	uint64_t size = task->reduce->layout->plan.partial_size;

	return (struct place){
		.base = task->reduce->partial + replica * size,
		.offset = task->entry->partial_offset,
		.stride = task->entry->partial_stride,
		.dtype = task->entry->reduce_dtype,
	};
}

static uint8_t *address(const struct place *place,
			const struct shard_range *range)
{
	return place->base + place->offset + range->shard * place->stride +
	       range->at * dtype_size(place->dtype);
}

/* --- steps of a block ---------------------------------------------------- */

static void fold(const struct task *task, uint32_t from, uint32_t to, void *out,
		 const void *const *in, uint32_t n_in, double factor,
		 double divisor)
{
	task->reduce->kernels->fold[from][to](&out, 1, in, n_in, task->n,
					      factor, divisor, false);
}

/* Returns whether inputs of that dtype can be summed without a cast: they have
 * the reduce dtype, or the accumulator represents them exactly. */
static bool is_summable(const struct plan_entry *entry)
{
	return entry->input_dtype == entry->reduce_dtype ||
	       (entry->reduce_dtype == DTYPE_F32 &&
		dtype_accumulator(entry->input_dtype) == DTYPE_F32);
}

/* Finds the summable inputs of a replica. Returns their dtype. */
static uint32_t find_inputs(struct task *task, uint32_t replica,
			    const void **ret_in)
{
	const struct plan_entry *entry = task->entry;
	uint32_t from = entry->input_dtype, to = entry->reduce_dtype;
	uint32_t n = task->reduce->layout->plan.n_shards;
	uint64_t at = entry->input_offset + task->position * dtype_size(from);
	bool is_cast = !is_summable(entry);

	for (uint32_t s = 0; s < n; s++) {
		const void *in = task->reduce->inputs[replica * n + s] + at;

		ret_in[s] = in;
		if (is_cast) {
			void *cast = task->buffers->inputs.bytes +
				     s * task->n_max * MAX_ELEMENT;

			fold(task, from, to, cast, &in, 1, 1, 1);
			ret_in[s] = cast;
		}
	}
	return is_cast ? to : from;
}

static void add_partial(struct task *task, uint32_t replica, uint8_t *sum)
{
	const struct kernels *kernels = task->reduce->kernels;
	struct place place = partial_of(task, replica);
	size_t size = dtype_size(task->sum_dtype), i = 0;
	uint32_t dtype = task->sum_dtype;

	while (i < task->n) {
		struct shard_range range = layout_range(
			&task->entry->shard, task->position + i, task->n - i);
		const void *partial = address(&place, &range);
		const void *in[2] = {sum + i * size, &task->buffers->scratch};
		void *scratch = &task->buffers->scratch,
		     *value = &task->buffers->value;

		kernels->fold[place.dtype][dtype](&scratch, 1, &partial, 1,
						  range.n, 1, 1, false);
		kernels->fold[dtype][dtype](&value, 1, in, 2, range.n, 1, 1,
					    false);
		memcpy(sum + i * size, &task->buffers->value, range.n * size);
		i += range.n;
	}
}

/* Adds `n` elements of that dtype to `to`. */
static void accumulate(struct task *task, uint32_t dtype, void *to,
		       const void *from, size_t n)
{
	const void *in[2] = {to, from};
	void *scratch = &task->buffers->scratch;

	task->reduce->kernels->fold[dtype][dtype](&scratch, 1, in, 2, n, 1, 1,
						  false);
	memcpy(to, &task->buffers->scratch, n * dtype_size(dtype));
}

/* Writes the block of values, in the dtype of the place, to its destination. */
static void put(struct task *task, const struct place *place, bool is_added)
{
	size_t size = dtype_size(place->dtype), i = 0;

	while (i < task->n) {
		struct shard_range range = layout_range(
			&task->entry->shard, task->position + i, task->n - i);
		const uint8_t *from = task->buffers->value.bytes + i * size;
		uint8_t *to = address(place, &range);

		if (is_added)
			accumulate(task, place->dtype, to, from, range.n);
		else
			task->reduce->kernels->copy(to, from, range.n * size,
						    task->is_streamed);
		i += range.n;
	}
}

/* Computes the sum of one replica, up to and with the partial sum. */
static void sum_replica(struct task *task, uint32_t replica, uint8_t *sum)
{
	const struct reduce *reduce = task->reduce;
	const void *in[PLAN_MAX_RANKS], *sums = sum;
	uint32_t from = find_inputs(task, replica, in);
	struct place place;

	fold(task, from, task->sum_dtype, sum, in,
	     reduce->layout->plan.n_shards, task->steps->factor,
	     task->steps->shards);
	if (reduce->flags & HOST_REDUCE_PARTIAL_IN)
		add_partial(task, replica, sum);
	if (!(reduce->flags & HOST_REDUCE_PARTIAL_OUT))
		return;
	place = partial_of(task, replica);
	fold(task, task->sum_dtype, place.dtype, &task->buffers->value, &sums,
	     1, 1, 1);
	put(task, &place, false);
}

/* Returns whether the last sum, its division and the cast to the stored dtype
 * can be one step: no value between them is rounded, or only the last one. */
static bool is_merged(const struct task *task)
{
	const struct plan_entry *entry = task->entry;

	return task->sum_dtype == dtype_accumulator(entry->reduce_dtype) ||
	       (task->sum_dtype == entry->dtype && task->steps->post == 1);
}

/* Computes the last sum, then divides it and casts it to the stored dtype. */
static void finish(struct task *task, uint32_t from, const void *const *in,
		   uint32_t n_in, double factor, double divisor)
{
	uint32_t dtype = task->entry->dtype, sum_dtype = task->sum_dtype;
	double post = task->steps->post;
	const void *total = &task->buffers->scratch;

	if (is_merged(task)) {
		fold(task, from, dtype, &task->buffers->value, in, n_in, factor,
		     divisor * post);
		return;
	}
	fold(task, from, sum_dtype, &task->buffers->scratch, in, n_in, factor,
	     divisor);
	fold(task, sum_dtype, dtype, &task->buffers->value, &total, 1, 1, post);
}

/* With one shard, the sum of a replica is its only input, unless a step changes
 * it. */
static bool is_input_sum(const struct task *task)
{
	return task->entry->shard.n_ranks == 1 && task->steps->factor == 1 &&
	       !(task->reduce->flags &
		 (HOST_REDUCE_PARTIAL_IN | HOST_REDUCE_PARTIAL_OUT)) &&
	       is_summable(task->entry);
}

/* Reduces over several replicas. Returns false if the job ends with partial
 * sums. */
static bool finish_replicas(struct task *task)
{
	uint32_t n = task->reduce->layout->plan.n_replicas;
	uint32_t from = task->sum_dtype;
	const void *in[PLAN_MAX_RANKS];

	for (uint32_t g = 0; g < n; g++) {
		uint8_t *sum = task->buffers->sums.bytes +
			       g * task->n_max * MAX_ELEMENT;

		in[g] = sum;
		if (is_input_sum(task))
			from = find_inputs(task, g, &in[g]);
		else
			sum_replica(task, g, sum);
	}
	if (task->reduce->flags & HOST_REDUCE_PARTIAL_OUT)
		return false;
	finish(task, from, in, n, 1, task->steps->replicas);
	return true;
}

/* Runs any job for one block. Returns the number of elements. */
static uint64_t reduce_block(struct task *task)
{
	const struct plan *plan = &task->reduce->layout->plan;
	const void *in[PLAN_MAX_RANKS];

	if (plan->n_replicas == 1) {
		uint32_t from = find_inputs(task, 0, in);

		finish(task, from, in, plan->n_shards, task->steps->factor,
		       task->steps->shards);
	} else if (!finish_replicas(task)) {
		return task->n;
	}
	for (uint32_t g = 0; g < plan->n_replicas; g++) {
		struct place place = grads_of(task, g);

		put(task, &place, task->reduce->flags & HOST_REDUCE_ACCUMULATE);
	}
	return task->n;
}

/* Sums from the inputs directly to the destinations. Returns the number of
 * elements. */
static uint64_t reduce_range(struct task *task, uint64_t max)
{
	const struct plan *plan = &task->reduce->layout->plan;
	const struct reduce_steps *steps = task->steps;
	struct shard_range range =
		layout_range(&task->entry->shard, task->position, max);
	uint32_t n = plan->n_shards, n_replicas = plan->n_replicas;
	uint32_t from = 0;
	const void *in[PLAN_MAX_RANKS];
	void *out[PLAN_MAX_RANKS];

	for (uint32_t g = 0; g < n_replicas; g++) {
		struct place place = grads_of(task, g);

		from = find_inputs(task, g, in + (size_t)g * n);
		out[g] = address(&place, &range);
	}
	/* At most one of the divisors is not 1. */
	task->reduce->kernels->fold[from][task->entry->dtype](
		out, n_replicas, in, n * n_replicas, range.n, steps->factor,
		steps->shards * steps->replicas * steps->post,
		task->is_streamed);
	return range.n;
}

/* --- padding ------------------------------------------------------------- */

/* Returns the output place of a replica. */
static struct place output_of(const struct task *task, uint32_t replica)
{
	return task->reduce->flags & HOST_REDUCE_PARTIAL_OUT
		       ? partial_of(task, replica)
		       : grads_of(task, replica);
}

static void clear_positions(const struct task *task, uint64_t position,
			    uint64_t end)
{
	while (position < end) {
		struct shard_range range = layout_range(
			&task->entry->shard, position, end - position);

		for (uint32_t g = 0; g < task->reduce->layout->plan.n_replicas;
		     g++) {
			struct place place = output_of(task, g);

			memset(address(&place, &range), 0,
			       range.n * dtype_size(place.dtype));
		}
		position += range.n;
	}
}

/* Clears the padding after the chunks of all shards. */
static void clear_gaps(const struct task *task)
{
	const struct shard *shard = &task->entry->shard;

	for (uint32_t g = 0; g < task->reduce->layout->plan.n_replicas; g++) {
		struct place place = output_of(task, g);
		uint32_t size = dtype_size(place.dtype);

		for (uint32_t s = 0; s < shard->n_ranks; s++) {
			struct shard_range end = {s, shard->chunk_numel, 0};

			memset(address(&place, &end), 0,
			       layout_gap(shard, s, place.offset, place.stride,
					  size));
		}
	}
}

/* --- tasks --------------------------------------------------------------- */

static void begin_entry(struct task *task, const struct plan_entry *entry)
{
	const struct reduce *reduce = task->reduce;
	uint32_t reduce_dtype = entry->reduce_dtype;

	task->entry = entry;
	task->steps = &reduce->steps[reduce_dtype];
	task->sum_dtype = reduce_dtype < DTYPE_F16
				  ? dtype_accumulator(reduce_dtype)
				  : reduce_dtype;
	task->is_one_step =
		(reduce->layout->plan.n_replicas == 1 || is_input_sum(task)) &&
		!(reduce->flags & HOST_REDUCE_ACCUMULATE) &&
		is_summable(entry) && is_merged(task);
}

/* Reduces up to element `last`. The buffers are on the stack of this function
 * only, because making their pages takes longer than a small sum. */
static void __attribute__((noinline))
reduce_blocks(struct task *task, uint64_t last)
{
	struct buffers buffers;

	task->buffers = &buffers;
	while (task->position < last) {
		uint64_t n = last - task->position;

		task->n = n < task->n_max ? n : task->n_max;
		task->position += reduce_block(task);
	}
	task->buffers = NULL;
}

static void reduce_ranges(struct task *task, uint64_t last)
{
	while (task->position < last)
		task->position += reduce_range(task, last - task->position);
}

/* Processes bytes [begin, end) of a span. */
static void run_part(struct task *task, const struct layout_span *span,
		     uint64_t begin, uint64_t end)
{
	const struct shard *shard = &span->entry->shard;
	uint32_t size = dtype_size(span->entry->input_dtype);
	uint64_t last = (end - span->begin) / size;
	uint64_t last_padded =
		last < shard->padded_numel ? last : shard->padded_numel;

	if (last > shard->numel)
		last = shard->numel;
	begin_entry(task, span->entry);
	task->position = (begin - span->begin) / size;
	if (task->is_one_step)
		reduce_ranges(task, last);
	else
		reduce_blocks(task, last);
	clear_positions(task, task->position, last_padded);
	if (end == span->end)
		clear_gaps(task);
}

void reduce_run(const struct reduce *reduce, uint64_t i)
{
	const struct layout *layout = reduce->layout;
	const struct plan *plan = &layout->plan;
	uint64_t size = reduce->task_size, at = i * size;
	uint64_t end =
		plan->input_size - at < size ? plan->input_size : at + size;
	struct task task = {.reduce = reduce};

	task.n_max = PILE_SIZE / MAX_ELEMENT /
		     ((uint64_t)plan->n_shards * plan->n_replicas);
	if (task.n_max > BLOCK)
		task.n_max = BLOCK;
	task.is_streamed =
		(plan->n_shards * plan->input_size + plan->grads_size) *
			plan->n_replicas >=
		KERNEL_STREAM_MIN;
	for (const struct layout_span *span = layout_find(
		     layout->input_spans, layout->n_input_spans, at);
	     at < end; span++) {
		uint64_t stop = span->end < end ? span->end : end;

		run_part(&task, span, at, stop);
		at = stop;
	}
	kernel_flush();
}
