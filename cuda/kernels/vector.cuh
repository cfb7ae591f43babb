/*
 * Operations on vectors: elements that are read and written together.
 */
#pragma once
#include "cuda/kernels/kind.cuh"
#include "cuda/kernels/number.cuh"
#include "cuda/kernels/tile.cuh"

template <typename T, uint32_t N> struct alignas(sizeof(T) * N) vector {
	T at[N];
};

/* Copies N vectors. Those of all threads follow one another. All reads precede
 * the writes, so that they are under way together. */
template <typename VECTOR, uint32_t N>
static __device__ __forceinline__ void bytes_move(const struct place &place)
{
	VECTOR x[N];

#pragma unroll
	for (uint32_t k = 0; k < N; k++)
		x[k] = ((const VECTOR *)place.from)[k * KERNELS_THREADS];
#pragma unroll
	for (uint32_t k = 0; k < N; k++)
		((VECTOR *)place.to)[k * KERNELS_THREADS] = x[k];
}

/* The types for a kind that reads FROM and writes TO. */
template <int KIND, uint32_t FROM, uint32_t TO> struct floats {
	typedef number<FROM> in;
	typedef number<TO> out;
	static const uint32_t SIZE = sizeof(typename in::bits) >
						     sizeof(typename out::bits)
					     ? sizeof(typename in::bits)
					     : sizeof(typename out::bits);
	static const uint32_t N = KERNELS_VECTOR / SIZE;
	typedef vector<typename in::bits, N> in_vector;
	typedef vector<typename out::bits, N> out_vector;

	/* Computes one vector as cuda/kernels.h says. `old` is the previous
	 * contents, for a kind that adds. */
	template <bool DIVIDES>
	static __device__ __forceinline__ out_vector
	calculate(const struct kernels_params &params, const in_vector &x,
		  const out_vector &old)
	{
		typename in::accumulator values[N];
		out_vector y;

#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			values[i] = in::load(x.at[i]);
		if (IS_GRAD(KIND) && params.is_scaled)
			divide<DIVIDES>(params, values);
#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			y.at[i] = out::store(values[i]);
		if (KIND == KIND_CHUNK_CAT && params.is_scaled)
			multiply(params, y);
		if (KIND == KIND_GRAD_ADD)
			add(old, y);
		return y;
	}

	template <bool DIVIDES>
	static __device__ __forceinline__ void
	divide(const struct kernels_params &params,
	       typename in::accumulator *values)
	{
		typedef typename in::accumulator number;

#pragma unroll
		for (uint32_t i = 0; i < N; i++) {
			if (!DIVIDES || params.has_reciprocal)
				values[i] = product_of(
					values[i], (number)params.reciprocal);
			else
				values[i] = quotient_of(values[i],
							(number)params.factor);
		}
	}

	static __device__ __forceinline__ void
	multiply(const struct kernels_params &params, out_vector &y)
	{
		typedef typename out::accumulator number;

#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			y.at[i] = out::store(product_of(out::load(y.at[i]),
							(number)params.factor));
	}

	static __device__ __forceinline__ void add(const out_vector &old,
						   out_vector &y)
	{
#pragma unroll
		for (uint32_t i = 0; i < N; i++)
			y.at[i] = out::store(sum_of(out::load(old.at[i]),
						    out::load(y.at[i])));
	}

	/* Processes vectors as bytes_move() does. There is more than one only
	 * if no division is needed except by a reciprocal: divisions would take
	 * too many registers. */
	template <uint32_t N_VECTORS>
	static __device__ __forceinline__ void
	move(const struct kernels_params &params, const struct place &place)
	{
		const in_vector *from = (const in_vector *)place.from;
		out_vector *to = (out_vector *)place.to;
		in_vector x[N_VECTORS];
		out_vector old[N_VECTORS];

#pragma unroll
		for (uint32_t k = 0; k < N_VECTORS; k++) {
			x[k] = from[k * KERNELS_THREADS];
			if (KIND == KIND_GRAD_ADD)
				old[k] = to[k * KERNELS_THREADS];
		}
#pragma unroll
		for (uint32_t k = 0; k < N_VECTORS; k++)
			to[k * KERNELS_THREADS] =
				calculate<N_VECTORS == 1>(params, x[k], old[k]);
	}
};
