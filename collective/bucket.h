/*
 * A bucket is a list of neighbouring collectives that are sent together.
 *
 * bucket_plan() is a pure function of the ordered items, their keys, their
 * sizes and the caps, so every rank that calls it computes the same buckets.
 * The rule is that of PyTorch's greedy bucketing
 * (torch/_inductor/fx_passes/bucketing.py): the eligible items are visited in
 * order; neighbours with equal keys form a run; a run is divided into buckets
 * whose size is at most a cap. An item that is larger than the cap is a bucket
 * of its own.
 *
 * We differ from PyTorch, the reference, in three ways unless `is_faithful` is
 * set:
 *   - an item that depends on an item of the open bucket begins the next bucket
 *     (the reference never puts it into any bucket);
 *   - each bucket of a run has its own cap (the reference uses the first cap
 *     for all buckets);
 *   - a bucket can have a single item (the reference leaves such an item out).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

#define BUCKET_NONE           UINT32_MAX
#define BUCKET_DEFAULT_CAP_MB 2000.0 /* MiB */

struct bucket_item {
	uint64_t key;     /* equal keys may share a bucket */
	uint64_t size;    /* bytes: the larger of input and result */
	bool is_rejected; /* by a filter; it is skipped and ends no run */
	/* The items that this one needs, directly or through others, all come
	 * before it. This is the index of the last of them that is not
	 * rejected, plus 1; it is 0 if this item needs none of them. */
	uint32_t n_before;
};

struct bucket_options {
	/* The cap of the i-th bucket of a run, in MiB. The last cap applies to
	 * all later buckets. If n_caps is 0, all caps are
	 * BUCKET_DEFAULT_CAP_MB. */
	const double *caps_mb;
	uint32_t n_caps;
	bool is_faithful;
};

/* Checks a cap that was given by a user. Returns -EINVAL if it is NaN, infinite
 * or negative. With a cap of 0 only items without bytes share a bucket. */
int bucket_check_cap(double cap_mb, struct error *err);

/* Returns the cap in bytes, rounded down. */
uint64_t bucket_cap_bytes(double cap_mb);

/*
 * Sets `ret_buckets` (n entries) to the number of each item's bucket, or to
 * BUCKET_NONE. Buckets are numbered from 0 in their order; `ret_n_buckets` is
 * their number. Returns -EINVAL if a cap is invalid.
 */
int bucket_plan(const struct bucket_item *items, uint32_t n,
		const struct bucket_options *options, uint32_t *ret_buckets,
		uint32_t *ret_n_buckets, struct error *err);
