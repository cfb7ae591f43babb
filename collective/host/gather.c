/*
 * A task is a range of `full`, whose bounds do not depend on the parameters. It
 * can have many small parameters, and a large parameter can have many tasks.
 */
#include "collective/host/gather.h"
#include <string.h>

/* Taking a smaller task would cost more than copying it. */
#define MIN_TASK_SIZE (UINT64_C(16) << 10)

_Static_assert(MIN_TASK_SIZE % PLAN_ALIGN == 0 &&
		       GATHER_TASK_SIZE % MIN_TASK_SIZE == 0,
	       "tasks are whole PLAN_ALIGN");

/* The state that the steps of a task share. */
struct task {
	const struct gather *gather;
	const struct plan_entry *entry;
	const uint8_t *shards; /* of the replica */
	uint8_t *full;         /* the entry's whole parameter in the replica */
	bool is_streamed;
};

static uint64_t count_tasks(const struct gather *gather)
{
	return (gather->layout->plan.full_size + gather->task_size - 1) /
	       gather->task_size;
}

uint64_t gather_task_size(const struct plan *plan, uint32_t n_ranks)
{
	uint64_t size = plan->full_size * plan->n_replicas / 2 / n_ranks /
			MIN_TASK_SIZE * MIN_TASK_SIZE;

	if (size < MIN_TASK_SIZE)
		return MIN_TASK_SIZE;
	return size < GATHER_TASK_SIZE ? size : GATHER_TASK_SIZE;
}

uint64_t gather_count_tasks(const struct gather *gather)
{
	const struct plan *plan = &gather->layout->plan;

	if (gather->full == gather->shards)
		return 0;
	return count_tasks(gather) * plan->n_replicas;
}

uint64_t gather_count_bytes(const struct gather *gather)
{
	const struct plan *plan = &gather->layout->plan;
	uint64_t n = 0;

	if (gather->full == gather->shards)
		return 0;
	for (uint32_t i = 0; i < plan->n_entries; i++) {
		const struct plan_entry *entry = &gather->layout->entries[i];

		n += entry->shard.numel *
		     (dtype_size(entry->dtype) + dtype_size(entry->full_dtype));
	}
	return n * plan->n_replicas;
}

/* Copies the elements from `position` to `end`. */
static void move(const struct task *task, uint64_t position, uint64_t end)
{
	const struct plan_entry *entry = task->entry;
	const struct kernels *kernels = task->gather->kernels;
	size_t to_size = dtype_size(entry->full_dtype);
	size_t from_size = dtype_size(entry->dtype);
	kernel_fold_fn *fold = kernels->fold[entry->dtype][entry->full_dtype];

	while (position < end) {
		struct shard_range range =
			layout_range(&entry->shard, position, end - position);
		const void *in = task->shards + entry->shard_offset +
				 range.shard * entry->shard_stride +
				 range.at * from_size;
		void *to = task->full + position * to_size;

		if (entry->full_dtype != entry->dtype)
			fold(&to, 1, &in, 1, range.n, 1, 1, task->is_streamed);
		else
			kernels->copy(to, in, range.n * to_size,
				      task->is_streamed);
		position += range.n;
	}
}

/* Fills bytes [begin, end) of the parameter: its elements and the padding after
 * them. */
static void run_part(const struct task *task, uint64_t begin, uint64_t end)
{
	size_t size = dtype_size(task->entry->full_dtype);
	uint64_t numel = task->entry->shard.numel;
	uint64_t last = end / size < numel ? end / size : numel;

	if (begin / size < last) {
		move(task, begin / size, last);
		begin = last * size;
	}
	memset(task->full + begin, 0, end - begin);
}

void gather_run(const struct gather *gather, uint64_t i)
{
	const struct layout *layout = gather->layout;
	const struct plan *plan = &layout->plan;
	uint64_t n_tasks = count_tasks(gather), size = gather->task_size;
	uint64_t replica = i / n_tasks, at = i % n_tasks * size;
	uint64_t end =
		plan->full_size - at < size ? plan->full_size : at + size;
	struct task task = {
		.gather = gather,
		.shards = gather->shards + replica * plan->shards_size,
		.is_streamed = (plan->shards_size + plan->full_size) *
				       plan->n_replicas >=
			       KERNEL_STREAM_MIN,
	};

	for (const struct layout_span *span =
		     layout_find(layout->full_spans, layout->n_full_spans, at);
	     at < end; span++) {
		uint64_t stop = span->end < end ? span->end : end;

		task.entry = span->entry;
		task.full =
			gather->full + replica * plan->full_size + span->begin;
		run_part(&task, at - span->begin, stop - span->begin);
		at = stop;
	}
	kernel_flush();
}
