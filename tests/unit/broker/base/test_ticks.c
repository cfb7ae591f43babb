/*
 * Tests that the cheap clock runs as fast as the system's, and never differs
 * much from it.
 */
#include "broker/base/ticks.h"
#include "tests/lib/check.h"
#include <uv.h>

TestSuite(ticks, .timeout = 300);

/* Call both until the rate has been measured. */
static bool measure(struct ticks *ticks)
{
	uint64_t end_ns = uv_hrtime() + UINT64_C(20000000000);

	ticks_init(ticks);
	while (ticks->is_used && !ticks->rate && uv_hrtime() < end_ns)
		ticks_sync(ticks);
	return ticks->rate > 0;
}

Test(ticks, ticks_show_the_time_of_the_system_clock)
{
	struct ticks ticks;
	uint64_t before_ns, now_ns, after_ns, slack_ns;

	if (!measure(&ticks))
		cr_skip("the kernel keeps time by another clock");
	for (int i = 0; i < 1000; i++) {
		before_ns = uv_hrtime();
		now_ns = ticks_now(&ticks);
		after_ns = uv_hrtime();
		/* The rate is known to 2 us in the 1 ms of its measurement. */
		slack_ns = 10000 + (after_ns - ticks.at_ns) / 100;
		cr_assert(ge(u64, now_ns + slack_ns, before_ns));
		cr_assert(le(u64, now_ns, after_ns + slack_ns));
	}
}

Test(ticks, before_the_rate_is_measured_ticks_read_the_system_clock)
{
	struct ticks ticks = {0};
	uint64_t before_ns = uv_hrtime(), now_ns = ticks_now(&ticks);

	cr_expect(ge(u64, now_ns, before_ns));
	cr_expect(le(u64, now_ns, uv_hrtime()));
}

/* A suspend may reset the counter. */
Test(ticks, a_counter_that_went_back_stops_the_clock_until_it_is_synchronised)
{
	struct ticks ticks;
	uint64_t rate;

	if (!measure(&ticks))
		cr_skip("the kernel keeps time by another clock");
	rate = ticks.rate;
	ticks.at_tick = UINT64_MAX;
	cr_expect(eq(u64, ticks_now(&ticks), ticks.at_ns));
	ticks_sync(&ticks);
	cr_expect(eq(u64, ticks.rate, rate));
}
