/*
 * Things that must happen at a time: a binary heap behind one timer.
 *
 * The timer runs only while something is due, so an idle broker never wakes.
 * Where much is due at once, the loop serves others after each millisecond.
 * Times are CLOCK_BOOTTIME milliseconds, which survive a restart of the
 * broker.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct error;

/* Called once, after the deadline has left the heap. */
typedef void deadline_fn(void *data, uint32_t index);

struct deadline {
	uint64_t at_ms;
	deadline_fn *fn;
	void *data;
	uint32_t index;     /* handed to fn: often a record's */
	uint32_t *position; /* where its owner keeps the place in the heap */
};

struct deadlines {
	uv_timer_t timer;
	uv_idle_t more;        /* runs while something is due */
	struct deadline *heap; /* 1-based */
	size_t n, capacity;
};

uint64_t now_ms(void); /* CLOCK_BOOTTIME */

int deadlines_init(struct deadlines *deadlines, uv_loop_t *loop,
		   struct error *err);
/* Starts closing the timer; memory of the struct must live until the loop
 * has run that close. */
void deadlines_stop(struct deadlines *deadlines);

/*
 * `*deadline->position` must be 0 and lives until the deadline has fired or
 * was removed; it is nonzero while it is in the heap. -ENOMEM: no heap.
 */
int deadlines_add(struct deadlines *deadlines, const struct deadline *deadline,
		  struct error *err);
void deadlines_remove(struct deadlines *deadlines, uint32_t *position);
