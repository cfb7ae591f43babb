/*
 * Chores: work that is too long for one request, done in steps of some ten
 * microseconds. Between two iterations of the loop, in which requests are
 * served, chores run in turn for about half a millisecond in all, however many
 * there are; they are long work (loop.h). Each step leaves the catalog
 * consistent and is committed. Chores are not persistent: after a crash, the
 * state that a chore works on tells the next broker whether to resume it.
 */
#pragma once
#include "broker/base/loop.h"
#include <stdbool.h>
#include <stdint.h>

struct store;

struct chore {
	/* False: the work is finished, or was ended in this step. */
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

/* Queue `chore` (borrowed until it ends). Idempotent. */
void chore_begin(struct store *store, struct chore *chore);
/* Stop the chore. Idempotent. */
void chore_end(struct store *store, struct chore *chore);

/* Run a round of steps. True: there are more chores. */
bool chores_on_idle(struct store *store);
