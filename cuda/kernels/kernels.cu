/*
 * The kernels of cuda/kernels.h. They are limited by memory, so tuning means
 * that each access has 16 bytes, and that enough accesses are under way.
 *
 * The kind of a tile's elements is the same for all threads of a block, so
 * branches on it are cheap, and one launch can have rows of all dtypes.
 */
#include "cuda/kernels/single.cuh"
#include "cuda/kernels/vector.cuh"

/* Four blocks are half of the threads of a multiprocessor, with all the
 * registers that they need. */
#define BLOCKS_PER_SM 4

/* Copies N vectors of 1 << vector_shift bytes. */
template <uint32_t N>
static __device__ __forceinline__ void move_bytes(const struct tile &tile,
						  const struct place &place)
{
	switch (tile.row->vector_shift) {
	case 4:
		bytes_move<vector<uint32_t, 4>, N>(place);
		break;
	case 3:
		bytes_move<vector<uint32_t, 2>, N>(place);
		break;
	case 2:
		bytes_move<uint32_t, N>(place);
		break;
	case 1:
		bytes_move<uint16_t, N>(place);
		break;
	default:
		bytes_move<uint8_t, N>(place);
	}
}

template <int KIND, uint32_t FROM, uint32_t N>
static __device__ __forceinline__ void
move_floats_from(const struct kernels_params &params, const struct tile &tile,
		 const struct place &place)
{
	switch (tile.row->to_dtype) {
	case DTYPE_F16:
		floats<KIND, FROM, DTYPE_F16>::template move<N>(params, place);
		break;
	case DTYPE_BF16:
		floats<KIND, FROM, DTYPE_BF16>::template move<N>(params, place);
		break;
	case DTYPE_F32:
		floats<KIND, FROM, DTYPE_F32>::template move<N>(params, place);
		break;
	default:
		floats<KIND, FROM, DTYPE_F64>::template move<N>(params, place);
	}
}

template <int KIND, uint32_t N>
static __device__ __forceinline__ void
move_floats(const struct kernels_params &params, const struct tile &tile,
	    const struct place &place)
{
	switch (tile.row->from_dtype) {
	case DTYPE_F16:
		move_floats_from<KIND, DTYPE_F16, N>(params, tile, place);
		break;
	case DTYPE_BF16:
		move_floats_from<KIND, DTYPE_BF16, N>(params, tile, place);
		break;
	case DTYPE_F32:
		move_floats_from<KIND, DTYPE_F32, N>(params, tile, place);
		break;
	default:
		move_floats_from<KIND, DTYPE_F64, N>(params, tile, place);
	}
}

/* Processes N vectors without zeros. Those of all threads follow one
 * another. */
template <int KIND, uint32_t N>
static __device__ __forceinline__ void
move_vectors(const struct kernels_params &params, const struct tile &tile,
	     const struct place &place)
{
	if (!IS_GRAD(KIND) && tile.row->path == KERNELS_BYTES)
		move_bytes<N>(tile, place);
	else if (tile.row->path == KERNELS_FLOATS)
		move_floats<KIND, N>(params, tile, place);
	else
		singles_move<KIND, N>(params, tile, place);
}

/* Processes a vector that has zeros in it, or that is the last of its row. */
template <int KIND>
static __device__ __forceinline__ void
move_rest(const struct kernels_params &params, const struct tile &tile,
	  uint32_t x, struct place place)
{
	uint32_t end = min(x + (1u << tile.row->vector_shift), tile.n);

#pragma unroll 1
	for (; x < end; x++) {
		if (x < tile.n_moved)
			singles_move<KIND, 1>(params, tile, place);
		else
			bits_write(tile.row->to_size, place.to, 0);
		place.from += tile.row->from_size;
		place.to += tile.row->to_size;
	}
}

/* Returns whether the tile is one contiguous range without zeros, for which a
 * thread can have many accesses under way. */
template <int KIND>
static __device__ __forceinline__ bool
is_plain(const struct kernels_params &params, const struct tile &tile)
{
	bool is_divided =
		IS_GRAD(KIND) && params.is_scaled && !params.has_reciprocal;

	return tile.n_moved == 1u << tile.row->tile_shift &&
	       tile.n_moved <= tile.block_left && !is_divided;
}

template <int KIND>
static __device__ __forceinline__ void
move_tile(const struct kernels_params &params, const struct tile &tile)
{
	const uint32_t n = 1u << tile.row->vector_shift;
	const uint32_t step = KERNELS_THREADS * n;
	uint32_t x = threadIdx.x * n;

	if (is_plain<KIND>(params, tile)) {
#pragma unroll 1
		for (; x < tile.n; x += KERNELS_UNROLLED * step)
			move_vectors<KIND, KERNELS_UNROLLED>(
				params, tile, tile_place(tile, x));
	}
#pragma unroll 1
	for (; x < tile.n; x += step) {
		struct place place = tile_place(tile, x);

		if (x + n <= tile.n_moved)
			move_vectors<KIND, 1>(params, tile, place);
		else
			move_rest<KIND>(params, tile, x, place);
	}
}

template <int KIND>
static __device__ __forceinline__ void run(const struct kernels_params &params)
{
	uint64_t begin = params.tiles[0], end = params.tiles[params.n_rows];

	for (uint64_t i = begin + blockIdx.x; i < end; i += gridDim.x)
		move_tile<KIND>(params, tile_find(params, i));
}

#define KERNEL(name, kind)                                                     \
	extern "C" __global__ void __launch_bounds__(KERNELS_THREADS,          \
						     BLOCKS_PER_SM)            \
		name(const __grid_constant__ struct kernels_params params)     \
	{                                                                      \
		run<kind>(params);                                             \
	}

KERNEL(fsdp_copy_in, KIND_COPY)
KERNEL(fsdp_copy_out, KIND_COPY)
KERNEL(fsdp_chunk_cat, KIND_CHUNK_CAT)
KERNEL(fsdp_grad_out, KIND_GRAD_OUT)
KERNEL(fsdp_grad_add, KIND_GRAD_ADD)
