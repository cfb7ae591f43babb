/*
 * Random numbers that can be repeated: all of them follow from one seed.
 */
#pragma once
#include <stdint.h>

struct chance {
	uint64_t state; /* never 0 */
};

/* Returns a number from 0 to `below` - 1. */
uint32_t draw(struct chance *chance, uint32_t below);

/* Returns the environment variable of that name if it is set, else an arbitrary
 * seed. */
uint64_t choose_seed(const char *name);

/* Returns milliseconds of a monotonic clock, by which a test limits how long it
 * makes trouble. */
uint64_t clock_ms(void);
