/*
 * Reducing gradients: sums over the ranks of a mesh of S shards and R replicas.
 *
 * What becomes of one element of a parameter is this, always in this order; acc
 * is the accumulator of the reduce dtype (kernel.h), and factors and divisors
 * are rounded to it. premul, pre, post, and which sums are AVG are
 * divide_make()'s for the reduce dtype.
 *
 *   for each replica g:
 *     for each of its ranks, in order:
 *       x = the input, cast to the reduce dtype
 *       x = x * premul, or x / pre                     in acc
 *       sum = the first x; then sum = sum + x          in acc
 *     sum = sum / S                                    in acc; AVG only
 *     sum = sum rounded to the reduce dtype
 *     HOST_REDUCE_PARTIAL_IN: sum = sum + partial of g         in acc, rounded
 * again HOST_REDUCE_PARTIAL_OUT: partial of g = sum; no more is done R > 1:
 *     total = sum of replica 0; then total = total + sum in acc, in order
 *     total = total / R                                in acc; AVG only
 *     total = total rounded to the reduce dtype
 *   value = total / post                               in acc
 *   value = value cast to the stored dtype
 *   for each replica:
 *     its gradient = value, or, for HOST_REDUCE_ACCUMULATE,
 *     its gradient = its gradient + value              in the accumulator of
 *                                          the stored dtype, rounded once
 *
 * All casts and roundings are to nearest even; there is no fused or reordered
 * operation. A NaN that is stored is the quiet NaN without sign or payload.
 * Integers wrap in 64 bits and are divided towards zero; they stay in 64 bits
 * from step to step and are cut off to their dtype where they are stored, in
 * partial and grads. So the bits depend on the inputs only: not on how the
 * work is cut, nor on threads, nor on the CPU.
 *
 * Padding of grads and partial is made zero, that of the inputs is not read.
 */
#pragma once
#include "collective/host/kernel.h"
#include "collective/host/layout.h"

struct error;

enum host_reduce_flags {
	HOST_REDUCE_ACCUMULATE = 1, /* add to the grads that are there */
	HOST_REDUCE_PARTIAL_IN = 2, /* `partial` holds sums to add */
	/* Stop before the all-reduce: write `partial` (with PARTIAL_IN: add to
	 * it), leave the grads. */
	HOST_REDUCE_PARTIAL_OUT = 4,
};

struct reduce_options {
	uint32_t flags; /* enum host_reduce_flags */
	bool has_factor, is_sum_forced;
	double factor; /* the divisions follow for each dtype: divide.h */
};

/* The divisions for one reduce dtype. */
struct reduce_steps {
	double factor; /* of each input: premul, or 1 / pre, which is exact */
	double shards, replicas; /* divisors of AVG; else 1 */
	double post;
};

struct reduce {
	const struct layout *layout;
	const struct kernels *kernels;
	uint32_t flags;     /* enum host_reduce_flags */
	uint64_t task_size; /* bytes of the input that a task takes */
	const uint8_t *inputs[PLAN_MAX_RANKS];
	uint8_t *grads;   /* not used for HOST_REDUCE_PARTIAL_OUT */
	uint8_t *partial; /* not used without both HOST_REDUCE_PARTIAL_* */
	struct reduce_steps steps[DTYPE_MAX + 1]; /* by reduce dtype */
};

/* Sets all but the pointers to memory. -EINVAL: the factor is none, or flags do
 * not fit. */
int reduce_init(struct reduce *reduce, const struct layout *layout,
		const struct kernels *kernels,
		const struct reduce_options *options, struct error *err);

/* After reduce_init(): smaller tasks, so that all ranks share them evenly. The
 * plan alone says how small, so that all ranks cut alike. */
void reduce_share(struct reduce *reduce);

uint64_t reduce_count_tasks(const struct reduce *reduce);
void reduce_run(const struct reduce *reduce, uint64_t task);

/* Bytes of elements that all of it reads and writes. */
uint64_t reduce_count_bytes(const struct reduce *reduce);
