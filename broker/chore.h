/*
 * Chores: work that is too long for one request, and done in steps of some ten
 * microseconds. Between two iterations of the loop, in which others are
 * served, chores take turns for about a millisecond in all, however many there
 * are. While other processes want the CPU too, they pause after each such
 * round: a broker that never sleeps uses up its share of the CPU, and then its
 * clients wait until the others have used up theirs. Each step leaves the
 * catalog in order and is committed, so a broker that dies forgets chores; what
 * they were for says whether the next one resumes.
 */
#pragma once
#include "broker/loop.h"
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
	long n_preemptions;       /* of the broker's thread, when last seen */
	uint32_t resume_position; /* deadline; 0: no pause */
	struct deferred rounds;
};

/* `chore` (borrowed until it ends) is to be done; once more is fine. */
void chore_begin(struct broker *broker, struct chore *chore);
/* No more steps; nothing if it has ended. */
void chore_end(struct broker *broker, struct chore *chore);

/* A round of steps. True: there are more chores, and no pause. */
bool chores_on_idle(struct broker *broker);
