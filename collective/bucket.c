/*
 * This is a greedy walk whose only state is the open bucket. A run ends with
 * the next key; a bucket ends with its run, its cap, or (in our form) with an
 * item that depends on it. Items that a filter rejected are skipped.
 */
#include "collective/bucket.h"

#include "proto/error.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define MIB 1048576.0

struct walk {
	const struct bucket_item *items;
	const struct bucket_options *options;
	uint32_t *buckets;  /* of each item */
	uint32_t n_buckets; /* emitted so far */
	uint32_t *open;     /* items of the open bucket, in order */
	uint32_t n_open;    /* 0 if no bucket is open */
	uint64_t open_size; /* bytes */
	uint32_t n_of_run;  /* buckets that were closed in this run */
};

int bucket_check_cap(double cap_mb, struct error *err)
{
	if (isnan(cap_mb))
		return error_set(err, -EINVAL,
				 "a cap of NaN MiB is invalid: give a number "
				 "of 0 or more");
	if (isinf(cap_mb) || cap_mb < 0)
		return error_set(err, -EINVAL,
				 "a cap of %g MiB is invalid: give a finite "
				 "number of 0 or more",
				 cap_mb);
	return 0;
}

uint64_t bucket_cap_bytes(double cap_mb)
{
	double bytes = cap_mb * MIB;

	/* Sizes of 2^64 and more do not fit into the result, but nothing is
	 * that large. */
	return bytes >= 0x1p64 ? UINT64_MAX : (uint64_t)bytes;
}

/* The reference asks only for the first cap, once for each run. */
static uint64_t cap_of(const struct walk *walk)
{
	const struct bucket_options *options = walk->options;
	uint32_t i = options->is_faithful ? 0 : walk->n_of_run;

	if (options->n_caps == 0)
		return bucket_cap_bytes(BUCKET_DEFAULT_CAP_MB);
	if (i >= options->n_caps)
		i = options->n_caps - 1;
	return bucket_cap_bytes(options->caps_mb[i]);
}

static void close_bucket(struct walk *walk)
{
	uint32_t n_min = walk->options->is_faithful ? 2 : 1;

	if (walk->n_open == 0)
		return;
	if (walk->n_open >= n_min) {
		for (uint32_t i = 0; i < walk->n_open; i++)
			walk->buckets[walk->open[i]] = walk->n_buckets;
		walk->n_buckets++;
	}
	walk->n_open = 0;
	walk->open_size = 0;
	walk->n_of_run++;
}

/*
 * Returns whether the item needs an item of the open bucket. All items from the
 * bucket's first one on are in it, were rejected, or (in the faithful form)
 * were dropped because they need an item of it. So it is enough to look at the
 * last item that this one needs: if it does not come before the bucket, it is
 * in the bucket or itself needs an item of it.
 */
static bool is_dependent(const struct walk *walk, uint32_t item)
{
	return walk->n_open > 0 && walk->items[item].n_before > walk->open[0];
}

static bool is_full(const struct walk *walk, uint64_t size)
{
	uint64_t cap = cap_of(walk);

	/* An open bucket can be over its cap if it has a single large item. */
	return walk->n_open > 0 &&
	       (walk->open_size > cap || size > cap - walk->open_size);
}

static void add_item(struct walk *walk, uint32_t item)
{
	uint64_t size = walk->items[item].size;

	if (is_dependent(walk, item)) {
		if (walk->options->is_faithful)
			return;
		close_bucket(walk);
	}
	if (is_full(walk, size))
		close_bucket(walk);
	walk->open[walk->n_open++] = item;
	if (__builtin_add_overflow(walk->open_size, size, &walk->open_size))
		walk->open_size = UINT64_MAX;
}

static void walk_items(struct walk *walk, uint32_t n)
{
	const struct bucket_item *items = walk->items;
	uint64_t key = 0;
	bool is_in_run = false;

	for (uint32_t i = 0; i < n; i++) {
		if (items[i].is_rejected)
			continue;
		if (!is_in_run || items[i].key != key) {
			close_bucket(walk);
			walk->n_of_run = 0;
			key = items[i].key;
			is_in_run = true;
		}
		add_item(walk, i);
	}
	close_bucket(walk);
}

int bucket_plan(const struct bucket_item *items, uint32_t n,
		const struct bucket_options *options, uint32_t *ret_buckets,
		uint32_t *ret_n_buckets, struct error *err)
{
	struct walk walk = {.items = items, .options = options};
	int r;

	for (uint32_t i = 0; i < options->n_caps; i++) {
		r = bucket_check_cap(options->caps_mb[i], err);
		if (r < 0)
			return r;
	}
	/* One more item is allocated, so that the size is never 0. */
	walk.open = calloc((size_t)n + 1, sizeof(*walk.open));
	if (!walk.open)
		return error_nomem(err, "a plan of %u items", n);
	walk.buckets = ret_buckets;
	for (uint32_t i = 0; i < n; i++)
		ret_buckets[i] = BUCKET_NONE;
	walk_items(&walk, n);
	free(walk.open);
	*ret_n_buckets = walk.n_buckets;
	return 0;
}
