/*
 * The pace of long work while other processes want the CPU.
 *
 * A thread that never sleeps uses up its share of a CPU, and then waits until
 * all others have used up theirs, some 4 ms each; the clients of the broker
 * would wait with it. So once another process has taken the CPU in the middle
 * of long work, that work takes a ninth of the time, in short rounds with
 * pauses, until two seconds have passed without it. If no process wants the CPU
 * there are no pauses.
 */
#pragma once
#include <stdint.h>

struct pace {
	uint64_t round_ns, round_cpu_ns; /* when the round began */
	uint64_t crowded_until_ns;       /* 0: there was no other process yet */
};

/* Begins a round of long work in this thread. */
void pace_begin(struct pace *pace);
/* Ends a round after which there is more to do. Returns how long to pause in
 * ns; 0: there is no pause. */
uint64_t pace_end(struct pace *pace);
