/*
 * A merge replaces each bucket by a single collective. The collective sends a
 * flat buffer with the operands of all members, and views of the result replace
 * the members' waits.
 *
 *   all-gather      The operands follow one another in the buffer. The gathered
 *                   buffer has a row for each rank; member i is its columns.
 *   reduce-scatter  Row r has the r-th piece of every operand. The result is
 *                   the row of this rank.
 *   all-reduce      The operands follow one another in the buffer and in the
 *                   result.
 *
 * The new nodes follow the last collective of the bucket; users of an earlier
 * wait are moved after them. If an all-gather is the only user of a convert,
 * the convert is removed, because the copy to the buffer converts.
 */
#pragma once
#include "collective/graph.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

#define MERGE_ALIGN     16 /* bytes; alignment of entries with mixed dtypes */
#define MERGE_NAME_SIZE 32

/* How the buffer is filled. All-reduces are always MERGE_TRACED. */
enum merge_form {
	MERGE_TRACED, /* by operations that a compiler can analyse */
	MERGE_OPAQUE, /* by one opaque operation */
	MERGE_LISTED, /* reduce-scatters only: a list, without a buffer */
};

/* The entries in one rank's part of the wire, in units of `dtype`. */
struct merge_layout {
	uint32_t dtype;    /* the smallest dtype of all members */
	uint32_t n_ranks;  /* number of parts; 1 for an all-reduce */
	uint64_t row_size; /* size of one part */
	uint32_t n_entries;
	struct graph_entry *entries; /* owned; in the order of the waits */
};

#define MERGE_LAYOUT_NULL ((struct merge_layout){0})

/*
 * Computes the layout of the collectives that end in `waits`, which all have
 * the same kind and group. If `is_padded` and the dtypes are mixed, entries and
 * rows begin at multiples of MERGE_ALIGN. Returns -EOVERFLOW if the size
 * exceeds 2^62 bytes.
 */
int merge_layout_init(struct merge_layout *layout, const struct graph *graph,
		      const uint32_t *waits, uint32_t n_waits, bool is_padded,
		      struct error *err);
void merge_layout_deinit(struct merge_layout *layout);

struct merge_bucket {
	const uint32_t *waits; /* borrowed, like the layout */
	uint32_t n_waits;
	enum merge_form form;
	const struct merge_layout *layout;
	/* name of the new collective; the names of the other new nodes begin
	 * with it */
	char name[MERGE_NAME_SIZE];
};

/* The suffixes for the names of the buffer, the copy into it, and the wait. */
#define MERGE_N_SUFFIXES 3
extern const char *const merge_suffixes[MERGE_N_SUFFIXES];

/*
 * Merges all `buckets` of a checked `graph` and returns the new graph in `ret`;
 * `graph` is not changed. No member of a bucket may depend on another one, no
 * bucket may depend on a later one, and the names must be unused.
 */
int merge_buckets(const struct graph *graph, const struct merge_bucket *buckets,
		  uint32_t n_buckets, struct graph *ret, struct error *err);
