/*
 * How long the loop's iterations take: from the end of one wait for events to
 * the beginning of the next. All other clients wait for that long.
 */
#pragma once
#include <stdint.h>
#include <uv.h>

struct error;

struct meter {
	uv_prepare_t prepare;
	uint64_t at_ns, idle_ns; /* at the last prepare; 0: there was none */
	uint64_t longest_ns;     /* since start, or since meter_reset() */
};

/* Before the loop runs first. */
int meter_init(struct meter *meter, uv_loop_t *loop, struct error *err);
/* Starts closing the handle. Idempotent; also without meter_init(). */
void meter_stop(struct meter *meter);
/* Forget the longest iteration so far. The present one still counts. */
void meter_reset(struct meter *meter);
