/*
 * Limbo: the list of slots without keepers that are still in use, and the slots
 * among them that only devices still use. collect.h visits them.
 *
 * A client that releases a slot in LIMBO sets its pending bit and rings the
 * doorbell; the broker then visits the slots with such bits, not the whole
 * list. A device cannot ring. Slots that no session holds but that devices
 * still use are recorded. They are visited when memory is needed, and by a
 * timer every 1 to 50 ms, which runs only while there are such slots.
 */
#pragma once
#include "broker/base/deadline.h"
#include <stdbool.h>
#include <stdint.h>

struct store;

#define LIMBO_WARN          1000
#define LIMBO_WARN_EVERY_MS 3600000

struct limbo {
	/* Functions of the collector's deadlines: visit the slots that devices
	 * use, and visit the whole list. */
	deadline_fn *on_fenced, *on_later;
	uint64_t warned_ms; /* last warning about more than LIMBO_WARN slots */
	uint32_t n_warnings;
	/* Slots that the collector has freed since the start. */
	uint64_t n_collected;
	uint64_t n_rings;
	uint32_t later_position; /* deadline of limbo_collect_later() */
	uint32_t *fenced;        /* slots that only devices still use */
	uint32_t n_fenced, max_fenced;
	bool has_unnoted; /* a slot was not recorded for lack of memory */
	bool is_looking;
	bool is_slow;      /* a warning about a long wait was logged */
	uint32_t fence_ms; /* delay of the next visit */
	/* When a slot in `fenced` was last freed, or the first one was
	 * added. */
	uint64_t fenced_ms;
	uint32_t fence_position; /* deadline of that visit */
};

#define LIMBO_FIRST_FENCE_MS 1

/* limbo_enter() adds the slot to the list, and limbo_leave() removes it. Both
 * are idempotent. A list that has become long is logged, at long intervals. */
void limbo_enter(struct store *store, uint32_t slot);
void limbo_leave(struct store *store, uint32_t slot);

/* Records that only devices still use the slot, so that it is visited again
 * later. Idempotent. */
void limbo_watch(struct store *store, uint32_t slot);

/* Plans a visit of these slots after `limbo.fence_ms`. */
void limbo_plan_visit(struct store *store);

/* Plans a visit of the whole list in the next round of the loop, because
 * slot_update_state() found too little space in the journal. */
void limbo_collect_later(struct store *store);

void limbo_deinit(struct limbo *limbo);
