/*
 * A bounded call runs a function that may never return on a thread of its own,
 * so that the caller can wait for a limited time.
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

/* Starts the call. Returns -EAGAIN or -ENOMEM if no thread can be made. */
int bounded_start(void (*fn)(void *data), void *data, struct bounded **ret,
		  struct error *err);

/* Waits until the call has returned, or until the given time of
 * CLOCK_MONOTONIC. If this returns true, the call has returned and the handle
 * is freed. */
bool bounded_await(struct bounded *call, uint64_t until_ns);

/* Stops waiting for the call and gives up the handle. The thread continues. */
void bounded_leave(struct bounded *call);

/* These return the time of CLOCK_MONOTONIC in nanoseconds: now, and in `ms`
 * milliseconds. */
uint64_t bounded_now(void);
uint64_t bounded_until(uint32_t ms);
