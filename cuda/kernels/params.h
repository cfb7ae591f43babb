/*
 * The interface of the host and the device code: the layout of a table in
 * device memory, and the parameters of a launch. It is plain C that is also
 * CUDA C++.
 *
 * The work is divided into tiles. Each has elements of one row, and a block
 * takes one tile at a time. A tile is as much as the threads of a block move
 * with a few 16-byte accesses each, for any row; so thousands of small rows and
 * one large row take about the same time. The row of a tile is found by
 * bisection.
 *
 * The work of a row is a sequence of blocks of `part` elements; n_inner blocks
 * form one iteration of an outer loop. On each side two strides give the
 * address of a block. So a row can be a contiguous range, a cut along any
 * dimension, or the reverse of a cut.
 */
#pragma once
#include "proto/tensor.h"
#include <stdint.h>

#define KERNELS_THREADS  256 /* threads of a block */
#define KERNELS_UNROLLED 4   /* accesses of a thread that are under way */
/* bytes of a vector on the side with the wider dtype */
#define KERNELS_VECTOR    16
#define KERNELS_TILE_SIZE (KERNELS_THREADS * KERNELS_UNROLLED * KERNELS_VECTOR)

/* The most vectors of a tile. A vector has at least one element. */
#define KERNELS_TILE_MAX_VECTORS (4 * KERNELS_THREADS * KERNELS_UNROLLED)

enum kernels_path {
	/* Bytes, copied unchanged, 1 << vector_shift of them together. */
	KERNELS_BYTES,
	/* Floats, 1 << vector_shift of them together: as many elements of the
	 * wider dtype as KERNELS_VECTOR bytes hold. */
	KERNELS_FLOATS,
	/* Any elements, one at a time; vector_shift is 0. */
	KERNELS_SINGLES,
};

struct kernels_row {
	uint64_t from, to;     /* in bytes, from the memories of the launch */
	uint64_t numel;        /* elements from here on are zeros */
	uint64_t padded_numel; /* total elements */
	uint64_t part, n_inner;
	uint64_t from_outer, from_inner; /* strides in bytes */
	uint64_t to_outer, to_inner;
	uint8_t path; /* enum kernels_path */
	uint8_t from_dtype, to_dtype;
	uint8_t from_size, to_size; /* bytes of an element */
	uint8_t vector_shift;
	/* log2 of a tile's elements; at least vector_shift */
	uint8_t tile_shift;
	uint8_t reserved;
};

/* The only parameter of every kernel. */
struct kernels_params {
	const struct kernels_row *rows; /* first row of this launch */
	/* The first tile of each row, and after the last one the end. Tiles are
	 * counted over the whole table. */
	const uint64_t *tiles;
	const uint8_t *from;
	uint8_t *to;
	double factor; /* chunk-cat multiplies by it, grad-out divides */
	/* For grad-out with has_reciprocal: 1 / factor. Multiplying by it gives
	 * the same bits as dividing by the factor. */
	double reciprocal;
	uint32_t n_rows;
	uint8_t is_scaled; /* the factor is not 1 */
	uint8_t has_reciprocal;
	uint8_t reserved[2];
};
