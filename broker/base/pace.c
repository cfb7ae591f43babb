#include "broker/base/pace.h"
#include <time.h>
#include <uv.h>

/* Shorter losses are caused by clients that are woken, and do not last. */
#define LOST_NS    1000000
#define CROWDED_NS 2000000000ull
/* The pause is this multiple of the work before it. */
#define PAUSE 8

static uint64_t cpu_ns(void)
{
	struct timespec used = {0};

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

void pace_begin(struct pace *pace)
{
	pace->round_ns = uv_hrtime();
	pace->round_cpu_ns = cpu_ns();
}

uint64_t pace_end(struct pace *pace)
{
	uint64_t worked_ns = cpu_ns() - pace->round_cpu_ns;
	uint64_t now_ns = uv_hrtime();

	if (now_ns - pace->round_ns >= worked_ns + LOST_NS)
		pace->crowded_until_ns = now_ns + CROWDED_NS;
	return now_ns < pace->crowded_until_ns ? PAUSE * worked_ns : 0;
}
