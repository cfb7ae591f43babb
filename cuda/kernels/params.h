/*
 * What the host and the device code agree on: a table as it lies in device
 * memory, and what a launch passes. Plain C that is CUDA C++ too.
 *
 * Work is cut into tiles, each of a row's elements; a block takes a tile. A
 * tile is as much as a block's threads move with a few 16-byte accesses each,
 * whatever the row, so that thousands of small rows and one large one are the
 * same to a launch. Which row a tile is of is found by bisection.
 *
 * A row's work is blocks of `part` elements, n_inner of them in each of an
 * outer loop. On either side a block has its place by two strides; so a row is
 * a plain range, a cut along any dimension, or its reverse.
 */
#pragma once
#include "proto/tensor.h"
#include <stdint.h>

#define KERNELS_THREADS   256 /* of a block */
#define KERNELS_UNROLLED  4   /* accesses that a thread has under way */
#define KERNELS_VECTOR    16  /* bytes of a vector, on the wider side */
#define KERNELS_TILE_SIZE (KERNELS_THREADS * KERNELS_UNROLLED * KERNELS_VECTOR)

/* Of one tile; no vector is smaller than an element of it. */
#define KERNELS_TILE_MAX_VECTORS (4 * KERNELS_THREADS * KERNELS_UNROLLED)

enum kernels_path {
	/* Elements are bytes, moved as they are, 1 << vector_shift of them
	 * together. */
	KERNELS_BYTES,
	/* Floats, 1 << vector_shift together: as many as the wider of both
	 * dtypes has in KERNELS_VECTOR. */
	KERNELS_FLOATS,
	/* Any elements, one by one; vector_shift 0. */
	KERNELS_SINGLES,
};

struct kernels_row {
	uint64_t from, to;     /* bytes from the launch's */
	uint64_t numel;        /* from here on zeros */
	uint64_t padded_numel; /* elements in all */
	uint64_t part, n_inner;
	uint64_t from_outer, from_inner; /* strides, bytes */
	uint64_t to_outer, to_inner;
	uint8_t path; /* enum kernels_path */
	uint8_t from_dtype, to_dtype;
	uint8_t from_size, to_size; /* bytes of an element */
	uint8_t vector_shift;
	uint8_t tile_shift; /* elements of a tile, and no less than a vector */
	uint8_t reserved;
};

/* The only parameter of every kernel. */
struct kernels_params {
	const struct kernels_row *rows; /* of this launch */
	/* Of each row the first tile, and behind the last the end; counted over
	 * the whole table. */
	const uint64_t *tiles;
	const uint8_t *from;
	uint8_t *to;
	double factor; /* chunk-cat: times it; grad-out: by it */
	/* grad-out, has_reciprocal: 1 / factor, and a multiplication by it
	 * gives the same bits as the division. */
	double reciprocal;
	uint32_t n_rows;
	uint8_t is_scaled; /* factor is not 1 */
	uint8_t has_reciprocal;
	uint8_t reserved[2];
};
