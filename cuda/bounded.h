/*
 * A call that may never return, on a thread of its own, so that its caller can
 * wait for a limited time.
 *
 * The driver and NCCL have calls that wait for a device or for other processes
 * without a time limit. Memory and handles that such a call uses must stay
 * valid until it has returned.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct bounded; /* opaque */

/* Begin it. -EAGAIN, -ENOMEM: there is no thread for it. */
int bounded_start(void (*fn)(void *data), void *data, struct bounded **ret,
		  struct error *err);

/* Wait until it is back, or until that time of CLOCK_MONOTONIC has come. True:
 * it is back, and the handle is gone. */
bool bounded_await(struct bounded *call, uint64_t until_ns);

/* Nobody waits for it any more; the handle is gone. */
void bounded_leave(struct bounded *call);

/* The time in so many milliseconds. */
uint64_t bounded_until(uint32_t ms);
