/*
 * Histograms of durations, which the broker keeps and clients read.
 *
 * Buckets are log-linear: each power of 2 from 1,024 ns (about 1 us) to 2^33 ns
 * (about 8.6 s) is divided into four buckets of equal width, so a duration is
 * known to within a quarter of its value. The first bucket has all shorter
 * durations, the last bucket all longer ones.
 */
#pragma once
#include <stdint.h>

#define HISTOGRAM_FIRST_BITS 10 /* log2 of the limit of the first bucket */
#define HISTOGRAM_LAST_BITS  33
#define HISTOGRAM_PARTS      4
#define HISTOGRAM_BUCKETS                                                      \
	((HISTOGRAM_LAST_BITS - HISTOGRAM_FIRST_BITS) * HISTOGRAM_PARTS + 2)

struct histogram {
	uint64_t sum_ns; /* of all durations */
	uint64_t counts[HISTOGRAM_BUCKETS];
};

/* Returns the bucket of a duration. */
static inline uint32_t histogram_bucket(uint64_t ns)
{
	uint32_t bits;

	if (ns >> HISTOGRAM_FIRST_BITS == 0)
		return 0;
	if (ns >> HISTOGRAM_LAST_BITS != 0)
		return HISTOGRAM_BUCKETS - 1;
	bits = 63 - (uint32_t)__builtin_clzll(ns);
	return 1 + (bits - HISTOGRAM_FIRST_BITS) * HISTOGRAM_PARTS +
	       (ns >> (bits - 2) & (HISTOGRAM_PARTS - 1));
}

/* Returns the shortest duration above that bucket, or UINT64_MAX for the last
 * bucket. */
uint64_t histogram_limit(uint32_t bucket);

static inline void histogram_add(struct histogram *histogram, uint64_t ns)
{
	histogram->sum_ns += ns;
	histogram->counts[histogram_bucket(ns)]++;
}

/* Returns the number of durations. */
uint64_t histogram_n(const struct histogram *histogram);
