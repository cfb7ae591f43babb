/*
 * The duration of the loop's iterations, from the end of one wait for events to
 * the beginning of the next. All other clients wait that long.
 */
#pragma once
#include <stdint.h>
#include <uv.h>

struct error;

struct meter {
	uv_prepare_t prepare;
	uint64_t at_ns, idle_ns; /* at the last prepare; 0: before the first */
	uint64_t longest_ns;     /* since the start or the last meter_reset() */
};

/* Call it before the loop runs. */
int meter_init(struct meter *meter, uv_loop_t *loop, struct error *err);
/* Start closing the handle. Idempotent, and allowed without meter_init(). */
void meter_stop(struct meter *meter);
/* Forget the longest iteration so far. The present one still counts. */
void meter_reset(struct meter *meter);
