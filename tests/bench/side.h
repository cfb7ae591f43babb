/*
 * Two sides, whose rounds are timed in turn: ours, and the floor.
 */
#pragma once
#include "party.h"

struct side {
	struct party party; /* the caller starts it */
	struct stage_order order;
};

/* Let the party prepare the order, and choose the number of iterations in a
 * round. */
void side_open(struct side *side, const struct stage_order *order);
/* Time both sides in pairs. Then release what they prepared, and stop them. */
void sides_compare(struct side *ours, struct side *floor,
		   const struct bench *bench, struct result *ret);
