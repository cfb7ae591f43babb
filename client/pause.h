/*
 * Pauses of a thread that looks at a device again and again, because nothing
 * wakes it: at first it only lets others run, since what it waits for is often
 * some microseconds away and a sleep is not shorter than some ten; then it
 * sleeps, longer each time.
 */
#pragma once
#include <stdint.h>

struct pause {
	int64_t spin_until_ns; /* 0: not begun */
	int64_t ns;            /* of the next sleep; 0: none until then */
	int64_t max_ns;
};

#define PAUSE_MIN_NS 10000
#define PAUSE_INIT   ((struct pause){.max_ns = 1000000})

/* How long the next one is; 0: only let others run. */
int64_t pause_next(struct pause *pause);
void pause_now(struct pause *pause);
