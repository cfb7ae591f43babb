/*
 * Chores: work that is too long for one request, done in steps of about ten
 * microseconds. Between two iterations of the loop, in which requests are
 * served, all chores together run for about half a millisecond, one after
 * another; they are long work (loop.h). Each step leaves the catalog consistent
 * and is committed. Chores are not persistent: after a crash, the state that a
 * chore works on tells the next broker whether to resume it.
 */
#pragma once
#include "broker/base/loop.h"
#include <stdbool.h>
#include <stdint.h>

struct store;

struct chore {
	/* Returns false if the work is finished, or was ended in this step. */
	bool (*step)(void *data, uint32_t index);
	void *data;
	uint32_t index;
	bool is_queued;
	struct chore *next, *prev;
};

struct chores {
	struct chore *first, *last;
	struct deferred rounds;
};

/* Queues `chore`, which is borrowed until it ends. Idempotent. */
void chore_begin(struct store *store, struct chore *chore);
/* Stops the chore. Idempotent. */
void chore_end(struct store *store, struct chore *chore);

/* Runs a round of steps. Returns true if there are more chores. */
bool chores_on_idle(struct store *store);
