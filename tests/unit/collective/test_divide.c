/* Tests divide factors. They must equal the reference's table, and must always
 * divide by the right number. */
#include "collective/divide.h"
#include "proto/error.h"
#include "proto/tensor.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct divide make(uint32_t dtype, uint32_t n_shards,
			  uint32_t n_replicas, double factor)
{
	const struct divide_input input = {
		.n_shards = n_shards,
		.n_replicas = n_replicas,
		.dtype = dtype,
		.has_factor = factor != 0,
		.factor = factor,
	};
	struct divide divide;

	cr_assert(zero(int, divide_make(&input, &divide, NULL)));
	return divide;
}

/* case 52 */
static const struct {
	uint32_t n;
	double pre, post;
} halves[] = {
	{1, 1, 1},      {2, 2, 1},     {3, 2, 1.5},   {4, 2, 2},
	{5, 2, 2.5},    {6, 4, 1.5},   {7, 2, 3.5},   {8, 4, 2},
	{10, 4, 2.5},   {12, 4, 3},    {16, 4, 4},    {20, 8, 2.5},
	{24, 8, 3},     {32, 8, 4},    {64, 8, 8},    {96, 16, 6},
	{128, 16, 8},   {256, 16, 16}, {512, 32, 16}, {1000, 16, 62.5},
	{1024, 32, 32},
};

Test(divide, f16_is_divided_in_two_parts_before_and_after)
{
	for (size_t i = 0; i < sizeof(halves) / sizeof(*halves); i++) {
		struct divide divide = make(DTYPE_F16, halves[i].n, 1, 0);

		cr_expect(eq(dbl, divide.pre, halves[i].pre), "of %u",
			  halves[i].n);
		cr_expect(eq(dbl, divide.post, halves[i].post), "of %u",
			  halves[i].n);
		cr_expect(divide.scatter_op == REDUCE_OP_SUM);
		cr_expect(divide.reduce_op == REDUCE_OP_SUM);
	}
}

#define SUM    REDUCE_OP_SUM
#define AVG    REDUCE_OP_AVG
#define PREMUL REDUCE_OP_PREMUL_SUM

static const struct {
	uint32_t dtype, n_shards, n_replicas;
	double factor; /* 0 for no factor */
	enum reduce_op scatter_op, reduce_op;
	double pre, post, premul;
} rows[] = {
	/* case 54 */
	{DTYPE_F32, 8, 1, 0, AVG, AVG, 1, 1, 1},
	{DTYPE_F32, 8, 1, 8, AVG, SUM, 1, 1, 1},
	{DTYPE_F32, 8, 1, 16, PREMUL, SUM, 1, 1, 0.0625},
	{DTYPE_F32, 1, 1, 0, SUM, SUM, 1, 1, 1},
	{DTYPE_BF16, 4, 2, 0, AVG, AVG, 1, 1, 1},
	{DTYPE_F32, 4, 2, 4, AVG, SUM, 1, 1, 1},
	{DTYPE_F32, 4, 2, 8, PREMUL, SUM, 1, 1, 0.125},
	{DTYPE_F32, 1, 4, 0, AVG, AVG, 1, 1, 1},
	{DTYPE_F64, 8, 1, 0, SUM, SUM, 4, 2, 1},
	/* case 58: one division by 2; none by 1 */
	{DTYPE_F32, 1, 1, 2, SUM, SUM, 1, 2, 1},
	{DTYPE_F32, 1, 1, 1, SUM, SUM, 1, 1, 1},
	{DTYPE_F16, 1, 1, 2, SUM, SUM, 1, 2, 1},
	/* When one shard divides, it divides, and does not multiply by the
	 * reciprocal. */
	{DTYPE_F32, 1, 1, 3, SUM, SUM, 1, 3, 1},
	{DTYPE_F64, 1, 1, 3, SUM, SUM, 1, 3, 1},
	{DTYPE_BF16, 1, 4, 3, SUM, SUM, 1, 3, 1},
	{DTYPE_F16, 1, 4, 6, SUM, SUM, 4, 1.5, 1},
	/* These rows differ from the reference: integers are divided after the
	 * sum, and a factor of 1 means no division. */
	{DTYPE_I32, 4, 2, 0, SUM, SUM, 1, 8, 1},
	{DTYPE_U8, 4, 1, 3, SUM, SUM, 1, 3, 1},
	{DTYPE_BF16, 8, 1, 1, SUM, SUM, 1, 1, 1},
	{DTYPE_F16, 8, 1, 2.5, SUM, SUM, 1, 2.5, 1},
};

Test(divide, ops_follow_the_table)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct divide divide = make(rows[i].dtype, rows[i].n_shards,
					    rows[i].n_replicas, rows[i].factor);

		cr_expect(divide.scatter_op == rows[i].scatter_op, "row %zu",
			  i);
		cr_expect(divide.reduce_op == rows[i].reduce_op, "row %zu", i);
		cr_expect(eq(dbl, divide.pre, rows[i].pre), "row %zu", i);
		cr_expect(eq(dbl, divide.post, rows[i].post), "row %zu", i);
		cr_expect(eq(dbl, divide.premul, rows[i].premul), "row %zu", i);
	}
}

Test(divide, a_forced_sum_is_divided_after_the_reduction)
{
	struct divide_input input = {
		.n_shards = 4,
		.n_replicas = 2,
		.dtype = DTYPE_BF16,
		.is_sum_forced = true,
	};
	struct divide divide;

	cr_assert(zero(int, divide_make(&input, &divide, NULL)));
	cr_assert(divide.scatter_op == SUM && divide.reduce_op == SUM);
	cr_assert(eq(dbl, divide.pre, 1));
	cr_assert(eq(dbl, divide.post, 8));
	input.has_factor = true;
	input.factor = 5;
	cr_assert(zero(int, divide_make(&input, &divide, NULL)));
	cr_assert(divide.scatter_op == SUM);
	cr_assert(eq(dbl, divide.post, 5));
}

