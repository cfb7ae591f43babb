/*
 * Notes signals. The handler is installed without SA_RESTART, so a blocked
 * write() returns, too.
 */
#include "client/ctl/interrupt.h"

#include "proto/error.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* The number of the signal, or 0. Only the handler writes it. */
static volatile sig_atomic_t caught;

static void on_signal(int signal)
{
	caught = signal;
}

void interrupt_catch(void)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction action = {.sa_handler = on_signal,
				   .sa_flags = (int)SA_RESETHAND};
	struct sigaction old;

	for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
		/* keep ignoring what nohup or the shell ignores */
		if (sigaction(signals[i], NULL, &old) == 0 &&
		    old.sa_handler != SIG_IGN)
			(void)sigaction(signals[i], &action, NULL);
	}
}

int interrupt_check(struct error *err)
{
	if (!caught)
		return 0;
	return error_set(err, -EINTR,
			 "stopped by SIG%s; nothing incomplete was left",
			 sigabbrev_np(caught));
}

void interrupt_die(void)
{
	int signal = caught;
	struct sigaction action = {.sa_handler = SIG_DFL};

	if (!signal)
		return;
	(void)sigaction(signal, &action, NULL);
	(void)raise(signal);
}
