/*
 * Buckets become single collectives: a flat buffer of all members goes over
 * the wire once, and views of it take the places of the members' waits.
 *
 *   all-gather      buffer = operands behind one another; the gathered buffer
 *                   is one row for each rank, and member i its columns
 *   reduce-scatter  row r = the r-th piece of every operand; the result is the
 *                   rank's row
 *   all-reduce      operands behind one another, in and out
 *
 * The new nodes stand behind the last collective of the bucket; users of an
 * earlier wait move behind them. A convert in front of an all-gather that
 * nothing else uses goes, since the copy into the buffer converts.
 */
#pragma once
#include "collective/graph.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

#define MERGE_ALIGN     16 /* bytes; of entries in buckets of mixed dtypes */
#define MERGE_NAME_SIZE 32

/* How the buffer is filled. All-reduces are always traced. */
enum merge_form {
	MERGE_TRACED, /* by operations that a compiler can see through */
	MERGE_OPAQUE, /* by one operation */
	MERGE_LISTED, /* reduce-scatters: not at all; they go as a list */
};

/* What lies where in one rank's part of the wire, in units of `dtype`. */
struct merge_layout {
	uint32_t dtype;    /* the smallest of all members' */
	uint32_t n_ranks;  /* with a part each; 1 for an all-reduce */
	uint64_t row_size; /* of one part */
	uint32_t n_entries;
	struct graph_entry *entries; /* owned; in the order of the waits */
};

#define MERGE_LAYOUT_NULL ((struct merge_layout){0})

/*
 * The layout of the collectives that end in `waits`, which are of one kind and
 * group. With `is_padded` entries of mixed dtypes begin at multiples of
 * MERGE_ALIGN, and so does each row. -EOVERFLOW: it does not fit in 2^62
 * bytes.
 */
int merge_layout_init(struct merge_layout *layout, const struct graph *graph,
		      const uint32_t *waits, uint32_t n_waits, bool is_padded,
		      struct error *err);
void merge_layout_deinit(struct merge_layout *layout);

struct merge_bucket {
	const uint32_t *waits; /* borrowed, as the layout */
	uint32_t n_waits;
	enum merge_form form;
	const struct merge_layout *layout;
	char name[MERGE_NAME_SIZE]; /* of the new collective; others' begin
				     * with it (MERGE_SUFFIXES) */
};

/* Behind the name: the buffer, what is copied into it, and the wait. */
#define MERGE_N_SUFFIXES 3
extern const char *const merge_suffixes[MERGE_N_SUFFIXES];

/*
 * Rewrite all `buckets` of `graph`, which is checked and stays as it is. No
 * member of a bucket may depend on another one, nor a bucket on a later one,
 * and no name may be taken.
 */
int merge_buckets(const struct graph *graph, const struct merge_bucket *buckets,
		  uint32_t n_buckets, struct graph *ret, struct error *err);
