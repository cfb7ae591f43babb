/*
 * Kernels: the copies, casts and divisions around collectives, with one launch
 * each for any number of parameters.
 *
 *   copy-in    a rank's chunks, cast, to the input of an all-gather
 *   copy-out   gathered chunks, rank after rank, cast, to whole parameters
 *   chunk-cat  whole gradients, cast and scaled, to the input of a
 *              reduce-scatter, rank after rank
 *   grad-out   reduced chunks, divided and cast, to gradients, or added to them
 *
 * A table of entries says what is moved; it is made and uploaded once, for
 * example per plan. A launch names some of the table's entries and the two
 * memories that their offsets refer to. It neither allocates nor copies nor
 * waits, so it may follow a stream wait and may be part of a graph.
 *
 * One element x (kernel.h of the worker has the accumulators; all roundings are
 * to nearest even; integers wrap and are divided towards zero):
 *
 *   copy-in, copy-out  x cast; between equal dtypes its bits unchanged
 *   chunk-cat          y = x cast; then y * factor in the accumulator of y's
 *                      dtype, rounded to it
 *   grad-out           y = x / factor in the accumulator of x's dtype, cast;
 *                      where it is added: old + y in the accumulator of y's
 *                      dtype, rounded to it
 *
 * These are the steps of collective/host/reduce.h, and give the same bits.
 * Except in copies between equal dtypes, a stored NaN is the quiet NaN without
 * sign.
 */
#pragma once
#include "cuda/device.h"

#define KERNELS_MAX_ENTRIES 1024 /* of one table */
#define KERNELS_ALIGN       16   /* of the memories that offsets count from */

enum kernels_kind {
	KERNELS_COPY_IN,
	KERNELS_COPY_OUT,
	KERNELS_CHUNK_CAT,
	KERNELS_GRAD_OUT,
	N_KERNELS,
};

/*
 * One parameter. Offsets may be any multiple of the dtype's alignment;
 * multiples of KERNELS_ALIGN are fast. An entry may also be absolute: then its
 * offset is the address, and the launch's memory is 0.
 *
 * The whole side is one range of elements. The other side of a copy-out or
 * chunk-cat has one chunk for each rank, `stride` bytes apart, with n_rows
 * pieces of part_numel elements each; each row of the whole side consists of
 * the pieces of all ranks. In terms of struct shard: n_rows is n_rows, and
 * part_numel is chunk * row_numel. Both sides of copy-in and grad-out are plain
 * ranges, for which these four fields are ignored.
 *
 * Elements from numel to padded_numel are written as zeros (copy-out: after the
 * whole parameter; chunk-cat: where the chunks have padding, so that there
 * padded_numel is n_ranks * n_rows * part_numel). With numel 0 everything is
 * zeros. Bytes between chunks are not written.
 */
struct kernels_entry {
	uint64_t from, to;             /* offsets in bytes */
	uint32_t from_dtype, to_dtype; /* enum dtype */
	uint64_t numel, padded_numel;
	uint32_t n_ranks;
	uint64_t stride; /* bytes */
	uint64_t n_rows, part_numel;
};

/* Load the image's kernels, once per process; later calls return the first
 * result. Thread-safe. Errors of driver_load(); -ENOSYS: this build has no
 * kernels, or none for this driver. */
int kernels_load(struct error *err);

struct kernels_table; /* opaque */

/*
 * Make a table on the device, for one kind; kernels_load() is implied. It
 * allocates device memory and waits, so it must not be called after enqueuing a
 * stream wait for a later event. -EINVAL names the entry: dtypes that cannot be
 * cast (floats of 16 to 64 bits can be cast to each other; for chunk-cat and
 * grad-out integers, to 64 bits and back), an offset or stride that is not a
 * multiple of the dtype's size, sizes that contradict each other, or too many
 * entries. `n` may be 0.
 */
int kernels_table_new(const struct device *device, enum kernels_kind kind,
		      const struct kernels_entry *entries, uint32_t n,
		      struct kernels_table **ret, struct error *err);
/* No launch that uses it may be under way. NULL is allowed. */
void kernels_table_free(struct kernels_table *table);

struct kernels_launch {
	const struct kernels_table *table;
	uint32_t first, n_entries; /* entries [first, first + n_entries) */
	CUdeviceptr from, to;      /* multiples of KERNELS_ALIGN, or 0 */
	double factor; /* chunk-cat: times it; grad-out: by it; 1: neither. For
			  integers: 1, or (grad-out) whole, to 2^53 */
	bool is_added; /* grad-out: to what is there */
};

/*
 * Enqueue it: one kernel, or none if there is nothing to do. The memory of
 * `from` and `to` must not overlap in any entry. -EINVAL: a range outside the
 * table, memory that is not aligned, or an invalid factor. The stream belongs
 * to the table's device and is not NULL.
 */
int kernels_launch(const struct kernels_launch *launch, CUstream stream,
		   struct error *err);
