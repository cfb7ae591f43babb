/*
 * Chance that can be repeated: all of it follows from one seed.
 */
#pragma once
#include <stdint.h>

struct chance {
	uint64_t state; /* not 0 */
};

/* Below `below`, and not negative. */
uint32_t draw(struct chance *chance, uint32_t below);

/* What the environment has under that name, else any. */
uint64_t choose_seed(const char *name);

/* Of a clock that only goes on; for how long to make trouble. */
uint64_t clock_ms(void);
