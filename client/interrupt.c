/*
 * Sleeps that a signal to the caller may end.
 */
#include "client/interrupt.h"
#include "client/clock.h"
#include "proto/error.h"
#include <errno.h>
#include <sched.h>
#include <time.h>

int interrupt_refuse(struct error *err)
{
	return error_set(
		err, -EINTR,
		"the wait was interrupted by a signal; the request may still "
		"be carried out, but this process gets nothing from it");
}

int interrupt_sleep(const struct interrupt *interrupt, int64_t ns,
		    int64_t *asked_ms, struct error *err)
{
	const struct timespec time = {.tv_sec = ns / 1000000000,
				      .tv_nsec = ns % 1000000000};
	bool is_cut = (ns ? nanosleep(&time, NULL) : sched_yield()) < 0;
	int64_t now_ms;

	if (!interrupt->fn)
		return 0;
	now_ms = clock_now_ms();
	if (!is_cut && now_ms - *asked_ms < INTERRUPT_SLICE_MS)
		return 0;
	*asked_ms = now_ms;
	return interrupt_is_asked(interrupt) ? interrupt_refuse(err) : 0;
}
