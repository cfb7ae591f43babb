/*
 * A ring of samples of the last minutes, taken at equal intervals. Rates and
 * durations are those between two snapshots.
 */
#pragma once
#include "client/monitor/snapshot.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define HISTORY_STEP_MS 5000
#define HISTORY_SAMPLES 180 /* 15 minutes */

struct history_sample {
	uint64_t at_ms; /* wall-clock time */
	bool is_up;
	double requests_per_s, published_per_s, collective_bytes_per_s;
	double median_s, p99_s; /* durations of requests; 0: there were none */
	/* the share of time in which the event loop worked */
	double busy;
	uint64_t used_bytes, device_used_bytes;
	uint64_t limbo, sessions, parked;
};

struct history {
	struct history_sample samples[HISTORY_SAMPLES];
	uint32_t n, next;
	struct snapshot last; /* owned; belongs to the last sample */
	/* when it was taken, by the monotonic clock; 0: there is no snapshot */
	uint64_t last_ms;
	uint64_t last_epoch;
};

/* Add a sample. `at_ms` is the wall-clock time, and `now_ms` that of the
 * monotonic clock, from which rates are computed. Consumes the snapshot. */
void history_add(struct history *history, struct snapshot *snapshot,
		 uint64_t at_ms, uint64_t now_ms);
/* Add a sample for a broker that does not reply. */
void history_add_gap(struct history *history, uint64_t at_ms);
void history_deinit(struct history *history);

/* Return an array of samples, oldest first; it is empty if `history` is NULL.
 * NULL: there is no memory. */
json_t *history_json(const struct history *history);

/* Return the `q`-quantile of durations in seconds: of requests between two
 * snapshots, or since the broker's start (`before` NULL). Returns 0 if there
 * are none. `name` is the kind of request; NULL: all requests that did not
 * wait. */
double history_quantile(const struct snapshot *before,
			const struct snapshot *after, const char *name,
			double q);
