/*
 * The last minutes, in a ring of samples at the same distance: rates and
 * durations between two snapshots.
 */
#pragma once
#include "client/monitor/snapshot.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define HISTORY_STEP_MS 5000
#define HISTORY_SAMPLES 180 /* 15 minutes */

struct history_sample {
	uint64_t at_ms; /* of the wall clock */
	bool is_up;
	double requests_per_s, published_per_s, collective_bytes_per_s;
	double median_s, p99_s; /* of requests; 0: there were none */
	double busy;            /* part of the time in which the loop worked */
	uint64_t used_bytes, device_used_bytes;
	uint64_t limbo, sessions, parked;
};

struct history {
	struct history_sample samples[HISTORY_SAMPLES];
	uint32_t n, next;
	struct snapshot last; /* owned; of the last sample */
	uint64_t last_ms;     /* 0: there is none */
	uint64_t last_epoch;
};

/* Add a sample; the snapshot is taken. */
void history_add(struct history *history, struct snapshot *snapshot,
		 uint64_t at_ms);
/* The broker did not answer. */
void history_add_gap(struct history *history, uint64_t at_ms);
void history_deinit(struct history *history);

/* An array of objects, oldest first; empty if `history` is NULL. NULL: no
 * memory. */
json_t *history_json(const struct history *history);

/* The duration that a part `q` of the durations, between two snapshots or
 * since the start (`before` NULL), does not exceed, in seconds; 0: there are
 * none. `name`: a kind of request; NULL: all that were answered at once. */
double history_quantile(const struct snapshot *before,
			const struct snapshot *after, const char *name,
			double q);
