/*
 * Asks the caller's function whether a wait may continue
 * (fsdp_connect_options), since only the program knows what its signals mean.
 *
 * A wait calls the function whenever a signal has ended its sleep, and every
 * INTERRUPT_SLICE_MS, because a signal may reach another thread, or arrive
 * between two sleeps.
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

/* What a thread of the library asks instead of the caller's function, since it
 * gets no signals: whether it must stop. */
extern _Thread_local struct interrupt interrupt_of_thread;

/* Return how long a wait may sleep if `left_ms` are left (-1: for ever). */
static inline int interrupt_slice(const struct interrupt *interrupt,
				  int64_t left_ms)
{
	if (interrupt->fn && (left_ms < 0 || left_ms > INTERRUPT_SLICE_MS))
		return INTERRUPT_SLICE_MS;
	return left_ms < 0 ? -1 : (int)left_ms;
}

/* Call the function; the caller must not hold a lock of the library. Returns
 * true if the wait must end. */
static inline bool interrupt_is_asked(const struct interrupt *interrupt)
{
	if (interrupt->fn && interrupt_of_thread.fn)
		interrupt = &interrupt_of_thread;
	return interrupt->fn && interrupt->fn(interrupt->data) != 0;
}

/* Tell whether the function must be called now: a sleep was cut (`is_cut`), or
 * INTERRUPT_SLICE_MS have passed since `*asked_ms`, which is then set to the
 * present time. */
bool interrupt_is_due(const struct interrupt *interrupt, bool is_cut,
		      int64_t *asked_ms);

/* Return -EINTR and set the message. */
int interrupt_refuse(struct error *err);

/* Sleep for `ns`, in a thread that polls something. `*asked_ms` is the time at
 * which the function was last called (0: never). -EINTR: the wait must end. */
int interrupt_sleep(const struct interrupt *interrupt, int64_t ns,
		    int64_t *asked_ms, struct error *err);
