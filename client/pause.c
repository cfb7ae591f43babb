#include "client/pause.h"
#include <sched.h>
#include <time.h>

#define SPIN_NS 100000

static int64_t now_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t pause_next(struct pause *pause)
{
	int64_t ns = pause->ns;

	if (ns == 0) {
		if (!pause->spin_until_ns)
			pause->spin_until_ns = now_ns() + SPIN_NS;
		if (now_ns() < pause->spin_until_ns)
			return 0;
		ns = PAUSE_MIN_NS;
	}
	pause->ns = ns + ns / pause->growth;
	if (pause->ns > pause->max_ns)
		pause->ns = pause->max_ns;
	return ns;
}

void pause_now(struct pause *pause)
{
	const struct timespec time = {.tv_nsec = (long)pause_next(pause)};

	if (time.tv_nsec)
		(void)nanosleep(&time, NULL);
	else
		(void)sched_yield();
}
