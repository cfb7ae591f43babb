/*
 * Conversions of single floats from their bits to numbers of the accumulator
 * and back, with the roundings and the NaN of collective/host/kernel_body.h.
 *
 * The hardware converts: it rounds to nearest even and keeps subnormals, but
 * its NaN differs. Sums, products and quotients are written as intrinsics,
 * which are never contracted.
 */
#pragma once
#include "proto/tensor.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/*
 * Converts f64 to f32. Inexact results become the neighbour with an odd
 * mantissa ("round to odd"), so a second rounding to fewer bits gives the same
 * as one rounding of the f64. A number that was truncated is inexact; its last
 * bit is set.
 */
static __device__ __forceinline__ float f32_odd_of_f64(double x)
{
	float cut = __double2float_rz(x);
	bool is_inexact = x == x && (double)cut != x;

	return is_inexact ? __uint_as_float(__float_as_uint(cut) | 1) : cut;
}

/* The bits of a dtype, its accumulator, and conversions between them. */
template <uint32_t DTYPE> struct number;

template <> struct number<DTYPE_F16> {
	typedef uint16_t bits;
	typedef float accumulator;

	static __device__ __forceinline__ float load(bits x)
	{
		return __half2float(__ushort_as_half(x));
	}
	static __device__ __forceinline__ bits store(float x)
	{
		return x == x ? __half_as_ushort(__float2half_rn(x)) : 0x7e00;
	}
	static __device__ __forceinline__ bits store(double x)
	{
		return store(f32_odd_of_f64(x));
	}
};

template <> struct number<DTYPE_BF16> {
	typedef uint16_t bits;
	typedef float accumulator;

	static __device__ __forceinline__ float load(bits x)
	{
		return __uint_as_float((uint32_t)x << 16);
	}
	static __device__ __forceinline__ bits store(float x)
	{
		return x == x ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
			      : 0x7fc0;
	}
	static __device__ __forceinline__ bits store(double x)
	{
		return store(f32_odd_of_f64(x));
	}
};

template <> struct number<DTYPE_F32> {
	typedef uint32_t bits;
	typedef float accumulator;

	static __device__ __forceinline__ float load(bits x)
	{
		return __uint_as_float(x);
	}
	static __device__ __forceinline__ bits store(float x)
	{
		return x == x ? __float_as_uint(x) : 0x7fc00000;
	}
	static __device__ __forceinline__ bits store(double x)
	{
		return store(__double2float_rn(x));
	}
};

template <> struct number<DTYPE_F64> {
	typedef uint64_t bits;
	typedef double accumulator;

	static __device__ __forceinline__ double load(bits x)
	{
		return __longlong_as_double((long long)x);
	}
	static __device__ __forceinline__ bits store(double x)
	{
		return x == x ? (bits)__double_as_longlong(x)
			      : (bits)0x7ff8 << 48;
	}
};

static __device__ __forceinline__ float sum_of(float a, float b)
{
	return __fadd_rn(a, b);
}

static __device__ __forceinline__ double sum_of(double a, double b)
{
	return __dadd_rn(a, b);
}

static __device__ __forceinline__ float product_of(float a, float b)
{
	return __fmul_rn(a, b);
}

static __device__ __forceinline__ double product_of(double a, double b)
{
	return __dmul_rn(a, b);
}

static __device__ __forceinline__ float quotient_of(float a, float b)
{
	return __fdiv_rn(a, b);
}

static __device__ __forceinline__ double quotient_of(double a, double b)
{
	return __ddiv_rn(a, b);
}
