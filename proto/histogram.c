#include "proto/histogram.h"

_Static_assert(HISTOGRAM_PARTS == 4, "histogram_bucket() takes two bits");

uint64_t histogram_limit(uint32_t bucket)
{
	uint32_t octave = bucket / HISTOGRAM_PARTS;
	uint32_t part = bucket % HISTOGRAM_PARTS;

	if (bucket >= HISTOGRAM_BUCKETS - 1)
		return UINT64_MAX;
	return (UINT64_C(1) << (HISTOGRAM_FIRST_BITS + octave)) /
	       HISTOGRAM_PARTS * (HISTOGRAM_PARTS + part);
}

uint64_t histogram_n(const struct histogram *histogram)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		n += histogram->counts[i];
	return n;
}
