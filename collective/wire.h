/*
 * The wire: how a bucket travels between devices.
 *
 * A *row* is what one rank contributes to a bucket: its chunks, entry after
 * entry at multiples of PLAN_ALIGN, in the dtype that travels (the full one of
 * a gather, the reduce one of a reduction, integers in 64 bits). The *wire* is
 * the rows of all shards behind one another: what comes out of an all-gather,
 * and goes into a reduce-scatter, which leaves a rank's own row reduced. Chunks
 * without a cast lie in a rank's shards as in its row, so that its row of a
 * bucket then is a range of its shards.
 *
 * Rows and wires are scratch of one bucket at a time; they lie behind the whole
 * parameters, or behind a rank's gradients, in one allocation (the tails).
 */
#pragma once
#include "collective/plan.h"

enum wire_kind {
	WIRE_GATHER,
	WIRE_REDUCE,
};

/* The dtype in which it travels; 0: it does not. */
uint32_t wire_dtype(const struct plan_entry *entry, enum wire_kind kind);

/* Bytes of one chunk of the entry on the wire; 0: it does not travel. */
uint64_t wire_chunk_size(const struct plan_entry *entry, enum wire_kind kind);

/* The bucket it travels in; BUCKET_NONE. */
uint32_t wire_bucket(const struct plan_entry *entry, enum wire_kind kind);

/* Fill the offset of each entry's chunk in its row (n_entries of them), and the
 * bytes of each bucket's row (as many as there are buckets of the kind). */
void wire_place(const struct plan *plan, enum wire_kind kind,
		uint64_t *ret_offsets, uint64_t *ret_rows);

/* Does a gather of the bucket cast? Then each rank first makes a row. */
bool wire_has_cast(const struct plan *plan, uint32_t bucket);

/* Does a gather of the bucket arrive as a wire that is then taken apart? Else
 * its chunks arrive where the parameters are whole. */
bool wire_is_flat(const struct plan *plan, uint32_t bucket);

/* Scratch behind the whole parameters: the row from 0 on, then the wire. */
struct wire_gather_tail {
	uint64_t wire_offset; /* of the wire, in the tail */
	uint64_t size;
};
struct wire_gather_tail wire_gather_tail(const struct plan *plan);

/* Bytes of scratch behind a rank's gradients: the wire. */
uint64_t wire_reduce_tail(const struct plan *plan);
