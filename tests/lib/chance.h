/*
 * Random numbers that can be repeated: all of them depend only on the seed.
 */
#pragma once
#include <stdint.h>

struct chance {
	uint64_t state; /* never 0 */
};

/* Returns a number from 0 to `below` - 1. */
uint32_t draw(struct chance *chance, uint32_t below);

/* Returns the number in that environment variable, or an arbitrary seed if it
 * is not set. */
uint64_t choose_seed(const char *name);

/* Returns the milliseconds of a monotonic clock, which limits how long a test
 * injects faults. */
uint64_t clock_ms(void);
