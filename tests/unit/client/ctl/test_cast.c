/* Compares casts of small floats to f32 with the values that the formats
 * define. */
#include "client/ctl/cast.h"
#include "proto/tensor.h"
#include "tests/lib/check.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Compute the definition, (-1)^s * 2^(e - bias) * 1.m, without bit
 * operations. */
static double define(unsigned int bits, int n_exponent, int n_mantissa,
		     int bias, bool has_infinity)
{
	unsigned int mantissa = bits & ((1u << n_mantissa) - 1);
	unsigned int all = (1u << n_exponent) - 1;
	unsigned int exponent = (bits >> n_mantissa) & all;
	double sign = bits >> (n_exponent + n_mantissa) ? -1 : 1;
	double fraction = ldexp(mantissa, -n_mantissa);

	if (has_infinity && exponent == all)
		return mantissa ? NAN : sign * INFINITY;
	if (!has_infinity && exponent == all &&
	    mantissa == (1u << n_mantissa) - 1)
		return NAN;
	if (exponent == 0)
		return sign * ldexp(fraction, 1 - bias);
	return sign * ldexp(1 + fraction, (int)exponent - bias);
}

/* Returns how many of the format's values differ from the definition. */
static int count_wrong(uint32_t dtype, unsigned int n, int n_exponent,
		       int n_mantissa, int bias, bool has_infinity)
{
	int n_wrong = 0;

	for (unsigned int i = 0; i < n; i++) {
		uint16_t word = (uint16_t)i;
		double want =
			define(i, n_exponent, n_mantissa, bias, has_infinity);
		float got;

		cast_to_f32(dtype, &word, &got, 1);
		if (isnan(want) ? !isnan(got)
				: (double)got != want ||
					  !!signbit(got) != !!signbit(want))
			n_wrong++;
	}
	return n_wrong;
}

Test(cast, every_value_of_every_format_is_exact)
{
	cr_assert(eq(int, count_wrong(DTYPE_F16, 65536, 5, 10, 15, true), 0));
	cr_assert(eq(int, count_wrong(DTYPE_BF16, 65536, 8, 7, 127, true), 0));
	cr_assert(eq(int, count_wrong(DTYPE_F8_E5M2, 256, 5, 2, 15, true), 0));
	cr_assert(eq(int, count_wrong(DTYPE_F8_E4M3, 256, 4, 3, 7, false), 0));
}

Test(cast, known_values_are_converted_exactly)
{
	static const struct {
		uint32_t dtype;
		uint16_t bits;
		float value;
	} rows[] = {
		{DTYPE_F16, 0x3c00, 1},        {DTYPE_F16, 0x7bff, 65504},
		{DTYPE_F16, 0x0001, 0x1p-24f}, {DTYPE_BF16, 0x4049, 3.140625},
		{DTYPE_F8_E4M3, 0x7e, 448},    {DTYPE_F8_E4M3, 0x78, 256},
		{DTYPE_F8_E5M2, 0x7b, 57344},  {DTYPE_F8_E4M3, 0x81, -0x1p-9f}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		float got;

		cast_to_f32(rows[i].dtype, &rows[i].bits, &got, 1);
		cr_assert(eq(flt, got, rows[i].value), "row %zu", i);
	}
}

Test(cast, a_source_need_not_be_aligned)
{
	uint8_t bytes[9] = {0, 0x80, 0x3f, 0x00, 0x40, 0x80, 0xbf, 0, 0};
	float got[3];

	cast_to_f32(DTYPE_BF16, bytes + 1, got, 3);
	cr_assert(eq(flt, got[0], 1));
	cr_assert(eq(flt, got[1], 2));
	cr_assert(eq(flt, got[2], -1));
}

Test(cast, formats_that_f32_cannot_represent_are_not_supported)
{
	cr_assert(not(cast_is_known(DTYPE_F64)));
	cr_assert(not(cast_is_known(DTYPE_I64)));
	cr_assert(not(cast_is_known(0)));
	cr_assert(cast_is_known(DTYPE_F8_E5M2));
}
