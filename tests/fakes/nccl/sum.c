#include "tests/fakes/nccl/sum.h"
#include <math.h>
#include <stdbool.h>
#include <string.h>

size_t sum_type_size(ncclDataType_t type)
{
	switch (type) {
	case ncclInt8:
	case ncclUint8:
		return 1;
	case ncclFloat16:
	case ncclBfloat16:
		return 2;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	default:
		return 0;
	}
}

/* --- 16-bit floats ------------------------------------------------------- */

static float float_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static uint16_t encode_bf16(float value)
{
	uint32_t bits = bits_of(value);

	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The bits, moved to their place in f32, are 2^112 times too small. This holds
 * for numbers, and for infinity and NaN, which become 2^16 and more. */
static float decode_f16(uint16_t half)
{
	float magnitude = float_of((uint32_t)(half & 0x7fff) << 13) * 0x1p112f;

	if (magnitude >= 0x1p16f)
		magnitude = half & 0x3ff ? NAN : INFINITY;
	return half & 0x8000 ? -magnitude : magnitude;
}

/* Adding a number whose last place is that of the half-precision format rounds
 * to it. */
static uint16_t encode_f16(float value)
{
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	float magnitude = fabsf(value);
	uint32_t bits;

	if (magnitude < 0x1p-14f) {
		bits = bits_of(magnitude + 0x1p-1f) - bits_of(0x1p-1f);
		return sign | (uint16_t)bits;
	}
	if (magnitude >= 65520)
		return sign | 0x7c00;
	bits = bits_of(magnitude) - (112u << 23);
	return sign | (uint16_t)((bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

/* --- elements ------------------------------------------------------------ */

static double load_float(ncclDataType_t type, const void *from)
{
	uint16_t half;
	double wide;
	float value;

	switch (type) {
	case ncclFloat64:
		memcpy(&wide, from, sizeof(wide));
		return wide;
	case ncclFloat32:
		memcpy(&value, from, sizeof(value));
		return (double)value;
	default:
		memcpy(&half, from, sizeof(half));
		return (double)(type == ncclFloat16
					? decode_f16(half)
					: float_of((uint32_t)half << 16));
	}
}

/* A NaN is stored as the quiet one without sign. */
static void store_float(ncclDataType_t type, void *to, float value)
{
	bool is_nan = isnan(value);
	uint32_t single = is_nan ? 0x7fc00000 : bits_of(value);
	uint16_t half;

	if (type == ncclFloat32) {
		memcpy(to, &single, sizeof(single));
		return;
	}
	if (type == ncclBfloat16)
		half = is_nan ? 0x7fc0 : encode_bf16(value);
	else
		half = is_nan ? 0x7e00 : encode_f16(value);
	memcpy(to, &half, sizeof(half));
}

static bool is_integer(ncclDataType_t type)
{
	return type <= ncclUint64;
}

static int64_t load_integer(ncclDataType_t type, const void *from)
{
	uint64_t bits = 0;

	memcpy(&bits, from, sum_type_size(type));
	if (type == ncclInt8)
		return (int8_t)bits;
	if (type == ncclInt32)
		return (int32_t)bits;
	return (int64_t)bits;
}

double sum_load(ncclDataType_t type, const void *element)
{
	return is_integer(type) ? (double)load_integer(type, element)
				: load_float(type, element);
}

/* --- sums ---------------------------------------------------------------- */

static void sum_integers(const struct sum *sum, void *out, size_t at)
{
	uint64_t total = 0;

	for (uint32_t r = 0; r < sum->n_inputs; r++)
		total += (uint64_t)load_integer(
				 sum->type, (const char *)sum->inputs[r] + at) *
			 (uint64_t)(int64_t)sum->factors[r];
	if (sum->type == ncclUint64)
		total /= sum->divisor;
	else
		total = (uint64_t)((int64_t)total / (int64_t)sum->divisor);
	memcpy((char *)out + at, &total, sum_type_size(sum->type));
}

static void sum_doubles(const struct sum *sum, void *out, size_t at)
{
	double total = 0;

	for (uint32_t r = 0; r < sum->n_inputs; r++) {
		double x = load_float(sum->type,
				      (const char *)sum->inputs[r] + at) *
			   sum->factors[r];

		total = r == 0 ? x : total + x;
	}
	total /= sum->divisor;
	memcpy((char *)out + at, &total, sizeof(total));
}

static void sum_floats(const struct sum *sum, void *out, size_t at)
{
	float total = 0;

	for (uint32_t r = 0; r < sum->n_inputs; r++) {
		float x = (float)load_float(sum->type,
					    (const char *)sum->inputs[r] + at) *
			  (float)sum->factors[r];

		total = r == 0 ? x : total + x;
	}
	store_float(sum->type, (char *)out + at, total / (float)sum->divisor);
}

void sum_run(const struct sum *sum, void *out, size_t n)
{
	size_t size = sum_type_size(sum->type);

	for (size_t at = 0; at < n * size; at += size) {
		if (is_integer(sum->type))
			sum_integers(sum, out, at);
		else if (sum->type == ncclFloat64)
			sum_doubles(sum, out, at);
		else
			sum_floats(sum, out, at);
	}
}
