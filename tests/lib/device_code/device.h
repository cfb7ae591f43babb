/*
 * The part of CUDA C++ that our kernels need, for a CPU. Each thread is a call,
 * and the calls run one after another. This header defines what the compiler
 * and the hardware provide on a GPU. As on a GPU, a conversion of NaN gives all
 * ones without the sign.
 */
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct device_index {
	unsigned int x;
};
static device_index threadIdx, blockIdx, gridDim;

template <typename T> static inline T min(T a, T b)
{
	return a < b ? a : b;
}

/* --- bits ---------------------------------------------------------------- */

template <typename TO, typename FROM> static inline TO device_cast(FROM from)
{
	TO to;

	static_assert(sizeof(to) == sizeof(from), "the same bits");
	std::memcpy(&to, &from, sizeof(to));
	return to;
}

static inline float __uint_as_float(uint32_t bits)
{
	return device_cast<float>(bits);
}

static inline uint32_t __float_as_uint(float x)
{
	return device_cast<uint32_t>(x);
}

static inline double __longlong_as_double(long long bits)
{
	return device_cast<double>(bits);
}

static inline long long __double_as_longlong(double x)
{
	return device_cast<long long>(x);
}

/* --- arithmetic ---------------------------------------------------------- */

static inline float __fadd_rn(float a, float b)
{
	return a + b;
}

static inline double __dadd_rn(double a, double b)
{
	return a + b;
}

static inline float __fmul_rn(float a, float b)
{
	return a * b;
}

static inline double __dmul_rn(double a, double b)
{
	return a * b;
}

static inline float __fdiv_rn(float a, float b)
{
	return a / b;
}

static inline double __ddiv_rn(double a, double b)
{
	return a / b;
}

/* --- conversions --------------------------------------------------------- */

static inline float __double2float_rn(double x)
{
	return (float)x;
}

/* Rounds towards zero: it takes the neighbour if the value was rounded away
 * from zero. */
static inline float __double2float_rz(double x)
{
	float nearest = (float)x;

	if (std::fabs((double)nearest) > std::fabs(x))
		nearest = std::nextafterf(nearest, 0);
	return nearest;
}

/* Rounds to that many bits of the mantissa, in units of the last place. The
 * leading 1 of normal numbers adds one to the exponent's field. */
static inline uint16_t device_small_of(float x, int n_mantissa, int least)
{
	unsigned int infinity = ((1u << (15 - n_mantissa)) - 1) << n_mantissa;
	unsigned int sign = std::signbit(x) ? 0x8000 : 0, bits;
	int exponent = least;

	if (std::isnan(x))
		return 0x7fff;
	if (std::isinf(x))
		return (uint16_t)(sign | infinity);
	if (x != 0 && std::ilogb(x) > least)
		exponent = std::ilogb(x);
	bits = (unsigned int)(exponent - least) << n_mantissa;
	bits += (unsigned int)std::nearbyint(
		std::ldexp(std::fabs((double)x), n_mantissa - exponent));
	return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

static inline float device_small_to(uint16_t bits, int n_mantissa, int least)
{
	unsigned int all = (1u << (15 - n_mantissa)) - 1;
	unsigned int exponent = bits >> n_mantissa & all;
	unsigned int mantissa = bits & ((1u << n_mantissa) - 1);
	double value = mantissa;

	if (exponent == all)
		value = mantissa ? NAN : INFINITY;
	else if (exponent == 0)
		value = std::ldexp(value, least - n_mantissa);
	else
		value = std::ldexp(value + (1u << n_mantissa),
				   (int)exponent - 1 + least - n_mantissa);
	return (float)(bits & 0x8000 ? -value : value);
}
