/*
 * Sleeps that a signal to the caller may end.
 */
#include "client/interrupt.h"
#include "client/clock.h"
#include "proto/error.h"
#include <errno.h>
#include <sched.h>
#include <time.h>

_Thread_local struct interrupt interrupt_of_thread;

int interrupt_refuse(struct error *err)
{
	return error_set(
		err, -EINTR,
		"the wait was interrupted by a signal; the request may still "
		"be carried out, but this process gets nothing from it");
}

bool interrupt_is_due(const struct interrupt *interrupt, bool is_cut,
		      int64_t *asked_ms)
{
	int64_t now_ms;

	if (!interrupt->fn)
		return false;
	now_ms = clock_now_ms();
	if (!is_cut && now_ms - *asked_ms < INTERRUPT_SLICE_MS)
		return false;
	*asked_ms = now_ms;
	return true;
}

int interrupt_sleep(const struct interrupt *interrupt, int64_t ns,
		    int64_t *asked_ms, struct error *err)
{
	const struct timespec time = {.tv_sec = ns / 1000000000,
				      .tv_nsec = ns % 1000000000};
	bool is_cut = (ns ? nanosleep(&time, NULL) : sched_yield()) < 0;

	if (interrupt_is_due(interrupt, is_cut, asked_ms) &&
	    interrupt_is_asked(interrupt))
		return interrupt_refuse(err);
	return 0;
}
