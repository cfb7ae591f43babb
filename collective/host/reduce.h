/*
 * Gradients are reduced by sums over the ranks of a mesh of S shards and R
 * replicas.
 *
 * The following is computed for each element of a parameter, always in this
 * order. acc is the accumulator of the reduce dtype (kernel.h); factors and
 * divisors are rounded to it. divide_make() returns premul, pre, post and the
 * sums that are AVG for the reduce dtype.
 *
 *   for each replica g:
 *     for each of its ranks, in order:
 *       x = the input, cast to the reduce dtype
 *       x = x * premul, or x / pre                     in acc
 *       sum = the first x; then sum = sum + x          in acc
 *     sum = sum / S                                    in acc; AVG only
 *     sum = sum rounded to the reduce dtype
 *     HOST_REDUCE_PARTIAL_IN:
 *       sum = sum + partial of g                       in acc, rounded again
 *     HOST_REDUCE_PARTIAL_OUT:
 *       partial of g = sum, and the reduction ends here
 *   R > 1:
 *     total = sum of replica 0; then total = total + sum in acc, in order
 *     total = total / R                                in acc; AVG only
 *     total = total rounded to the reduce dtype
 *   value = total / post                               in acc
 *   value = value cast to the stored dtype
 *   for each replica:
 *     its gradient = value, or with HOST_REDUCE_ACCUMULATE
 *     its gradient = its gradient + value              in the accumulator of
 *                                          the stored dtype, rounded once
 *
 * All casts and roundings are to nearest even; no operation is fused or
 * reordered. A NaN that is stored is the quiet NaN without sign or payload.
 * Integers wrap in 64 bits and are divided towards zero; they stay in 64 bits
 * from step to step, and are truncated to their dtype when they are stored in
 * partial and grads. So the bits depend only on the inputs, and not on the
 * tasks, the threads or the CPU.
 *
 * The padding of grads and partial is set to zero; that of the inputs is not
 * read.
 */
#pragma once
#include "collective/host/kernel.h"
#include "collective/host/layout.h"

struct error;

enum host_reduce_flags {
	HOST_REDUCE_ACCUMULATE = 1, /* add to the grads that are there */
	HOST_REDUCE_PARTIAL_IN = 2, /* `partial` holds sums to add */
	/* stop before the all-reduce: write `partial` (with PARTIAL_IN: add to
	 * it), do not touch the grads */
	HOST_REDUCE_PARTIAL_OUT = 4,
};

struct reduce_options {
	uint32_t flags; /* enum host_reduce_flags */
	bool has_factor, is_sum_forced;
	/* the divisions for each dtype follow from it (divide.h) */
	double factor;
};

/* The factor and the divisors for one reduce dtype. */
struct reduce_steps {
	double factor; /* of each input: premul or 1 / pre, which is exact */
	double shards, replicas; /* divisors of AVG, otherwise 1 */
	double post;
};

struct reduce {
	const struct layout *layout;
	const struct kernels *kernels;
	uint32_t flags;     /* enum host_reduce_flags */
	uint64_t task_size; /* bytes of the input that a task takes */
	const uint8_t *inputs[PLAN_MAX_RANKS];
	uint8_t *grads;   /* not used with HOST_REDUCE_PARTIAL_OUT */
	uint8_t *partial; /* used only with HOST_REDUCE_PARTIAL_IN or _OUT */
	struct reduce_steps steps[DTYPE_MAX + 1]; /* by reduce dtype */
};

/* Sets all fields but the pointers to memory. Returns -EINVAL if the factor is
 * invalid, a flag is unknown, or a plan with one replica would have partial
 * sums. */
int reduce_init(struct reduce *reduce, const struct layout *layout,
		const struct kernels *kernels,
		const struct reduce_options *options, struct error *err);

/* Chooses smaller tasks, so that all ranks can share them evenly. It is called
 * after reduce_init(). The size depends only on the plan, so all ranks choose
 * the same. */
void reduce_share(struct reduce *reduce);

uint64_t reduce_count_tasks(const struct reduce *reduce);
void reduce_run(const struct reduce *reduce, uint64_t task);

/* Returns how many bytes of elements the reduction reads and writes. */
uint64_t reduce_count_bytes(const struct reduce *reduce);
