/*
 * Chores: work that is too long for one request, and done in steps of some ten
 * microseconds. Between two iterations of the loop, in which others are
 * served, chores take turns for about a millisecond in all, however many there
 * are. Each step leaves the catalog in order and is committed, so a broker that
 * dies forgets chores; what they were for says whether the next one resumes.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;

struct chore {
	/* False: that was all, or somebody ended it in this step. */
	bool (*step)(void *data, uint32_t index);
	void *data;
	uint32_t index;
	bool is_queued;
	struct chore *next, *prev;
};

struct chores {
	struct chore *first, *last;
};

/* `chore` (borrowed until it ends) is to be done; once more is fine. */
void chore_begin(struct broker *broker, struct chore *chore);
/* No more steps; nothing if it has ended. */
void chore_end(struct broker *broker, struct chore *chore);

/* The chores' part of an idle round. */
void chores_on_idle(struct broker *broker);
