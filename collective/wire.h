/*
 * The wire is the buffer that is sent for a bucket between devices.
 *
 * A *row* is one rank's contribution to a bucket: its chunks, one entry after
 * another at multiples of PLAN_ALIGN, in the dtype that is sent (for a gather
 * the full dtype, for a reduction the reduce dtype, with integers in 64 bits).
 * The *wire* is the rows of all shards, one after another. It is the output of
 * an all-gather, and the input of a reduce-scatter, which leaves the rank's own
 * row reduced. If chunks are not cast, they have the same layout in a rank's
 * shards as in its row, so the row of a bucket is a range of the shards.
 *
 * Rows and wires are scratch memory, which one bucket uses at a time. They
 * follow the whole parameters, or a rank's gradients, in the same allocation
 * (the tail).
 */
#pragma once
#include "collective/plan.h"

enum wire_kind {
	WIRE_GATHER,
	WIRE_REDUCE,
};

/* Returns the dtype in which the entry is sent, or 0 if it is not sent. */
uint32_t wire_dtype(const struct plan_entry *entry, enum wire_kind kind);

/* Returns the bytes of one chunk of the entry in its row, or 0 if it is not
 * sent. */
uint64_t wire_chunk_size(const struct plan_entry *entry, enum wire_kind kind);

/* Returns the bucket of the entry, or BUCKET_NONE. */
uint32_t wire_bucket(const struct plan_entry *entry, enum wire_kind kind);

/* Returns the number of buckets of this kind. */
uint32_t wire_count_buckets(const struct plan *plan, enum wire_kind kind);

/* Sets `ret_offsets` (n_entries entries) to the offset of each entry's chunk in
 * its row, and `ret_rows` (one entry for each bucket of this kind) to the bytes
 * of each bucket's row. */
void wire_place(const struct plan *plan, enum wire_kind kind,
		uint64_t *ret_offsets, uint64_t *ret_rows);

/* Returns whether a gather of the bucket casts. If so, each rank fills its row
 * first. */
bool wire_has_cast(const struct plan *plan, uint32_t bucket);

/* Returns whether a gather of the bucket fills the wire, from which the entries
 * are then copied. If not, its chunks are gathered directly to the whole
 * parameters. */
bool wire_is_flat(const struct plan *plan, uint32_t bucket);

/* The scratch memory after the whole parameters: first the row, then the
 * wire. */
struct wire_gather_tail {
	uint64_t wire_offset; /* offset of the wire in the tail */
	uint64_t size;
};
struct wire_gather_tail wire_gather_tail(const struct plan *plan);

/* Returns the bytes of scratch memory after a rank's gradients: the wire. */
uint64_t wire_reduce_tail(const struct plan *plan);
