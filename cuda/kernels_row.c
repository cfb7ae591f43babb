/*
 * This file makes rows of work.
 *
 * A row visits its elements in the order of the memory that is written: a whole
 * parameter, or the chunks of all ranks. numel counts in that order, too: only
 * a parameter that is cut along its first dimension has padding, and its
 * chunks, one after another, are the whole parameter.
 */
#include "cuda/kernels_row.h"
#include "proto/error.h"
#include <errno.h>

#define LIMIT (UINT64_C(1) << 62)

/* --- dtypes -------------------------------------------------------------- */

/* Returns the 64-bit dtype in which integers of that dtype are summed, or 0 if
 * it is not an integer. */
static uint32_t widest_of(uint32_t dtype)
{
	return dtype_is_float(dtype) ? 0 : dtype_accumulator(dtype);
}

static bool is_copy(enum kernels_kind kind)
{
	return kind == KERNELS_COPY_IN || kind == KERNELS_COPY_OUT;
}

static bool is_cast(enum kernels_kind kind, uint32_t from, uint32_t to)
{
	if (dtype_is_float(from) && dtype_is_float(to))
		return true;
	if (is_copy(kind))
		return from == to;
	return widest_of(from) && widest_of(from) == widest_of(to) &&
	       (from == to || from == widest_of(to) || to == widest_of(from));
}

static int check_dtypes(enum kernels_kind kind,
			const struct kernels_entry *entry, struct error *err)
{
	uint32_t from_size = dtype_size(entry->from_dtype);
	uint32_t to_size = dtype_size(entry->to_dtype);

	if (!from_size || !to_size ||
	    !is_cast(kind, entry->from_dtype, entry->to_dtype))
		return error_set(err, -EINVAL, "%s is not cast to %s here",
				 dtype_name(entry->from_dtype),
				 dtype_name(entry->to_dtype));
	if (entry->from % from_size != 0 || entry->to % to_size != 0)
		return error_set(err, -EINVAL,
				 "its offsets %llu and %llu are not multiples "
				 "of the sizes of %s and %s",
				 (unsigned long long)entry->from,
				 (unsigned long long)entry->to,
				 dtype_name(entry->from_dtype),
				 dtype_name(entry->to_dtype));
	return 0;
}

/* --- sizes --------------------------------------------------------------- */

static int check_numel(const struct kernels_entry *entry, struct error *err)
{
	uint32_t from_size = dtype_size(entry->from_dtype);
	uint32_t to_size = dtype_size(entry->to_dtype);
	uint32_t size = from_size > to_size ? from_size : to_size;

	if (entry->numel > entry->padded_numel)
		return error_set(
			err, -EINVAL,
			"it has %llu elements, but only %llu with padding",
			(unsigned long long)entry->numel,
			(unsigned long long)entry->padded_numel);
	if (entry->padded_numel > LIMIT / size)
		return error_set(err, -EINVAL, "it has %llu elements",
				 (unsigned long long)entry->padded_numel);
	return 0;
}

/* Checks that the chunks of all ranks have as many elements as the whole side,
 * and that the stride fits them. */
static int check_chunks(enum kernels_kind kind,
			const struct kernels_entry *entry, struct error *err)
{
	uint32_t size = dtype_size(kind == KERNELS_COPY_OUT ? entry->from_dtype
							    : entry->to_dtype);
	uint64_t chunk, all;

	if (__builtin_mul_overflow(entry->n_rows, entry->part_numel, &chunk) ||
	    __builtin_mul_overflow(chunk, entry->n_ranks, &all) ||
	    all > LIMIT / size ||
	    (kind == KERNELS_COPY_OUT ? all < entry->numel
				      : all != entry->padded_numel) ||
	    (entry->n_rows > 1 && entry->numel > 0 && entry->numel != all))
		return error_set(err, -EINVAL,
				 "%u chunks of %llu times %llu elements do not "
				 "fit its %llu elements",
				 entry->n_ranks,
				 (unsigned long long)entry->n_rows,
				 (unsigned long long)entry->part_numel,
				 (unsigned long long)entry->numel);
	if (entry->n_ranks > 1 &&
	    (entry->stride % size != 0 || entry->stride < chunk * size ||
	     entry->stride > LIMIT / entry->n_ranks))
		return error_set(err, -EINVAL,
				 "a stride of %llu bytes does not fit chunks "
				 "of %llu elements of %u bytes",
				 (unsigned long long)entry->stride,
				 (unsigned long long)chunk, size);
	return 0;
}

static bool has_chunks(enum kernels_kind kind,
		       const struct kernels_entry *entry)
{
	if (kind == KERNELS_COPY_OUT)
		return entry->numel > 0;
	return kind == KERNELS_CHUNK_CAT && entry->padded_numel > 0;
}

static int check(enum kernels_kind kind, const struct kernels_entry *entry,
		 struct error *err)
{
	int r = check_dtypes(kind, entry, err);