static void check_total(const struct divide_input *input)
{
	double wanted = input->has_factor
				? input->factor
				: (double)input->n_shards * input->n_replicas;
	struct divide divide;
	double total;

	cr_assert(zero(int, divide_make(input, &divide, NULL)));
	total = divide.pre * divide.post / divide.premul;
	if (divide.scatter_op == AVG)
		total *= input->n_shards;
	if (divide.reduce_op == AVG)
		total *= input->n_replicas;
	cr_assert(fabs(total / wanted - 1) < 1e-15,
		  "%s S %u R %u factor %g: divided by %g",
		  dtype_name(input->dtype), input->n_shards, input->n_replicas,
		  input->factor, total);
	if (input->is_sum_forced)
		cr_assert(divide.scatter_op == SUM && divide.reduce_op == SUM);
}

/* invariant 8.2.7 */
Test(divide, every_combination_divides_by_its_factor_exactly_once)
{
	const uint32_t dtypes[] = {DTYPE_I64, DTYPE_F16, DTYPE_BF16, DTYPE_F32,
				   DTYPE_F64};
	const double factors[] = {0, 1, 2, 3, 4, 8, 17, 1000};

	for (uint32_t i = 0; i < 5 * 8 * 8 * 8 * 2; i++) {
		const struct divide_input input = {
			.dtype = dtypes[i % 5],
			.factor = factors[i / 5 % 8],
			.has_factor = i / 5 % 8 != 0,
			.n_shards = 1 + i / 40 % 8,
			.n_replicas = 1 + i / 320 % 8,
			.is_sum_forced = i / 2560,
		};

		check_total(&input);
	}
}

static void check_refused(uint32_t dtype, double factor, const char *word)
{
	const struct divide_input input = {
		.n_shards = 2,
		.n_replicas = 1,
		.dtype = dtype,
		.has_factor = true,
		.factor = factor,
	};
	struct divide divide = {.pre = 77};
	struct error err = ERROR_NULL;

	cr_expect(eq(int, divide_make(&input, &divide, &err), -EINVAL),
		  "%s by %g", dtype_name(dtype), factor);
	cr_expect(strstr(err.msg, word) != NULL, "\"%s\" has no \"%s\"",
		  err.msg, word);
	cr_expect(eq(dbl, divide.pre, 77), "written on failure");
}

Test(divide, invalid_factors_are_refused)
{
	const double factors[] = {0, -0.0, -1, NAN, INFINITY, -INFINITY};

	for (size_t i = 0; i < sizeof(factors) / sizeof(*factors); i++) {
		check_refused(DTYPE_F32, factors[i],
			      "finite number greater than 0");
		check_refused(DTYPE_I32, factors[i],
			      "finite number greater than 0");
	}
	check_refused(DTYPE_BF16, 1e300, "too small or too large");
	check_refused(DTYPE_F16, 1e-40, "too small or too large");
	check_refused(DTYPE_F64, 1e-310, "too small or too large");
	check_refused(DTYPE_I32, 2.5, "whole number up");
	check_refused(DTYPE_I32, 0.5, "whole number up");
	check_refused(DTYPE_U64, 1e300, "whole number up");
}

Test(divide, dtypes_that_cannot_be_summed_are_refused)
{
	const uint32_t dtypes[] = {DTYPE_BOOL,    DTYPE_F8_E4M3, DTYPE_F8_E5M2,
				   DTYPE_C64,     DTYPE_C128,    0,
				   DTYPE_MAX + 1, UINT32_MAX};

	for (size_t i = 0; i < sizeof(dtypes) / sizeof(*dtypes); i++)
		check_refused(dtypes[i], 2, "cannot reduce");
}

static uint32_t dtype_of(const char *name)
{
	uint32_t dtype = dtype_by_name(name);

	cr_assert(ne(u32, dtype, 0), "%s", name);
	return dtype;
}

/* The rows come from torch: python/tests/test_fully_shard.py. */
Test(divide, factors_equal_those_of_fully_shard)
{
	static const char *const ops[] = {
		[SUM] = "sum", [AVG] = "avg", [PREMUL] = "premul_sum"};
	FILE *file = fopen(
		FSDP_SOURCE_DIR "/tests/unit/collective/divide.golden", "r");
	char dtype[8], scatter[16], reduce[16];
	struct divide_input input = {0};
	double pre, post, premul;
	int is_sum_forced, n = 0;

	cr_assert(ne(ptr, file, NULL));
	while (fscanf(file, "%7s %u %u %lf %d %lf %lf %lf %15s %15s", dtype,
		      &input.n_shards, &input.n_replicas, &input.factor,
		      &is_sum_forced, &pre, &post, &premul, scatter,
		      reduce) == 10) {
		struct divide divide;

		n++;
		input.dtype = dtype_of(dtype);
		input.has_factor = input.factor != 0;
		input.is_sum_forced = is_sum_forced;
		cr_assert(zero(int, divide_make(&input, &divide, NULL)));
		cr_expect(eq(dbl, divide.pre, pre), "row %d", n);
		cr_expect(eq(dbl, divide.post, post), "row %d", n);
		cr_expect(eq(dbl, divide.premul, premul), "row %d", n);
		cr_expect(eq(str, (char *)ops[divide.scatter_op], scatter),
			  "row %d", n);
		cr_expect(eq(str, (char *)ops[divide.reduce_op], reduce),
			  "row %d", n);
	}
	cr_assert(feof(file) && n > 500, "after row %d", n);
	fclose(file);
}
