/*
 * The clock of the broker's deadlines, which counts the time of suspends.
 */
#pragma once
#include <stdint.h>
#include <time.h>

/* Returns CLOCK_BOOTTIME in milliseconds. */
static inline uint64_t now_ms(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
