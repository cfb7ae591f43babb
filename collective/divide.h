/*
 * Divide factors turn a sum of gradients into their mean without leaving the
 * range of the dtype on the way.
 *
 * The table of factors is that of FSDP2 (_get_gradient_divide_factors): AVG or
 * PREMUL_SUM if the dtype has range to spare; otherwise SUM, with a division
 * before and one after the sum, each by about the square root of the total
 * divisor.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

enum reduce_op {
	REDUCE_OP_SUM = 1,
	REDUCE_OP_AVG = 2, /* divides by the number of ranks of the mesh */
	REDUCE_OP_PREMUL_SUM = 3, /* multiplies each input by `premul` */
};

struct divide_input {
	/* S: ranks of the reduce-scatter; 1 if there is none */
	uint32_t n_shards;
	/* R: ranks of the all-reduce; 1 if there is none */
	uint32_t n_replicas;
	uint32_t dtype; /* enum dtype of the reduction */
	bool has_factor;
	double factor;      /* if has_factor: the divisor, in place of S * R */
	bool is_sum_forced; /* only SUM is allowed */
};

struct divide {
	/* divisors before and after the sum; 1 does nothing */
	double pre, post;
	double premul; /* 1 / factor for REDUCE_OP_PREMUL_SUM, otherwise 1 */
	enum reduce_op scatter_op;
	enum reduce_op reduce_op; /* op of the all-reduce */
};

/*
 * Computes the divisions and reduce ops of a mesh.
 *
 * Returns -EINVAL if the factor is 0, negative, NaN or infinite; if the factor
 * or its reciprocal is out of the range in which the dtype is divided (that of
 * f32, or of f64 for f64); if the dtype cannot be reduced (bool, 8-bit floats,
 * complex); or if the dtype is an integer and the factor is not a whole number.
 * Integers are divided once, after the sum, and rounded towards zero.
 *
 * If S is 1, an explicit factor is a division after the sum, as in the
 * reference; other meshes multiply by its reciprocal (PREMUL_SUM). There are
 * two differences from the reference. If S is 1, its copy divides and, for some
 * dtypes, its post step divides again; here the total divisor is always the
 * factor. For a factor of 1 it multiplies by 1; here the op is SUM.
 */
int divide_make(const struct divide_input *input, struct divide *ret,
		struct error *err);
