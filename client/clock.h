/*
 * The clock of all time limits in libfsdp.
 */
#pragma once
#include <stdint.h>
#include <time.h>

static inline int64_t clock_read_ms(clockid_t clock)
{
	struct timespec now;

	(void)clock_gettime(clock, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Return CLOCK_MONOTONIC in milliseconds. */
static inline int64_t clock_now_ms(void)
{
	return clock_read_ms(CLOCK_MONOTONIC);
}

/* Return the time of the last tick of CLOCK_MONOTONIC, up to 10 ms ago. The
 * hot calls read this clock, since it takes less time. */
static inline int64_t clock_tick_ms(void)
{
	return clock_read_ms(CLOCK_MONOTONIC_COARSE);
}
