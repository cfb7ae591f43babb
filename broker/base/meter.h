/*
 * What the loop spends its time on, and how long requests take.
 *
 * The loop's time is divided into pieces of work, which end one after another:
 * meter_begin() marks the beginning of the first piece of an iteration, and
 * meter_end() ends a piece, gives its time to a task and begins the next. So a
 * piece costs one reading of the clock. Work outside of pieces counts as
 * METER_OTHER, or with the piece that follows it.
 *
 * An iteration is the time from the end of one wait for events to the
 * beginning of the next. All other clients wait that long.
 */
#pragma once
#include "broker/base/ticks.h"
#include "proto/histogram.h"
#include "proto/message_kinds.h"
#include <stdint.h>
#include <uv.h>

struct error;

enum meter_task {
	METER_REQUESTS,    /* read, run and answered; or read and parked */
	METER_RERUNS,      /* parked requests that are run again */
	METER_CHORES,      /* long work in steps (chore.h) */
	METER_TIMERS,      /* deadlines (deadline.h) */
	METER_CLOSES,      /* ends of sessions and connections */
	METER_COLLECTIVES, /* communicators and messages of fsdp-worker */
	METER_OTHER,
	METER_N
};

struct meter {
	uv_prepare_t prepare;
	struct ticks ticks;
	uint64_t at_ns, idle_ns; /* at the last prepare; 0: before the first */
	uint64_t lap_ns;   /* end of the last piece; 0: none this iteration */
	uint64_t piece_ns; /* of all pieces of this iteration */
	/* These count since the start. */
	uint64_t longest_ns; /* or since the last meter_reset() */
	uint64_t task_ns[METER_N];
	struct histogram iterations;
	/* These are indexed by the kind of request; 0 stands for an unknown or
	 * damaged one. The first has requests that were answered at once, from
	 * reading to the reply. The second has requests that were parked, from
	 * parking to the reply. */
	struct histogram requests[MESSAGE_MAX + 1], parked[MESSAGE_MAX + 1];
};

/* Call it before the loop runs. */
int meter_init(struct meter *meter, uv_loop_t *loop, struct error *err);
/* Start closing the handle. Idempotent, and allowed without meter_init(). */
void meter_stop(struct meter *meter);
/* Forget the longest iteration so far. The present one still counts. */
void meter_reset(struct meter *meter);

/* The loop has called one of our functions. */
void meter_begin(struct meter *meter);
/* A piece of work is done. Gives its duration in ns. */
uint64_t meter_end(struct meter *meter, enum meter_task task);
/* End a piece that has answered a request of this kind. */
void meter_request(struct meter *meter, uint16_t kind);

/* The time that the loop has waited for events since the start, in ns. */
uint64_t meter_waited(const struct meter *meter);

/* Return the time for meter_parked(). */
uint64_t meter_now(const struct meter *meter);
/* A request that was parked at `since_ns` has been answered. */
void meter_parked(struct meter *meter, uint16_t kind, uint64_t since_ns);
