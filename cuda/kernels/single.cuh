/*
 * Operations on single elements of any dtype, for elements that are not
 * aligned, and for integers. The dtype is examined anew for each element,
 * because the kernel waits for memory anyway.
 */
#pragma once
#include "cuda/kernels/kind.cuh"
#include "cuda/kernels/number.cuh"
#include "cuda/kernels/tile.cuh"

/* --- any element --------------------------------------------------------- */

static __device__ __forceinline__ uint64_t bits_read(uint32_t size,
						     const uint8_t *from)
{
	switch (size) {
	case 1:
		return *from;
	case 2:
		return *(const uint16_t *)from;
	case 4:
		return *(const uint32_t *)from;
	default:
		return *(const uint64_t *)from;
	}
}

static __device__ __forceinline__ void bits_write(uint32_t size, uint8_t *to,
						  uint64_t bits)
{
	switch (size) {
	case 1:
		*to = (uint8_t)bits;
		break;
	case 2:
		*(uint16_t *)to = (uint16_t)bits;
		break;
	case 4:
		*(uint32_t *)to = (uint32_t)bits;
		break;
	default:
		*(uint64_t *)to = bits;
	}
}

/* All floats are converted to f64, which represents each of them exactly. */
static __device__ __forceinline__ double float_load(uint32_t dtype,
						    uint64_t bits)
{
	switch (dtype) {
	case DTYPE_F16:
		return number<DTYPE_F16>::load((uint16_t)bits);
	case DTYPE_BF16:
		return number<DTYPE_BF16>::load((uint16_t)bits);
	case DTYPE_F32:
		return number<DTYPE_F32>::load((uint32_t)bits);
	default:
		return number<DTYPE_F64>::load(bits);
	}
}

static __device__ __forceinline__ uint64_t float_store(uint32_t dtype, double x)
{
	switch (dtype) {
	case DTYPE_F16:
		return number<DTYPE_F16>::store(x);
	case DTYPE_BF16:
		return number<DTYPE_BF16>::store(x);
	case DTYPE_F32:
		return number<DTYPE_F32>::store(x);
	default:
		return number<DTYPE_F64>::store(x);
	}
}

static __device__ __forceinline__ bool is_signed(uint32_t dtype)
{
	return dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 ||
	       dtype == DTYPE_I64;
}

/* Extends an integer to 64 bits, with its sign if it has one. */
static __device__ __forceinline__ uint64_t integer_load(uint32_t dtype,
							uint64_t bits)
{
	switch (dtype) {
	case DTYPE_I8:
		return (uint64_t)(int64_t)(int8_t)bits;
	case DTYPE_I16:
		return (uint64_t)(int64_t)(int16_t)bits;
	case DTYPE_I32:
		return (uint64_t)(int64_t)(int32_t)bits;
	default:
		return bits;
	}
}

/* --- arithmetic of each kind --------------------------------------------- */

/* These compute in the accumulator of the dtype. */
static __device__ __forceinline__ double product_in(uint32_t dtype, double a,
						    double b)
{
	return dtype == DTYPE_F64 ? product_of(a, b)
				  : product_of((float)a, (float)b);
}

static __device__ __forceinline__ double quotient_in(uint32_t dtype, double a,
						     double b)
{
	return dtype == DTYPE_F64 ? quotient_of(a, b)
				  : quotient_of((float)a, (float)b);
}

static __device__ __forceinline__ double sum_in(uint32_t dtype, double a,
						double b)
{
	return dtype == DTYPE_F64 ? sum_of(a, b) : sum_of((float)a, (float)b);
}

template <int KIND>
static __device__ __forceinline__ uint64_t
single_float(const struct kernels_params &params, uint32_t from, uint32_t to,
	     uint64_t x, uint64_t old)
{
	double value = float_load(from, x);
	uint64_t y;

	if (IS_GRAD(KIND) && params.is_scaled)
		value = quotient_in(from, value, params.factor);
	y = float_store(to, value);
	if (KIND == KIND_CHUNK_CAT && params.is_scaled)
		y = float_store(
			to, product_in(to, float_load(to, y), params.factor));
	if (KIND == KIND_GRAD_ADD)
		y = float_store(
			to, sum_in(to, float_load(to, old), float_load(to, y)));
	return y;
}

template <int KIND>
static __device__ __forceinline__ uint64_t
single_integer(const struct kernels_params &params, uint32_t from, uint64_t x,
	       uint64_t old)
{
	uint64_t value = integer_load(from, x);

	if (!IS_GRAD(KIND))
		return value;
	if (params.is_scaled && is_signed(from))
		value = (uint64_t)((int64_t)value / (int64_t)params.factor);
	else if (params.is_scaled)
		value = value / (uint64_t)params.factor;
	return KIND == KIND_GRAD_ADD ? old + value : value;
}

/* Returns the bits of the element in the dtype that is written. */
template <int KIND>
static __device__ __forceinline__ uint64_t
single_calculate(const struct kernels_params &params, const struct tile &tile,
		 uint64_t x, uint64_t old)
{
	if (tile.row->to_dtype >= DTYPE_F16)
		return single_float<KIND>(params, tile.row->from_dtype,
					  tile.row->to_dtype, x, old);
	return single_integer<KIND>(params, tile.row->from_dtype, x, old);
}

/* Processes N elements. Those of all threads follow one another. */
template <int KIND, uint32_t N>
static __device__ __forceinline__ void
singles_move(const struct kernels_params &params, const struct tile &tile,
	     const struct place &place)
{
	const uint32_t from_step = KERNELS_THREADS * tile.row->from_size;
	const uint32_t to_step = KERNELS_THREADS * tile.row->to_size;
	uint64_t x[N], old[N];

#pragma unroll
	for (uint32_t k = 0; k < N; k++) {
		x[k] = bits_read(tile.row->from_size,
				 place.from + k * from_step);
		if (KIND == KIND_GRAD_ADD)
			old[k] = bits_read(tile.row->to_size,
					   place.to + k * to_step);
	}
#pragma unroll
	for (uint32_t k = 0; k < N; k++)
		bits_write(tile.row->to_size, place.to + k * to_step,
			   single_calculate<KIND>(params, tile, x[k], old[k]));
}
