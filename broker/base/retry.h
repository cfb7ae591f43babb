/*
 * Retries: a function that is called again and again, at intervals that double
 * up to a limit.
 *
 * Some things happen without an event, for example that a client reads a
 * descriptor from its socket. The broker looks at them often at first, since
 * most happen soon, and seldom if they take long.
 */
#pragma once
#include "broker/base/deadline.h"
#include <stdint.h>

struct retry {
	struct deadlines *deadlines; /* borrowed */
	deadline_fn *fn;             /* its index is 0 */
	void *data;
	/* Private. */
	uint32_t position;
	uint32_t wait_ms; /* of the call that is planned next; 0: the first */
};

/*
 * Plans one call, unless one is planned. The first call comes after `first_ms`;
 * each later one waits twice as long as the one before, at most `last_ms`. The
 * struct must stay where it is until the call or retry_stop(). -ENOMEM.
 */
int retry_plan(struct retry *retry, uint32_t first_ms, uint32_t last_ms,
	       struct error *err);

/* The next call that is planned comes after `first_ms` again. */
void retry_reset(struct retry *retry);

/* Cancels the planned call, if there is one. */
void retry_stop(struct retry *retry);
