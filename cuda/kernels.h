/*
 * Kernels: the copies, casts and divisions around collectives, one launch each
 * for any number of parameters.
 *
 *   copy-in    a rank's chunks, cast, to where an all-gather takes them
 *   copy-out   what was gathered, rank after rank, cast, to whole parameters
 *   chunk-cat  whole gradients, cast and scaled, to the input of a
 *              reduce-scatter, rank after rank
 *   grad-out   reduced chunks, divided and cast, to gradients, or added to them
 *
 * What is moved is a table of entries, made and uploaded once, for example per
 * plan. A launch names some of the table's entries and the two memories that
 * their offsets count from; it allocates, copies and waits for nothing, so it
 * may go behind a wait, and into a graph.
 *
 * One element x (kernel.h of the worker has the accumulators; all roundings are
 * to nearest even; integers wrap and are divided towards zero):
 *
 *   copy-in, copy-out  x cast; between equal dtypes its bits as they are
 *   chunk-cat          y = x cast; then y * factor in the accumulator of y's
 *                      dtype, rounded to it
 *   grad-out           y = x / factor in the accumulator of x's dtype, cast;
 *                      where it is added: old + y in the accumulator of y's
 *                      dtype, rounded to it
 *
 * which are the steps of collective/host/reduce.h, with its bits. But for
 * copies of equal dtypes, a NaN that is stored is the quiet one without sign.
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
 * One parameter. Offsets may be anything that the dtype's alignment allows;
 * multiples of KERNELS_ALIGN are fast. An entry may also be absolute: its
 * offset is then the address, and the launch's memory is 0.
 *
 * The whole side is one range of elements. A copy-out's or chunk-cat's other
 * side has for each rank a chunk, `stride` bytes behind that of the rank before
 * it, with n_rows pieces of part_numel elements each; whole, row after row
 * consists of all ranks' pieces. In terms of struct shard: n_rows is n_rows,
 * and part_numel is chunk * row_numel. For copy-in and grad-out, whose two
 * sides are plain ranges, these four are not looked at.
 *
 * Elements from numel to padded_numel are written as zeros (copy-out: behind
 * the whole parameter; chunk-cat: where the chunks have padding, so that here
 * padded_numel is n_ranks * n_rows * part_numel). numel 0 fills with zeros.
 * What lies between chunks is not written.
 */
struct kernels_entry {
	uint64_t from, to;             /* offsets in bytes */
	uint32_t from_dtype, to_dtype; /* enum dtype */
	uint64_t numel, padded_numel;
	uint32_t n_ranks;
	uint64_t stride; /* bytes */
	uint64_t n_rows, part_numel;
};

/* The image's kernels, once per process; later calls give the first one's
 * result. Thread-safe. driver_load()'s errors; -ENOSYS: this build has none, or
 * they are not for this driver. */
int kernels_load(struct error *err);

struct kernels_table; /* opaque */

/*
 * Make a table on the device, for one kind (kernels_load() is implied).
 * Allocates on the device and waits: not to be called behind a stream that
 * waits for something to come. -EINVAL with a sentence that names the entry:
 * dtypes that are not cast (floats of 16 to 64 bits are, to each other; for
 * chunk-cat and grad-out integers, to 64 bits and back), an offset or stride
 * that is no multiple of the dtype's size, sizes that contradict each other;
 * too many entries. `n` may be 0.
 */
int kernels_table_new(const struct device *device, enum kernels_kind kind,
		      const struct kernels_entry *entries, uint32_t n,
		      struct kernels_table **ret, struct error *err);
/* No launch with it may be under way. NULL is fine. */
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
 * Enqueue it; one kernel, or none if there is nothing to do. `from` and `to`
 * of all its entries do not overlap. -EINVAL: a range that the table does not
 * have, a memory that is not aligned, a factor that is none. The stream is one
 * of the table's device; NULL is not one.
 */
int kernels_launch(const struct kernels_launch *launch, CUstream stream,
		   struct error *err);

/* Bytes of elements that such a launch reads and writes: what its time is to be
 * compared with, at the device's copy bandwidth. */
uint64_t kernels_count_bytes(const struct kernels_launch *launch);
