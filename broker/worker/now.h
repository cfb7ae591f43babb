#pragma once
#include <stdint.h>
#include <time.h>

/* Returns the monotonic time. */
static inline uint64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}
