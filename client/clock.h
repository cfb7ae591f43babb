/*
 * The clock of all time limits in libfsdp.
 */
#pragma once
#include <stdint.h>
#include <time.h>

/* Return CLOCK_MONOTONIC in milliseconds. */
static inline int64_t clock_now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
