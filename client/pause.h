/*
 * Pauses of a thread that polls a device, because nothing wakes it. At first it
 * only yields, since the wait often ends within microseconds and a sleep takes
 * at least ten. Then it sleeps, each time a little longer, so that it notices
 * the end late by at most a few per cent of the time that it has waited.
 */
#pragma once
#include <stdint.h>

struct pause {
	int64_t spin_until_ns; /* 0: the first pause has not begun */
	/* length of the next sleep; 0: it still yields */
	int64_t ns;
	int64_t max_ns;
	/* each sleep is longer than the last one by 1/growth of it */
	int64_t growth;
};

#define PAUSE_MIN_NS 10000
#define PAUSE_INIT   ((struct pause){.max_ns = 1000000, .growth = 32})

/* Return the length of the next sleep; 0: only yield. */
int64_t pause_next(struct pause *pause);
void pause_now(struct pause *pause);
