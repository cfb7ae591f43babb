/*
 * Kernels do the copies, casts and divisions before and after collectives. One
 * launch handles any number of parameters.
 *
 *   copy-in    casts a rank's chunks to the input of an all-gather
 *   copy-out   casts gathered chunks, one rank after another, to whole
 *              parameters
 *   chunk-cat  casts and scales whole gradients to the input of a
 *              reduce-scatter, one rank after another
 *   grad-out   divides and casts reduced chunks to gradients, or adds them
 *
 * A table of entries says what is moved. It is made and uploaded once, for
 * example for each plan. A launch selects entries of the table, and has the two
 * memories to which their offsets refer. It neither allocates nor copies nor
 * waits, so it may follow a stream wait and may be part of a graph.
 *
 * Each element x is computed as follows. (collective/host/kernel.h describes
 * the accumulators. All roundings are to nearest even; integers wrap and are
 * divided towards zero.)
 *
 *   copy-in, copy-out  x cast; its bits are unchanged between equal dtypes
 *   chunk-cat          y = x cast; then y * factor in the accumulator of y's
 *                      dtype, rounded to it
 *   grad-out           y = x / factor in the accumulator of x's dtype, cast; if
 *                      it is added: old + y in the accumulator of y's dtype,
 *                      rounded to it
 *
 * These are the steps of collective/host/reduce.h, and give the same bits.
 * Except in copies between equal dtypes, a stored NaN is the quiet NaN without
 * sign.
 */
#pragma once
#include "cuda/device.h"

#define KERNELS_MAX_ENTRIES 1024 /* entries of a table */
#define KERNELS_ALIGN       16   /* alignment of the memories */

enum kernels_kind {
	KERNELS_COPY_IN,
	KERNELS_COPY_OUT,
	KERNELS_CHUNK_CAT,
	KERNELS_GRAD_OUT,
	N_KERNELS,
};

/*
 * One parameter. Offsets may be any multiple of the dtype's alignment;
 * multiples of KERNELS_ALIGN are fast. An entry can also be absolute: its
 * offset is then the address, and the memory of the launch is 0.
 *
 * The whole side is one range of elements. The other side of a copy-out or
 * chunk-cat has one chunk for each rank, `stride` bytes apart, with n_rows
 * pieces of part_numel elements each; each row of the whole side consists of
 * the pieces of all ranks. In terms of struct shard, n_rows is n_rows, and
 * part_numel is chunk * row_numel. Both sides of copy-in and grad-out are
 * contiguous ranges, for which these four fields are ignored.
 *
 * Elements from numel to padded_numel are written as zeros. For a copy-out they
 * follow the whole parameter. For a chunk-cat they are the padding of the
 * chunks, so padded_numel is n_ranks * n_rows * part_numel. With numel 0 all
 * elements are zeros. Bytes between chunks are not written.
 */
struct kernels_entry {
	uint64_t from, to;             /* offsets in bytes */
	uint32_t from_dtype, to_dtype; /* enum dtype */
	uint64_t numel, padded_numel;
	uint32_t n_ranks;
	uint64_t stride; /* in bytes */
	uint64_t n_rows, part_numel;
};

/* Loads the kernels of this binary, once per process; later calls return the
 * first result. It is thread-safe. Fails like driver_load(), and with -ENOSYS
 * if this build has no kernels, or none for this driver. */
int kernels_load(struct error *err);

struct kernels_table; /* opaque */

/*
 * Makes a table of one kind on the device; it calls kernels_load(). It
 * allocates device memory and waits, so it must not be called after enqueuing a
 * stream wait for a later event. `n` may be 0. Returns -EINVAL, with the entry
 * in the sentence, if a dtype cannot be cast to the other (floats of 16 to 64
 * bits can be cast to each other; in chunk-cat and grad-out integers can be
 * cast to 64 bits and back); if an offset or stride is not a multiple of the
 * dtype's size; if sizes contradict each other; or if there are too many
 * entries.
 */
int kernels_table_new(const struct device *device, enum kernels_kind kind,
		      const struct kernels_entry *entries, uint32_t n,
		      struct kernels_table **ret, struct error *err);
/* No launch that uses the table may be under way. `table` may be NULL. */
void kernels_table_free(struct kernels_table *table);

struct kernels_launch {
	const struct kernels_table *table;
	uint32_t first, n_entries; /* the entries [first, first + n_entries) */
	/* each a multiple of KERNELS_ALIGN; 0 if absolute */
	CUdeviceptr from, to;
	/* chunk-cat multiplies by it, grad-out divides by it; 1 does nothing.
	 * For integers it is 1, or in grad-out a whole number up to 2^53. */
	double factor;
	bool is_added; /* grad-out: adds to the old value */
};

/*
 * Enqueues the launch: one kernel, or none if there is nothing to do. The
 * memory of `from` and `to` must not overlap in any entry. The stream belongs
 * to the table's device and is not NULL. Returns -EINVAL if the range is
 * outside the table, the memory is not aligned, or the factor is invalid.
 */
int kernels_launch(const struct kernels_launch *launch, CUstream stream,
		   struct error *err);
