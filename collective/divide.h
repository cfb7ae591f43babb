/*
 * Divide factors: what turns a sum of gradients into their mean without
 * leaving the range of the dtype on the way.
 *
 * The table is FSDP2's (_get_gradient_divide_factors): AVG or PREMUL_SUM where
 * the dtype has range to spare, else SUM between a pre- and a post-division by
 * about the square root each.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

enum reduce_op {
	REDUCE_OP_SUM = 1,
	REDUCE_OP_AVG = 2,        /* by the number of ranks of the mesh */
	REDUCE_OP_PREMUL_SUM = 3, /* each input times `premul` */
};

struct divide_input {
	uint32_t n_shards;   /* S: ranks of the reduce-scatter; 1: none */
	uint32_t n_replicas; /* R: ranks of the all-reduce; 1: none */
	uint32_t dtype;      /* enum dtype in which is reduced */
	bool has_factor;
	double factor;      /* has_factor: instead of S * R */
	bool is_sum_forced; /* only SUM may be used */
};

struct divide {
	double pre, post; /* 1: no division */
	double premul;    /* REDUCE_OP_PREMUL_SUM: 1 / factor; else 1 */
	enum reduce_op scatter_op;
	enum reduce_op reduce_op; /* of the all-reduce */
};

/*
 * -EINVAL with a sentence: a factor that is 0, negative, NaN or infinite, or
 * that with its reciprocal is out of the range in which the dtype is divided
 * (f32, for f64 its own); a dtype that cannot be reduced (bool, 8-bit floats,
 * complex); an integer dtype with a factor that is no whole number (integers
 * are divided once, after the sum, towards zero).
 *
 * With S == 1 an explicit factor divides, as in the reference, while other
 * meshes multiply by its reciprocal (PREMUL_SUM). One division where the
 * reference has two: with S == 1 its copy divides, and for some dtypes its post
 * step does again; here the total divisor is always the factor. And a factor of
 * 1 is no division: SUM, where the reference multiplies by 1.
 */
int divide_make(const struct divide_input *input, struct divide *ret,
		struct error *err);

const char *reduce_op_name(enum reduce_op op); /* "sum", "avg", ... */
