/*
 * Measurement of how the loop spends its time, and how long requests take.
 *
 * The loop's time is divided into pieces of work, one after another:
 * meter_begin() marks the beginning of the first piece of an iteration, and
 * meter_end() ends a piece, adds its time to a task and begins the next. So a
 * piece costs one reading of the clock. Work outside of pieces counts as
 * METER_OTHER, or with the piece that follows it.
 *
 * An iteration is the time from the end of one wait for events to the beginning
 * of the next. All other clients wait that long.
 */
#pragma once
#include "broker/base/ticks.h"
#include "proto/histogram.h"
#include "proto/message_kinds.h"
#include <stdint.h>
#include <uv.h>

struct error;

enum meter_task {
	/* requests that are read, run and replied to, or read and parked */
	METER_REQUESTS,
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
	uint64_t lap_ns;   /* end of the last piece; 0 before the first one */
	uint64_t piece_ns; /* sum of all pieces of this iteration */
	/* These count since the start of the broker. */
	uint64_t longest_ns; /* or since the last meter_reset() */
	uint64_t task_ns[METER_N];
	struct histogram iterations;
	/* Times of requests, indexed by their kind; 0 stands for an unknown or
	 * damaged one. `requests` has those that got their reply at once, from
	 * reading to the reply. `parked` has those that were parked, from
	 * parking to the reply. */
	struct histogram requests[MESSAGE_MAX + 1], parked[MESSAGE_MAX + 1];
};

/* Call it before the loop runs. */
int meter_init(struct meter *meter, uv_loop_t *loop, struct error *err);
/* Starts closing the handle. Idempotent, and allowed without meter_init(). */
void meter_stop(struct meter *meter);
/* Forgets the longest iteration so far. The present one still counts. */
void meter_reset(struct meter *meter);

/* Begins the first piece of an iteration. Call it in each callback of the
 * loop. */
void meter_begin(struct meter *meter);
/* Ends a piece of work. Returns its duration in ns. */
uint64_t meter_end(struct meter *meter, enum meter_task task);
/* Ends a piece that has replied to a request of this kind. */
void meter_request(struct meter *meter, uint16_t kind);

/* Returns the time that the loop has waited for events since the start, in
 * ns. */
uint64_t meter_waited(const struct meter *meter);

/* Returns the time to pass to meter_parked(). */
uint64_t meter_now(const struct meter *meter);
/* Records the reply to a request that was parked at `since_ns`. */
void meter_parked(struct meter *meter, uint16_t kind, uint64_t since_ns);
