/*
 * Deadlines: functions to call at a given time, in a binary heap that one timer
 * serves.
 *
 * The timer runs only while there is a deadline, so an idle broker never wakes
 * up. If many are due at once, the loop serves other events after each quarter
 * of a millisecond, and pauses while other processes want the CPU (pace.h).
 * Times are CLOCK_BOOTTIME milliseconds, which remain valid across a restart of
 * the broker.
 */
#pragma once
#include "broker/base/clock.h"
#include "broker/base/meter.h"
#include "broker/base/pace.h"
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct error;

/* Is called once, after the deadline has left the heap. */
typedef void deadline_fn(void *data, uint32_t index);

struct deadline {
	uint64_t at_ms;
	deadline_fn *fn;
	void *data;
	uint32_t index; /* passed to fn, often the index of a record */
	/* The owner's variable for the position in the heap. */
	uint32_t *position;
};

struct deadlines {
	uv_timer_t timer;
	uv_idle_t more;        /* runs while a deadline is due */
	struct pace pace;      /* of rounds that follow one another */
	struct deadline *heap; /* 1-based */
	size_t n, capacity;
	/* the meter of the loop; NULL: nothing is measured */
	struct meter *meter;
};

/* `meter` is borrowed and may be NULL. */
int deadlines_init(struct deadlines *deadlines, uv_loop_t *loop,
		   struct meter *meter, struct error *err);
/* Starts closing the timer. The struct must live until the loop has run the
 * close callback. */
void deadlines_stop(struct deadlines *deadlines);

/*
 * Adds a deadline. `*deadline->position` must be 0, and must stay valid until
 * the deadline has fired or was removed; it is nonzero while the deadline is in
 * the heap. -ENOMEM.
 */
int deadlines_add(struct deadlines *deadlines, const struct deadline *deadline,
		  struct error *err);
void deadlines_remove(struct deadlines *deadlines, uint32_t *position);
