/*
 * Buckets: which neighbouring collectives travel together.
 *
 * A pure function of the ordered items, their keys, sizes and the caps, so that
 * every rank that computes it gets the same. The rule is that of PyTorch's
 * greedy bucketing (torch/_inductor/fx_passes/bucketing.py): walk the items
 * that are eligible in order; neighbours of equal key form a run; a run is cut
 * into buckets under a cap, a single larger item being accepted alone.
 *
 * Where we are better, and `is_faithful` is as the reference is:
 *   - an item that depends on one in the open bucket begins the next bucket
 *     (the reference drops it for good);
 *   - the cap is looked up anew for every bucket of a run (the reference uses
 *     the first for all);
 *   - a bucket of one is a bucket (the reference leaves it out).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

#define BUCKET_NONE           UINT32_MAX
#define BUCKET_DEFAULT_CAP_MB 2000.0 /* of 1,048,576 bytes */

struct bucket_item {
	uint64_t key;     /* equal keys may share a bucket */
	uint64_t size;    /* bytes: the larger of what goes in and comes out */
	bool is_rejected; /* by a filter: takes no part and ends no run */
	/* Of the items that are not rejected and whose result this one needs,
	 * over any path: how many there are up to the last of them, itself
	 * included (its index + 1). 0: it needs none. No item needs a later
	 * one. */
	uint32_t n_before;
};

struct bucket_options {
	/* Cap of the i-th bucket of a run, in MiB; the last holds for all that
	 * follow. n_caps 0: BUCKET_DEFAULT_CAP_MB. */
	const double *caps_mb;
	uint32_t n_caps;
	bool is_faithful;
};

/* A cap from outside: -EINVAL with a sentence if it is NaN, infinite or
 * negative. 0 is a cap: only items without bytes share a bucket then. */
int bucket_check_cap(double cap_mb, struct error *err);

/* The bytes of a cap: truncated. */
uint64_t bucket_cap_bytes(double cap_mb);

/*
 * Fill `ret_buckets` (n entries): the number of the bucket of each item, from
 * 0 in order, or BUCKET_NONE. `ret_n_buckets`: how many. -EINVAL: a cap.
 */
int bucket_plan(const struct bucket_item *items, uint32_t n,
		const struct bucket_options *options, uint32_t *ret_buckets,
		uint32_t *ret_n_buckets, struct error *err);
