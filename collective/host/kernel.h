/*
 * Kernels are the loops over elements: sums with their divisions and casts, and
 * copies.
 *
 * They are plain C that the compiler vectorises. One source (kernel_body.h) is
 * compiled once for each level of CPU features, without contraction or
 * reassociation of floating point. Each element goes through the same
 * operations in the same order at any vector width, so all levels give the same
 * bits. The best level of the CPU is chosen at run time.
 *
 * Numbers are summed in an accumulator: f32 for f16, bf16 and f32; f64 for f64;
 * 64 bits, which wrap, for integers.
 */
#pragma once
#include "proto/tensor.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* If inputs and outputs together have at least this many bytes, outputs are
 * written past the caches, which could not keep them anyway. The CPU then need
 * not read a line before it writes it. For smaller sizes, plain stores were
 * measured to be faster. (This has no effect on aarch64, whose CPUs detect that
 * whole lines are written.) */
#define KERNEL_STREAM_MIN (UINT64_C(24) << 20)

/*
 * Computes for each of `n` elements
 *
 *     out = (in[0] * factor + in[1] * factor + ...) / divisor
 *
 * from left to right, in the accumulator of the inputs' dtype. The factor and
 * the divisor are rounded to the accumulator. The result is rounded once, to
 * nearest even, to the dtype of the output. NaN becomes the quiet NaN without
 * sign or payload. Integers are not multiplied by the factor; their sum is
 * divided towards zero by a divisor from 1 to 2^53, and truncated. With one
 * input, a factor of 1 and a divisor of 1, this is a cast.
 *
 * All `n_out` arrays of `out` get the same values. They overlap neither each
 * other nor an input. `is_streamed` is as for copies; it has no effect on
 * integers.
 */
typedef void kernel_fold_fn(void *const *out, uint32_t n_out,
			    const void *const *in, uint32_t n_in, size_t n,
			    double factor, double divisor, bool is_streamed);

/* Copies `size` bytes. If `is_streamed`, they are written past the caches;
 * other threads see them after kernel_flush(). */
typedef void kernel_copy_fn(void *to, const void *from, size_t size,
			    bool is_streamed);

struct kernels {
	const char *name; /* "generic", "avx2", "avx512", "neoverse" */
	kernel_copy_fn *copy;
	/* Indexed by enum dtype: [of the inputs][of the output]. There are
	 * kernels from floats to floats (f16, bf16, f32, f64), from integers to
	 * the same dtype, to 64 bits with the same sign, and from 64 bits back.
	 * Other entries are NULL. */
	kernel_fold_fn *fold[DTYPE_MAX + 1][DTYPE_MAX + 1];
};

enum kernel_level {
	KERNEL_GENERIC,
	KERNEL_AVX2,
	KERNEL_AVX512,
	KERNEL_NEOVERSE, /* Armv8.2 with fp16 and bf16, as in Grace */
	N_KERNEL_LEVELS,
};

/* Returns NULL if the CPU does not have the level. All CPUs have
 * KERNEL_GENERIC. */
const struct kernels *kernels_get(enum kernel_level level);
const struct kernels *kernels_best(void);

void kernel_flush(void);
