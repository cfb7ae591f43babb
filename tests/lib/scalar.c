/*
 * Each float type is described by the bits of its mantissa, with the leading
 * one, and the exponents of its least and largest normal numbers.
 */
#include "tests/lib/scalar.h"
#include "tests/lib/chaos.h"
#include <math.h>
#include <string.h>

struct format {
	int n_bits; /* with the leading 1 */
	int least;  /* exponent of the least normal number */
	int largest;
};

static const struct format *format_of(enum fsdp_dtype dtype)
{
	static const struct format formats[] = {
		[FSDP_F16] = {11, -14, 15},
		[FSDP_BF16] = {8, -126, 127},
		[FSDP_F32] = {24, -126, 127},
		[FSDP_F64] = {53, -1022, 1023},
	};

	must(scalar_is_float(dtype));
	return &formats[dtype];
}

bool scalar_is_float(enum fsdp_dtype dtype)
{
	return dtype >= FSDP_F16 && dtype <= FSDP_F64;
}

bool scalar_is_integer(enum fsdp_dtype dtype)
{
	return dtype >= FSDP_U8 && dtype <= FSDP_I64;
}

bool scalar_is_signed(enum fsdp_dtype dtype)
{
	return dtype == FSDP_I8 || dtype == FSDP_I16 || dtype == FSDP_I32 ||
	       dtype == FSDP_I64;
}

static size_t kept_size(enum fsdp_dtype dtype)
{
	size_t size = fsdp_dtype_size(dtype);

	return size < 8 ? size : 8;
}

uint64_t scalar_load(enum fsdp_dtype dtype, const void *data, uint64_t i)
{
	const uint8_t *at = data;
	uint64_t bits = 0;

	memcpy(&bits, at + i * fsdp_dtype_size(dtype), kept_size(dtype));
	return bits;
}

void scalar_store(enum fsdp_dtype dtype, void *data, uint64_t i, uint64_t bits)
{
	size_t size = fsdp_dtype_size(dtype);
	uint8_t *at = data;

	memcpy(at + i * size, &bits, kept_size(dtype));
	if (size > 8)
		memcpy(at + i * size + 8, &bits, size - 8);
}

/* --- floats -------------------------------------------------------------- */

/* Returns 2^exponent, which must be a normal double. Random tests round
 * millions of values, and ldexp() takes longer. */
static double power_of_two(int exponent)
{
	uint64_t bits = (uint64_t)(exponent + 1023) << 52;
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

double scalar_decode(enum fsdp_dtype dtype, uint64_t bits)
{
	const struct format *format = format_of(dtype);
	int n = format->n_bits - 1, n_exponent;
	uint64_t mantissa, exponent;
	double value;
	bool is_negative;

	n_exponent = (int)fsdp_dtype_size(dtype) * 8 - 1 - n;
	mantissa = bits & ((UINT64_C(1) << n) - 1);
	exponent = bits >> n & ((UINT64_C(1) << n_exponent) - 1);
	is_negative = bits >> (n + n_exponent) & 1;
	if (exponent == (UINT64_C(1) << n_exponent) - 1)
		value = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		value = ldexp((double)mantissa, format->least - n);
	else
		value = ldexp((double)(mantissa | UINT64_C(1) << n),
			      (int)exponent - 1 + format->least - n);
	return is_negative ? -value : value;
}

double scalar_round(enum fsdp_dtype dtype, double value)
{
	const struct format *format = format_of(dtype);
	double rounded;
	int exponent;

	if (dtype == FSDP_F64 || isnan(value) || isinf(value) || value == 0)
		return value;
	exponent = ilogb(value);
	if (exponent < format->least)
		exponent = format->least;
	exponent -= format->n_bits - 1; /* one unit of the last place */
	rounded = nearbyint(value * power_of_two(-exponent)) *
		  power_of_two(exponent);
	if (fabs(rounded) >= power_of_two(format->largest) * 2)
		rounded = INFINITY;
	return copysign(rounded, value);
}

uint64_t scalar_encode(enum fsdp_dtype dtype, double value)
{
	const struct format *format = format_of(dtype);
	int n = format->n_bits - 1, exponent;
	int n_exponent = (int)fsdp_dtype_size(dtype) * 8 - 1 - n;
	uint64_t sign, top = ((UINT64_C(1) << n_exponent) - 1) << n;
	double rounded = scalar_round(dtype, value), magnitude;

	sign = (uint64_t) !!signbit(value) << (n + n_exponent);
	magnitude = fabs(rounded);
	if (isnan(rounded))
		return top | UINT64_C(1) << (n - 1);
	if (isinf(rounded))
		return sign | top;
	if (magnitude < power_of_two(format->least))
		return sign | (uint64_t)ldexp(magnitude, n - format->least);
	exponent = ilogb(magnitude);
	/* The leading 1 adds one to the exponent's field. */
	return sign | (((uint64_t)(exponent - format->least) << n) +
		       (uint64_t)ldexp(magnitude, n - exponent));
}

enum fsdp_dtype scalar_accumulator(enum fsdp_dtype dtype)
{
	return dtype == FSDP_F64 ? FSDP_F64 : FSDP_F32;
}

/* The compiler may not keep more bits in f32 than that. */
double scalar_add(enum fsdp_dtype accumulator, double a, double b)
{
	volatile float sum;

	if (accumulator == FSDP_F64)
		return a + b;
	sum = (float)a + (float)b;
	return (double)sum;
}

double scalar_multiply(enum fsdp_dtype accumulator, double a, double b)
{
	volatile float product;

	if (accumulator == FSDP_F64)
		return a * b;
	product = (float)a * (float)b;
	return (double)product;
}

double scalar_divide(enum fsdp_dtype accumulator, double a, double b)
{
	volatile float quotient;

	if (accumulator == FSDP_F64)
		return a / b;
	quotient = (float)a / (float)b;
	return (double)quotient;
}

double scalar_epsilon(enum fsdp_dtype dtype)
{
	return ldexp(1, -format_of(dtype)->n_bits);
}

double scalar_least(enum fsdp_dtype dtype)
{
	const struct format *format = format_of(dtype);

	return ldexp(1, format->least - format->n_bits + 1);
}

bool scalar_is_same(enum fsdp_dtype dtype, uint64_t a, uint64_t b)
{
	if (a == b)
		return true;
	return scalar_is_float(dtype) && isnan(scalar_decode(dtype, a)) &&
	       isnan(scalar_decode(dtype, b));
}

/* --- integers ------------------------------------------------------------ */

uint64_t scalar_widen(enum fsdp_dtype dtype, uint64_t bits)
{
	unsigned int n_above = 64 - 8 * (unsigned int)fsdp_dtype_size(dtype);

	bits <<= n_above;
	if (scalar_is_signed(dtype))
		return (uint64_t)((int64_t)bits >> n_above);
	return bits >> n_above;
}

uint64_t scalar_narrow(enum fsdp_dtype dtype, uint64_t wide)
{
	unsigned int n_above = 64 - 8 * (unsigned int)fsdp_dtype_size(dtype);

	return wide << n_above >> n_above;
}

uint64_t scalar_divide_integer(enum fsdp_dtype dtype, uint64_t wide, double by)
{
	if (scalar_is_signed(dtype))
		return (uint64_t)((int64_t)wide / (int64_t)by);
	return wide / (uint64_t)by;
}
