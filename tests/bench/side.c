#include "side.h"

/* A round takes about this time. */
#define ROUND_NS       4e6
#define MAX_ITERATIONS 256

static void side_do(struct side *side, uint32_t verb)
{
	side->order.verb = verb;
	if (!party_order(&side->party, &side->order))
		die("ranks of a collective have ended");
}

static double side_time(struct side *side)
{
	side_do(side, STAGE_RUN);
	return stage_time(side->party.stage);
}

void side_open(struct side *side, const struct stage_order *order)
{
	double n;

	side->order = *order;
	side->order.n_iterations = side->order.n_warm = 3;
	side_do(side, STAGE_PREPARE);
	n = ROUND_NS / side_time(side);
	side->order.n_iterations = n < 1                ? 1
				   : n > MAX_ITERATIONS ? MAX_ITERATIONS
							: (uint32_t)n;
	side->order.n_warm = 1;
}

static void side_close(struct side *side)
{
	side_do(side, STAGE_RELEASE);
	party_stop(&side->party);
}

void sides_compare(struct side *ours, struct side *floor,
		   const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct repeats repeats;

	repeats = repeats_begin(bench, bench->n_pairs);
	while (pairs_next(&pairs, &repeats)) {
		samples_add(&pairs.floor, side_time(floor));
		samples_add(&pairs.ours, side_time(ours));
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
	side_close(floor);
	side_close(ours);
}
