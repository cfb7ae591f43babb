#include "client/pause.h"
#include "shm/bell.h"
#include <sched.h>
#include <time.h>

#define SPIN_NS 100000

int64_t pause_next(struct pause *pause)
{
	int64_t ns = pause->ns;

	if (ns == 0) {
		if (!pause->spin_until_ns)
			pause->spin_until_ns = bell_now_ns() + SPIN_NS;
		if (bell_now_ns() < pause->spin_until_ns)
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
