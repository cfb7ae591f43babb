/*
 * Tests that every duration has one bucket, and lies between its limits.
 */
#include "proto/histogram.h"
#include "tests/lib/check.h"

TestSuite(histogram, .timeout = 300);

static void check(uint64_t ns)
{
	uint32_t bucket = histogram_bucket(ns);

	cr_assert(lt(u32, bucket, HISTOGRAM_BUCKETS));
	cr_expect(bucket == HISTOGRAM_BUCKETS - 1 ||
			  ns < histogram_limit(bucket),
		  "%lu", (unsigned long)ns);
	if (bucket > 0)
		cr_expect(ge(u64, ns, histogram_limit(bucket - 1)));
}

Test(histogram, a_duration_is_between_the_limits_of_its_bucket)
{
	for (uint32_t bit = 0; bit < 64; bit++) {
		for (uint64_t part = 0; part < 16; part++) {
			uint64_t ns = (UINT64_C(1) << bit) / 16 * (16 + part);

			check(ns);
			check(ns - 1);
			check(ns + 1);
		}
	}
	check(0);
	check(UINT64_MAX);
}

Test(histogram, limits_grow_by_a_quarter_of_a_power_of_2)
{
	cr_expect(eq(u64, histogram_limit(0), 1024));
	cr_expect(eq(u64, histogram_limit(1), 1280));
	cr_expect(eq(u64, histogram_limit(4), 2048));
	cr_expect(eq(u64, histogram_limit(HISTOGRAM_BUCKETS - 2),
		     UINT64_C(1) << HISTOGRAM_LAST_BITS));
	cr_expect(eq(u64, histogram_limit(HISTOGRAM_BUCKETS - 1), UINT64_MAX));
	for (uint32_t i = 1; i < HISTOGRAM_BUCKETS; i++)
		cr_expect(gt(u64, histogram_limit(i), histogram_limit(i - 1)));
}

Test(histogram, durations_are_counted_and_summed)
{
	struct histogram histogram = {0};

	histogram_add(&histogram, 0);
	histogram_add(&histogram, 1500);
	histogram_add(&histogram, 1500);
	histogram_add(&histogram, UINT64_C(1) << 40);
	cr_expect(eq(u64, histogram_n(&histogram), 4));
	cr_expect(eq(u64, histogram.sum_ns, 3000 + (UINT64_C(1) << 40)));
	cr_expect(eq(u64, histogram.counts[histogram_bucket(1500)], 2));
}
