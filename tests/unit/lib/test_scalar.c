/*
 * Tests tests/lib/scalar.h, which other tests use to check small dtypes.
 */
#include "tests/lib/check.h"
#include "tests/lib/property.h"
#include "tests/lib/scalar.h"
#include <math.h>
#include <string.h>

Test(scalar, f32_is_rounded_as_the_compiler_does)
{
	for (uint64_t i = 0; i < 100000; i++) {
		uint64_t bits = mix(i);
		double value;
		uint32_t seen;
		float single;

		memcpy(&value, &bits, sizeof(value));
		/* Most doubles are out of the range of f32. Those of odd `i`
		 * are in it. */
		if (i % 2)
			value = ldexp((double)(int64_t)bits,
				      -63 + (int)(i % 300) - 150);
		single = (float)value;
		memcpy(&seen, &single, sizeof(seen));
		cr_assert(scalar_is_same(FSDP_F32,
					 scalar_encode(FSDP_F32, value), seen));
		if (!isnan(single))
			cr_assert(eq(dbl, scalar_decode(FSDP_F32, seen),
				     (double)single));
	}
}

Test(scalar, all_numbers_of_16_bits_survive_decoding_and_encoding)
{
	static const enum fsdp_dtype dtypes[] = {FSDP_F16, FSDP_BF16};

	for (size_t d = 0; d < 2; d++) {
		for (uint64_t bits = 0; bits < 65536; bits++) {
			double value = scalar_decode(dtypes[d], bits);

			cr_assert(scalar_is_same(
				dtypes[d], bits,
				scalar_encode(dtypes[d], value)));
		}
	}
}

Test(scalar, known_numbers_are_encoded_and_decoded)
{
	static const struct {
		enum fsdp_dtype dtype;
		double value;
		uint64_t bits;
	} rows[] = {
		{FSDP_F16, 1, 0x3c00},
		{FSDP_F16, -65504, 0xfbff},
		{FSDP_F16, 65519, 0x7bff},
		{FSDP_F16, 65520, 0x7c00},
		{FSDP_F16, 0x1p-24, 1},
		{FSDP_F16, 0x1p-25, 0},
		{FSDP_F16, 0x1.8p-24, 2},
		{FSDP_BF16, 1, 0x3f80},
		{FSDP_BF16, 1 + 0x1p-8, 0x3f80},
		{FSDP_BF16, 1 + 0x1.8p-7, 0x3f82},
		{FSDP_F64, 1, UINT64_C(0x3ff) << 52},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
		cr_assert(eq(u64, scalar_encode(rows[i].dtype, rows[i].value),
			     rows[i].bits));
}
