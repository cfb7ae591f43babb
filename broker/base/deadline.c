/*
 * Deadlines: the binary heap, and the times at which the timer runs.
 *
 * Each entry tells its owner its position in the heap, so that it can be
 * removed without a search. libuv's timers do not count the time of suspends;
 * if an entry is not due yet when the timer fires, the timer is set again.
 */
#include "broker/base/deadline.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <stdlib.h>

#define FIRST_CAPACITY 64
/* The time limit of a round, since other work waits for this long plus one
 * callback. */
#define ROUND_NS 250000

static void put(struct deadlines *deadlines, size_t place,
		const struct deadline *deadline)
{
	deadlines->heap[place] = *deadline;
	*deadline->position = (uint32_t)place;
}

/* Fills the hole at `place` with `deadline`, and moves later ones down. */
static void sift_up(struct deadlines *deadlines, size_t place,
		    const struct deadline *deadline)
{
	struct deadline *heap = deadlines->heap;

	while (place > 1 && heap[place / 2].at_ms > deadline->at_ms) {
		put(deadlines, place, &heap[place / 2]);
		place /= 2;
	}
	put(deadlines, place, deadline);
}

static void sift_down(struct deadlines *deadlines, size_t place,
		      const struct deadline *deadline)
{
	struct deadline *heap = deadlines->heap;

	while (place * 2 <= deadlines->n) {
		size_t child = place * 2;

		if (child < deadlines->n &&
		    heap[child + 1].at_ms < heap[child].at_ms)
			child++;
		if (heap[child].at_ms >= deadline->at_ms)
			break;
		put(deadlines, place, &heap[child]);
		place = child;
	}
	put(deadlines, place, deadline);
}

static struct deadline take(struct deadlines *deadlines, size_t place)
{
	struct deadline taken = deadlines->heap[place];
	struct deadline last = deadlines->heap[deadlines->n];

	deadlines->n--;
	*taken.position = 0;
	if (place > deadlines->n)
		return taken;
	if (place > 1 && deadlines->heap[place / 2].at_ms > last.at_ms)
		sift_up(deadlines, place, &last);
	else
		sift_down(deadlines, place, &last);
	return taken;
}

static void on_timer(uv_timer_t *timer);
static void on_more(uv_idle_t *more);

static void start_timer(struct deadlines *deadlines, uint64_t ms)
{
	/* libuv counts from the time at which the loop last read the clock. */
	uv_update_time(deadlines->timer.loop);
	/* Both clocks are rounded down. Without the added 1 the timer could
	 * fire early and would have to fire once more. */
	(void)uv_timer_start(&deadlines->timer, on_timer, ms + 1, 0);
}

/* Arms the timer for the first deadline, but not before `pause_ns` have
 * passed. */
static void arm_after(struct deadlines *deadlines, uint64_t pause_ns)
{
	uint64_t now = now_ms();
	uint64_t at;

	uv_timer_stop(&deadlines->timer);
	uv_idle_stop(&deadlines->more);
	if (deadlines->n == 0)
		return;
	at = deadlines->heap[1].at_ms;
	if (at > now)
		start_timer(deadlines, at - now);
	else if (pause_ns > 0)
		start_timer(deadlines, pause_ns / 1000000);
	else
		/* A timer would fire again before the loop serves other events,
		 * so the idle handle is used. */
		(void)uv_idle_start(&deadlines->more, on_more);
}

static void arm(struct deadlines *deadlines)
{
	arm_after(deadlines, 0);
}

static void run(struct deadlines *deadlines)
{
	uint64_t now = now_ms();
	uint64_t end_ns = uv_hrtime() + ROUND_NS;
	size_t left = deadlines->n;

	pace_begin(&deadlines->pace);
	/* At most as many deadlines run as there were at first. Deadlines that
	 * add themselves again at once must not keep the loop from other
	 * work. */
	while (left-- > 0 && deadlines->n > 0 &&
	       deadlines->heap[1].at_ms <= now && uv_hrtime() < end_ns) {
		struct deadline due = take(deadlines, 1);

		due.fn(due.data, due.index);
	}
	if (!uv_is_closing((uv_handle_t *)&deadlines->timer))
		arm_after(deadlines, pace_end(&deadlines->pace));
}

static void run_measured(struct deadlines *deadlines)
{
	struct meter *meter = deadlines->meter;

	if (meter)
		meter_begin(meter);
	run(deadlines);
	if (meter)
		(void)meter_end(meter, METER_TIMERS);
}

static void on_timer(uv_timer_t *timer)
{
	run_measured(timer->data);
}

static void on_more(uv_idle_t *more)
{
	run_measured(more->data);
}

int deadlines_init(struct deadlines *deadlines, uv_loop_t *loop,
		   struct meter *meter, struct error *err)
{
	int r;

	*deadlines = (struct deadlines){.meter = meter};
	r = uv_timer_init(loop, &deadlines->timer);
	if (r < 0)
		return error_errno(err, r,
				   "cannot make the timer of deadlines");
	/* uv_idle_init() cannot fail */
	(void)uv_idle_init(loop, &deadlines->more);
	deadlines->timer.data = deadlines->more.data = deadlines;
	return 0;
}

void deadlines_stop(struct deadlines *deadlines)
{
	size_t i;

	for (i = 1; i <= deadlines->n; i++)
		*deadlines->heap[i].position = 0;
	free(deadlines->heap);
	deadlines->heap = NULL;
	deadlines->n = 0;
	deadlines->capacity = 0;
	if (uv_is_closing((uv_handle_t *)&deadlines->timer))
		return;
	uv_close((uv_handle_t *)&deadlines->timer, NULL);
	uv_close((uv_handle_t *)&deadlines->more, NULL);
}

/* Makes space for one more deadline; entry 0 is not used. */
static int reserve(struct deadlines *deadlines, struct error *err)
{
	size_t capacity = deadlines->capacity;
	struct deadline *heap;

	if (deadlines->n + 1 < capacity)
		return 0;
	capacity = capacity ? capacity * 2 : FIRST_CAPACITY;
	heap = NULL;
	if (capacity <= UINT32_MAX && failpoint_fail("deadline.malloc") == 0)
		heap = reallocarray(deadlines->heap, capacity, sizeof(*heap));
	if (!heap)
		return error_nomem(err, "one more deadline");
	deadlines->heap = heap;
	deadlines->capacity = capacity;
	return 0;
}

int deadlines_add(struct deadlines *deadlines, const struct deadline *deadline,
		  struct error *err)
{
	int r;

	assert(*deadline->position == 0);
	assert(!uv_is_closing((uv_handle_t *)&deadlines->timer));
	r = reserve(deadlines, err);
	if (r < 0)
		return r;
	deadlines->n++;
	sift_up(deadlines, deadlines->n, deadline);
	if (*deadline->position == 1)
		arm(deadlines);
	return 0;
}

void deadlines_remove(struct deadlines *deadlines, uint32_t *position)
{
	size_t place = *position;

	if (place == 0)
		return;
	assert(place <= deadlines->n &&
	       deadlines->heap[place].position == position);
	take(deadlines, place);
	if (place == 1)
		arm(deadlines);
}
