/*
 * A layout is a checked copy of a plan for the code that moves its bytes: no
 * offset leads out of the ranges of memory. It also has an index from bytes to
 * entries.
 *
 * Work is a range of bytes of `full` (gathers) or of one rank's `input`
 * (reductions), which can begin and end at any multiple of PLAN_ALIGN. Each
 * entry has a span of these bytes. Positions in a span count elements of the
 * whole parameter, and after them those of its padding.
 */
#pragma once
#include "collective/plan.h"

struct error;

struct layout_span {
	uint64_t begin, end; /* bytes; multiples of PLAN_ALIGN */
	const struct plan_entry *entry;
};

struct layout {
	/* Has no hash, no buckets and no caps. Its entries are those of the
	 * layout. */
	struct plan plan;
	struct plan_entry *entries; /* owned */
	/* Owned. The first span begins at 0, and each begins where the one
	 * before ends. */
	struct layout_span *full_spans, *input_spans;
	uint32_t n_full_spans, n_input_spans;
};

/*
 * Copies the plan and its entries. Returns -EINVAL with a sentence if a field
 * that affects memory is not as plan_make() sets it. Of the buckets only the
 * numbers are checked, and only if the plan is per rank.
 */
int layout_new(const struct plan *plan, struct layout **ret, struct error *err);
void layout_free(struct layout *layout); /* `layout` may be NULL */

/* Returns whether all shards have the same offsets in `shards` as the
 * parameters have in `full`, so that one range of memory can be both. */
bool layout_is_in_place(const struct layout *layout);

/* Returns the span with byte `at`, which must be before the end of the last
 * span. */
const struct layout_span *layout_find(const struct layout_span *spans,
				      uint32_t n, uint64_t at);

/* A range of positions that are consecutive in one chunk, too. */
struct shard_range {
	uint32_t shard;
	uint64_t at; /* first element, within the chunk */
	uint64_t n;
};

/* Returns the range that begins at `position` (below padded_numel) and has at
 * most `max` elements. */
struct shard_range layout_range(const struct shard *shard, uint64_t position,
				uint64_t max);

/* Returns how many bytes after the chunk of shard `s` are padding: up to the
 * next multiple of PLAN_ALIGN, or 0 if the next chunk follows directly. */
uint64_t layout_gap(const struct shard *shard, uint32_t s, uint64_t offset,
		    uint64_t stride, uint32_t element_size);
