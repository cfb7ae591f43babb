/*
 * A plan as those who move its bytes use it: checked, so that no offset in it
 * leads out of the ranges, and seen from the side of the work.
 *
 * Work is a range of bytes of `full` (gathers) or of one rank's `input`
 * (reductions), cut anywhere at multiples of PLAN_ALIGN. Each entry has a span
 * of it; positions in a span are elements of the whole parameter, in the end
 * those of its padding.
 */
#pragma once
#include "collective/plan.h"

struct error;

struct layout_span {
	uint64_t begin, end; /* bytes; whole PLAN_ALIGN */
	const struct plan_entry *entry;
};

struct layout {
	/* Without hash, buckets and caps; its entries are the layout's. */
	struct plan plan;
	struct plan_entry *entries; /* owned */
	/* From 0 on, one behind the other; owned. */
	struct layout_span *full_spans, *input_spans;
	uint32_t n_full_spans, n_input_spans;
};

/*
 * The plan with its entries is copied. -EINVAL with a sentence: anything in it
 * that is not as plan_make() would have it, as far as it leads to bytes. Of the
 * buckets only the numbers count, and only where the plan is per rank.
 */
int layout_new(const struct plan *plan, struct layout **ret, struct error *err);
void layout_free(struct layout *layout); /* NULL is fine */

/* Do all shards lie in `shards` as the parameters do in `full`, so that one
 * memory can be both? */
bool layout_is_in_place(const struct layout *layout);

/* The span that `at` (below the end of the last) lies in. */
const struct layout_span *layout_find(const struct layout_span *spans,
				      uint32_t n, uint64_t at);

/* Positions that lie behind one another in one chunk, too. */
struct shard_range {
	uint32_t shard;
	uint64_t at; /* element of its chunk */
	uint64_t n;
};

/* The range that begins at `position` (below padded_numel), of at most `max`
 * elements. */
struct shard_range layout_range(const struct shard *shard, uint64_t position,
				uint64_t max);

/* Bytes behind the chunk of shard `s` that belong to nothing: up to the next
 * multiple of PLAN_ALIGN, or none. */
uint64_t layout_gap(const struct shard *shard, uint32_t s, uint64_t offset,
		    uint64_t stride, uint32_t element_size);
