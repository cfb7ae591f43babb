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

/* How a program that runs at random was called. */
struct course {
	uint64_t seed;
	unsigned int n;
};

/* Reads "--<what> N" and "--seed S", and prints them with the name of the
 * program, so that the course can be repeated. What is not given stays as it is
 * in `course`. Ends the process with status 2 for any other argument. */
void course_choose(int argc, char **argv, const char *what,
		   struct course *course);

/* Returns the milliseconds of a monotonic clock, which limits how long a test
 * injects faults. */
uint64_t clock_ms(void);
