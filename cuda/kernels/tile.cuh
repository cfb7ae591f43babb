/*
 * A tile says which elements a block moves, where they come from and where they
 * go.
 */
#pragma once
#include "cuda/kernels/params.h"

/* This struct is small, since threads keep it in registers. The other fields
 * are read from the row. */
struct tile {
	const struct kernels_row *row;
	const uint8_t *from; /* address of the first element */
	uint8_t *to;
	uint32_t n, n_moved; /* all elements; those that are not zeros */
	/* The elements up to the end of the first one's block, and the blocks
	 * up to the end of its inner loop. They are limited to 32 bits, because
	 * no tile is larger and 32-bit division is fast. */
	uint32_t block_left, inner_left;
};

/* Where elements are read and written. */
struct place {
	const uint8_t *from;
	uint8_t *to;
};

/* Returns the index of the last of n ascending numbers that is at most x; the
 * first number must be at most x. Rows without tiles are skipped this way. */
static __device__ __forceinline__ uint32_t bisect(const uint64_t *numbers,
						  uint32_t n, uint64_t x)
{
	uint32_t low = 0, high = n;

	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (numbers[middle] <= x)
			low = middle;
		else
			high = middle;
	}
	return low;
}

static __device__ __forceinline__ uint32_t cut_off(uint64_t x)
{
	return (uint32_t)min(x, (uint64_t)UINT32_MAX);
}

static __device__ __forceinline__ struct tile
tile_find(const struct kernels_params &params, uint64_t number)
{
	uint32_t i = bisect(params.tiles, params.n_rows, number);
	const struct kernels_row &row = params.rows[i];
	uint64_t begin = (number - params.tiles[i]) << row.tile_shift;
	uint64_t block = begin / row.part, at = begin - block * row.part;
	uint64_t outer = block / row.n_inner;
	uint64_t inner = block - outer * row.n_inner;
	uint64_t n_moved = row.numel > begin ? row.numel - begin : 0;
	uint64_t n = row.padded_numel - begin;
	struct tile tile;

	n = min(n, (uint64_t)1 << row.tile_shift);
	tile.row = &row;
	tile.from = params.from + row.from + outer * row.from_outer +
		    inner * row.from_inner + at * row.from_size;
	tile.to = params.to + row.to + outer * row.to_outer +
		  inner * row.to_inner + at * row.to_size;
	tile.n = (uint32_t)n;
	tile.n_moved = (uint32_t)min(n_moved, n);
	tile.block_left = cut_off(row.part - at);
	tile.inner_left = cut_off(row.n_inner - inner);
	return tile;
}

/* Returns the place of element x of the tile, which is in a later block than
 * the first element. Offsets from the first element can be negative; they
 * wrap. */
static __device__ __forceinline__ struct place
tile_place_beyond(const struct tile &tile, uint32_t x)
{
	const struct kernels_row &row = *tile.row;
	uint32_t part = cut_off(row.part), n_inner = cut_off(row.n_inner);
	uint32_t block = (x - tile.block_left) / part;
	uint64_t outer = 0, inner, at = x - tile.block_left - block * part;
	struct place place;

	at += tile.block_left - row.part;
	block++;
	inner = block;
	if (block >= tile.inner_left) {
		outer = (block - tile.inner_left) / n_inner;
		inner -= outer * n_inner + row.n_inner;
		outer++;
	}
	place.from = tile.from + outer * row.from_outer +
		     inner * row.from_inner + at * row.from_size;
	place.to = tile.to + outer * row.to_outer + inner * row.to_inner +
		   at * row.to_size;
	return place;
}

static __device__ __forceinline__ struct place
tile_place(const struct tile &tile, uint32_t x)
{
	struct place place;

	if (x >= tile.block_left)
		return tile_place_beyond(tile, x);
	place.from = tile.from + x * tile.row->from_size;
	place.to = tile.to + x * tile.row->to_size;
	return place;
}
