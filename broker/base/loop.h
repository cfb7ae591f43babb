/*
 * The event loop, and work that is deferred until the present events have been
 * handled.
 *
 * Deferred work has handlers. Between two waits for events they run in the
 * order in which they were added, and each returns whether it has more to do.
 * Work that an earlier handler defers to a later one is done in the same round.
 *
 * Long handlers work for some 100 us at a time. While other processes want the
 * CPU (pace.h), all of them pause between two rounds.
 */
#pragma once
#include "broker/base/meter.h"
#include "broker/base/pace.h"
#include <stdbool.h>
#include <uv.h>

struct error;

struct deferred {
	bool (*run)(void *data); /* returns true if there is more to do */
	void *data;
	enum meter_task task; /* the task to which its time is counted */
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
	bool is_stopping; /* handles are being closed, and no new work starts */
};

int loop_open(struct loop *loop, struct error *err);
/* Starts closing the handles of the loop itself. */
void loop_stop(struct loop *loop);
/* Call it when all handles are closed or were never initialised. */
void loop_close(struct loop *loop);

/* Adds `handler` (borrowed for as long as the loop), which runs after earlier
 * ones. */
void loop_add(struct loop *loop, struct deferred *handler);
/* Lets `handler` run before the loop waits again, or, if it is long, after the
 * pause. It has no effect while the loop is stopping. */
void loop_defer(struct loop *loop, struct deferred *handler);
