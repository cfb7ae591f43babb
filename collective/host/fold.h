/*
 * A fold combines the tensors of all ranks into one, element by element, in the
 * order of the ranks. All-reduce, reduce and reduce-scatter use it for the
 * callers' tensors. (Gradients are reduced by reduce.h.)
 *
 *   sums, means   as kernel_fold_fn without a factor: in f32 for f16, bf16 and
 *                 f32, in f64 for f64, and in 64 bits for integers; the mean is
 *                 the sum divided by the number of ranks. A complex number is
 *                 folded as two floats.
 *   product       f16 and bf16 in f32, rounded once at the end; integers wrap
 *   min, max      a NaN is smaller and larger than any number
 *   and, or, xor  of the bits of integers
 *
 * A bool is 0 or 1: its sum and max are "or", its product and min are "and"; it
 * has no mean. 8-bit floats cannot be folded, and complex numbers have only
 * sums and means.
 */
#pragma once
#include "collective/host/kernel.h"
#include <stdint.h>

struct error;

enum fold_how {
	FOLD_SUM = 0,
	FOLD_MEAN = 1,
	FOLD_PRODUCT = 2,
	FOLD_MIN = 3,
	FOLD_MAX = 4,
	FOLD_BAND = 5,
	FOLD_BOR = 6,
	FOLD_BXOR = 7,
};

/* Sets acc[i] to the combination of acc[i] and in[i]. */
typedef void fold_pair_fn(void *acc, const void *in, size_t n);

struct fold {
	const struct kernels *kernels;
	/* the dtype that is folded: of a float for complex tensors */
	uint32_t dtype;
	uint32_t width; /* bytes of an element of `dtype` */
	double divisor;
	fold_pair_fn *pair; /* NULL if the sum of `kernels` is used */
};

/* Returns -EINVAL if the dtype has no such reduction. */
int fold_init(struct fold *ret, uint32_t dtype, uint32_t how, uint32_t n_ranks,
	      struct error *err);

/* Folds `size` bytes of each of `in` into `out`, which must not overlap them.
 * All are aligned for their dtype. */
void fold_run(const struct fold *fold, void *out, const void *const *in,
	      uint32_t n_in, size_t size);

/* Returns the name of the reduction, such as "sum", or "?". */
const char *fold_name(uint32_t how);
