/*
 * The loops over elements: sums with their divisions and casts, and copies.
 *
 * They are plain C that the compiler vectorises, and are compiled once for each
 * level of CPU features from one source (kernel_body.h), without contraction
 * or reassociation of floating point: each element goes through the same
 * operations in the same order at any width, so that all levels give the same
 * bits. The best level that the CPU has is chosen at run time.
 *
 * Numbers are summed in an accumulator: f32 for f16, bf16 and f32, f64 for f64,
 * 64 bits, wrapping, for integers.
 */
#pragma once
#include "proto/tensor.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where inputs and outputs are more than this together, outputs go past the
 * caches, which could not keep them anyway: the line to be written need not be
 * read first. Below it, plain stores were measured to be faster. (Not on
 * aarch64, whose CPUs see for themselves that whole lines are written.) */
#define KERNEL_STREAM_MIN (UINT64_C(24) << 20)

/*
 * For each of `n` elements
 *
 *     out = (in[0] * factor + in[1] * factor + ...) / divisor
 *
 * from left to right in the accumulator of the inputs' dtype, which factor and
 * divisor are rounded to; then rounded once, to nearest even, to the dtype of
 * the output. NaN becomes the quiet NaN without sign or payload. Integers are
 * not multiplied, divided towards zero by 1 to 2^53, and cut off. One input,
 * and 1 and 1, is a cast. All `n_out` of `out` get the same; they overlap
 * neither each other nor an input. `is_streamed` as for copies (integers are
 * not).
 */
typedef void kernel_fold_fn(void *const *out, uint32_t n_out,
			    const void *const *in, uint32_t n_in, size_t n,
			    double factor, double divisor, bool is_streamed);

/* Copy `size` bytes; `is_streamed`: past the caches. Streamed stores are
 * visible to others after kernel_flush(). */
typedef void kernel_copy_fn(void *to, const void *from, size_t size,
			    bool is_streamed);

struct kernels {
	const char *name; /* "generic", "avx2", "avx512", "neoverse" */
	kernel_copy_fn *copy;
	/* By enum dtype, [of the inputs][of the output]: floats to floats (f16,
	 * bf16, f32, f64), integers to themselves, to 64 bits of their kind,
	 * and from there; NULL: there is none. */
	kernel_fold_fn *fold[DTYPE_MAX + 1][DTYPE_MAX + 1];
};

enum kernel_level {
	KERNEL_GENERIC,
	KERNEL_AVX2,
	KERNEL_AVX512,
	KERNEL_NEOVERSE, /* as in Grace: Armv8.2 with fp16 and bf16 */
	N_KERNEL_LEVELS,
};

/* NULL: not for this CPU. KERNEL_GENERIC always is. */
const struct kernels *kernels_get(enum kernel_level level);
const struct kernels *kernels_best(void);

void kernel_flush(void);
