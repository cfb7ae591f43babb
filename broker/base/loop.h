/*
 * The event loop, and work that is deferred until the present events have been
 * handled.
 *
 * Deferred work has handlers. They run in the order in which they were added,
 * between two waits for events, and each returns whether it has more to do.
 * Work that an earlier handler defers to a later one is done in the same round.
 *
 * Long handlers work for some 100 us at a time, and together pause between two
 * rounds while other processes want the CPU (pace.h).
 */
#pragma once
#include "broker/base/meter.h"
#include "broker/base/pace.h"
#include <stdbool.h>
#include <uv.h>

struct error;

struct deferred {
	bool (*run)(void *data); /* true: there is more to do */
	void *data;
	enum meter_task task; /* that its time counts as */
	bool is_long;
	bool is_wanted;
	struct deferred *next;
};

struct loop {
	uv_loop_t uv;
	uv_idle_t idle;   /* runs only while there is deferred work */
	uv_timer_t pause; /* runs while long handlers pause */
	struct pace pace;
	struct deferred *first, *last;
	struct meter meter;
	bool is_stopping; /* handles are being closed; no new work starts */
};

int loop_open(struct loop *loop, struct error *err);
/* Start closing the handles of the loop itself. */
void loop_stop(struct loop *loop);
/* Called when all handles are closed or were never initialised. */
void loop_close(struct loop *loop);

/* Add `handler` (borrowed for as long as the loop); it runs after
 * earlier ones. */
void loop_add(struct loop *loop, struct deferred *handler);
/* Have `handler` run before the loop waits again, or after the pause of long
 * ones. No effect while the loop is stopping. */
void loop_defer(struct loop *loop, struct deferred *handler);
