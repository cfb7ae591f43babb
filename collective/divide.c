/*
 * This file is the table of divide factors, with one function for each line.
 *
 * bf16 and f32 have range to spare, so they divide while they sum (AVG,
 * PREMUL_SUM). f16 would overflow, so a part of the division comes before the
 * sum; f64 does as f16, since the reference does so. Integers would lose what a
 * division before the sum cuts off, so they divide after it. Without a
 * reduce-scatter, no op multiplies by the reciprocal: the reference divides,
 * and so do we.
 */
#include "collective/divide.h"
#include "proto/error.h"
#include "proto/tensor.h"
#include <assert.h>
#include <errno.h>
#include <float.h>
#include <math.h>

/* Doubles represent whole numbers up to here exactly. */
#define MAX_INTEGER_FACTOR 9007199254740992.0 /* 2^53 */

static bool is_integer(uint32_t dtype)
{
	return dtype >= DTYPE_U8 && dtype <= DTYPE_I64;
}

/* The factor and its reciprocal must be normal numbers in the precision of the
 * accumulator. */
static bool is_in_range(double factor, uint32_t dtype)
{
	double least = dtype == DTYPE_F64 ? DBL_MIN : (double)FLT_MIN;

	return factor >= least && factor <= 1 / least;
}

static int check_factor(double factor, uint32_t dtype, struct error *err)
{
	/* This form of the condition refuses NaN. */
	if (!(factor > 0) || isinf(factor))
		return error_set(err, -EINVAL,
				 "the divide factor is %g, but must be a "
				 "finite number greater than 0",
				 factor);
	if (is_integer(dtype)) {
		if (factor != floor(factor) || factor > MAX_INTEGER_FACTOR)
			return error_set(err, -EINVAL,
					 "the divide factor is %g, but for %s "
					 "must be a whole number up to 2^53",
					 factor, dtype_name(dtype));
		return 0;
	}
	if (!is_in_range(factor, dtype))
		return error_set(err, -EINVAL,
				 "the divide factor %g is too small or too "
				 "large to divide %s by it",
				 factor, dtype_name(dtype));
	return 0;
}

/*
 * The pre-factor is a power of two near the square root. It stops early for odd
 * factors, and is 1 for factors that are not whole, as in the reference.
 */
static double pre_factor(double factor)
{
	double pre = 1;

	while (fmod(factor, pre) == 0 && factor / pre > pre)
		pre *= 2;
	return pre;
}

/* bf16 and f32 can use AVG and PREMUL_SUM. */
static void divide_in_sum(const struct divide_input *input, double factor,
			  struct divide *divide)
{
	if (factor == 1)
		return;
	if (!input->has_factor) {
		divide->scatter_op = REDUCE_OP_AVG;
		divide->reduce_op = REDUCE_OP_AVG;
	} else if (factor == input->n_shards) {
		divide->scatter_op = REDUCE_OP_AVG;
	} else {
		divide->scatter_op = REDUCE_OP_PREMUL_SUM;
		divide->premul = 1 / factor;
	}
}

int divide_make(const struct divide_input *input, struct divide *ret,
		struct error *err)
{
	struct divide divide = {
		.pre = 1,
		.post = 1,
		.premul = 1,
		.scatter_op = REDUCE_OP_SUM,
		.reduce_op = REDUCE_OP_SUM,
	};
	double world = (double)input->n_shards * input->n_replicas;
	double factor = world;
	int r;

	assert(input->n_shards > 0 && input->n_replicas > 0);
	if (!dtype_accumulator(input->dtype))
		return error_set(err, -EINVAL,
				 "cannot reduce %s; only integers, f16, bf16, "
				 "f32 and f64 can be reduced",
				 dtype_name(input->dtype));
	if (input->has_factor) {
		factor = input->factor;
		r = check_factor(factor, input->dtype, err);
		if (r < 0)
			return r;
	}
	if (is_integer(input->dtype) || world == 1) {
		divide.post = factor;
	} else if (input->dtype == DTYPE_F16 || input->dtype == DTYPE_F64) {
		divide.pre = pre_factor(factor);
		divide.post = factor / divide.pre;
	} else if (input->is_sum_forced ||
		   (input->has_factor && input->n_shards == 1)) {
		divide.post = factor;
	} else {
		divide_in_sum(input, factor, &divide);
	}
	*ret = divide;
	return 0;
}
