/*
 * May a wait go on? The caller's function says so (fsdp_connect_options), since
 * only it knows what its signals mean.
 *
 * A wait asks whenever a signal has ended its sleep, and every
 * INTERRUPT_SLICE_MS: the signal may have come to another thread, or between
 * two sleeps.
 */
#pragma once
#include "client/fsdp.h"
#include <stdbool.h>
#include <stdint.h>

struct error;

#define INTERRUPT_SLICE_MS 200

struct interrupt {
	fsdp_interrupt_fn *fn; /* NULL: waits are not interrupted */
	void *data;
};

/* How long a wait may sleep that has `left_ms` (-1: for ever). */
static inline int interrupt_slice(const struct interrupt *interrupt,
				  int64_t left_ms)
{
	if (interrupt->fn && (left_ms < 0 || left_ms > INTERRUPT_SLICE_MS))
		return INTERRUPT_SLICE_MS;
	return left_ms < 0 ? -1 : (int)left_ms;
}

/* Ask; no lock of ours may be held. True: the wait is to end. */
static inline bool interrupt_is_asked(const struct interrupt *interrupt)
{
	return interrupt->fn && interrupt->fn(interrupt->data) != 0;
}

/* -EINTR, with the sentence. */
int interrupt_refuse(struct error *err);

/* Sleep, for a thread that looks again and again; `*asked_ms` is when it was
 * asked last (0: never). -EINTR. */
int interrupt_sleep(const struct interrupt *interrupt, int64_t ns,
		    int64_t *asked_ms, struct error *err);