	if (r >= 0)
		r = check_numel(entry, err);
	if (r >= 0 && has_chunks(kind, entry))
		r = check_chunks(kind, entry, err);
	return r;
}

/* --- rows ---------------------------------------------------------------- */

/* Sets the strides and parts of a row that reads or writes chunks. In the whole
 * parameter the pieces of all ranks form one row. */
static void place_blocks(enum kernels_kind kind,
			 const struct kernels_entry *entry,
			 struct kernels_row *row)
{
	uint64_t from_part = entry->part_numel * row->from_size;
	uint64_t to_part = entry->part_numel * row->to_size;

	row->part = entry->part_numel;
	if (kind == KERNELS_COPY_OUT) {
		row->n_inner = entry->n_ranks;
		row->from_outer = from_part;
		row->from_inner = entry->stride;
		row->to_outer = entry->n_ranks * to_part;
		row->to_inner = to_part;
	} else {
		row->n_inner = entry->n_rows;
		row->from_outer = from_part;
		row->from_inner = entry->n_ranks * from_part;
		row->to_outer = entry->stride;
		row->to_inner = to_part;
	}
}

/* Returns whether the source is contiguous, so that the row is a contiguous
 * range. */
static bool is_first_piece(enum kernels_kind kind,
			   const struct kernels_entry *entry)
{
	return kind == KERNELS_COPY_OUT && entry->numel <= entry->part_numel;
}

/* Describes the elements as bytes. */
static void make_bytes(struct kernels_row *row)
{
	row->numel *= row->from_size;
	row->padded_numel *= row->from_size;
	row->part *= row->from_size;
	row->from_dtype = DTYPE_U8;
	row->to_dtype = DTYPE_U8;
	row->from_size = 1;
	row->to_size = 1;
}

/* Returns whether each vector of 1 << shift elements is within one block, and
 * aligned on both sides. The memories of a launch are aligned to
 * KERNELS_VECTOR; blocks consist of whole vectors if adjacent blocks are
 * aligned. */
static bool is_vector(const struct kernels_row *row, unsigned int shift)
{
	uint64_t from_bits = row->from, to_bits = row->to, n = 1u << shift;

	if (row->part < row->padded_numel) {
		from_bits |= row->from_outer | row->from_inner;
		to_bits |= row->to_outer | row->to_inner;
	}
	return from_bits % (n * row->from_size) == 0 &&
	       to_bits % (n * row->to_size) == 0;
}

static uint8_t log2_of(unsigned int n)
{
	return (uint8_t)__builtin_ctz(n);
}

static void choose_bytes(struct kernels_row *row)
{
	uint8_t shift = log2_of(KERNELS_VECTOR);
	uint32_t n;

	while (!is_vector(row, shift))
		shift--;
	n = KERNELS_TILE_SIZE >> shift;
	if (n > KERNELS_TILE_MAX_VECTORS)
		n = KERNELS_TILE_MAX_VECTORS;
	row->path = KERNELS_BYTES;
	row->vector_shift = shift;
	row->tile_shift = log2_of(n << shift);
}

static void choose_elements(struct kernels_row *row)
{
	uint32_t size =
		row->from_size > row->to_size ? row->from_size : row->to_size;
	uint8_t shift = log2_of(KERNELS_VECTOR / size);

	if (dtype_is_float(row->to_dtype) && is_vector(row, shift)) {
		row->path = KERNELS_FLOATS;
		row->vector_shift = shift;
		row->tile_shift = log2_of(KERNELS_TILE_SIZE / size);
	} else {
		row->path = KERNELS_SINGLES;
		row->tile_shift = log2_of(KERNELS_TILE_MAX_VECTORS);
	}
}

int kernels_row_make(enum kernels_kind kind, const struct kernels_entry *entry,
		     struct kernels_row *ret, struct error *err)
{
	uint32_t from = entry->from_dtype, to = entry->to_dtype;
	int r = check(kind, entry, err);

	if (r < 0)
		return r;
	*ret = (struct kernels_row){
		.from = entry->from,
		.to = entry->to,
		.numel = entry->numel,
		.padded_numel = entry->padded_numel,
		.part = entry->padded_numel,
		.n_inner = 1,
		.from_dtype = (uint8_t)from,
		.to_dtype = (uint8_t)to,
		.from_size = (uint8_t)dtype_size(from),
		.to_size = (uint8_t)dtype_size(to),
	};
	if (has_chunks(kind, entry) && !is_first_piece(kind, entry))
		place_blocks(kind, entry, ret);
	/* Only copies keep the bits of a NaN; float arithmetic stores one
	 * NaN. */
	if (from == to && (is_copy(kind) || (kind == KERNELS_CHUNK_CAT &&
					     !dtype_is_float(from)))) {
		make_bytes(ret);
		choose_bytes(ret);
	} else {
		choose_elements(ret);
	}
	return 0;
}

uint64_t kernels_row_count_tiles(const struct kernels_row *row)
{
	uint64_t size = UINT64_C(1) << row->tile_shift;

	return (row->padded_numel + size - 1) / size;
}
