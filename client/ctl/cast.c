/*
 * Converts small floats to f32 by moving bits.
 *
 *   format   sign exponent mantissa bias  all ones in the exponent
 *   f16        1      5       10     15   infinity, NaN
 *   bf16       1      8        7    127   infinity, NaN
 *   f8_e5m2    1      5        2     15   infinity, NaN
 *   f8_e4m3    1      4        3      7   ordinary, except S.1111.111: NaN
 *
 * A bf16 is the upper half of an f32, and an f8_e5m2 is the upper half of an
 * f16. If the exponent is 0, the mantissa counts units of the smallest
 * subnormal number. All these values are normal numbers in f32.
 */
#include "client/ctl/cast.h"

#include "proto/tensor.h"

#include <assert.h>
#include <string.h>

static float from_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static float from_f16(uint32_t half)
{
	uint32_t sign = (half & 0x8000) << 16;
	uint32_t exponent = (half >> 10) & 0x1f;
	uint32_t mantissa = half & 0x3ff;

	if (exponent == 0x1f)
		return from_bits(sign | 0x7f800000 | mantissa << 13);
	if (exponent)
		return from_bits(sign | (exponent + 112) << 23 |
				 mantissa << 13);
	return (float)mantissa * (sign ? -0x1p-24f : 0x1p-24f);
}

static float from_f8_e4m3(uint32_t byte)
{
	uint32_t sign = (byte & 0x80) << 24;
	uint32_t exponent = (byte >> 3) & 0xf;
	uint32_t mantissa = byte & 7;

	if ((byte & 0x7f) == 0x7f)
		return from_bits(sign | 0x7fc00000);
	if (exponent)
		return from_bits(sign | (exponent + 120) << 23 |
				 mantissa << 20);
	return (float)mantissa * (sign ? -0x1p-9f : 0x1p-9f);
}

bool cast_is_known(uint32_t dtype)
{
	return dtype == DTYPE_F16 || dtype == DTYPE_BF16 ||
	       dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2 ||
	       dtype == DTYPE_F32;
}

static void cast_bytes(uint32_t dtype, const uint8_t *src, float *dst, size_t n)
{
	for (size_t i = 0; i < n; i++)
		dst[i] = dtype == DTYPE_F8_E4M3
				 ? from_f8_e4m3(src[i])
				 : from_f16((uint32_t)src[i] << 8);
}

static void cast_words(uint32_t dtype, const uint8_t *src, float *dst, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t word;

		memcpy(&word, src + i * sizeof(word), sizeof(word));
		dst[i] = dtype == DTYPE_BF16 ? from_bits((uint32_t)word << 16)
					     : from_f16(word);
	}
}

void cast_to_f32(uint32_t dtype, const void *src, float *dst, size_t n)
{
	assert(cast_is_known(dtype));
	if (dtype == DTYPE_F32)
		memcpy(dst, src, n * sizeof(*dst));
	else if (dtype_size(dtype) == 1)
		cast_bytes(dtype, src, dst, n);
	else
		cast_words(dtype, src, dst, n);
}
