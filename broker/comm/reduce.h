/*
 * Reductions: the ranks' gradients of one group, summed and split into shards.
 *
 * Reductions are calls (call.h). A reduction runs when every rank has submitted
 * its input (input.h), in the order of the list. The inputs are pinned until it
 * is done, and then every rank may have one more.
 *
 * Sums that are not reduced over the replicas yet stay in the group's
 * `partial`, which is made when it is first used. With one replica nothing can
 * be deferred, and as in the reference REDUCE_NO_ALL_REDUCE has no effect.
 * REDUCE_ACCUMULATE adds to the earlier result of the run; the first reduction
 * into the gradients overwrites them.
 *
 * reduce_progress.h runs reductions; reduce_late.h describes why one waits.
 */
#pragma once
#include "broker/comm/call.h"
#include "broker/comm/comm.h"
#include "broker/engine/engine.h"
#include <stdint.h>

struct reduce_request;

#define REDUCTION_MAX 1024 /* how far a rank may be ahead of another */
/* The limit for one communicator, since all share the engine. */
#define REDUCTION_MAX_RUNNING 16

struct reduction {
	struct call call; /* first, see reduction_of() */
	uint32_t flags;   /* enum reduce_flags */
	bool has_factor;
	double factor;
	uint32_t inputs[PLAN_MAX_RANKS]; /* slots, pinned */
	/* of the streams that write them */
	struct engine_fence fences[PLAN_MAX_RANKS];
	bool is_running;
};

static inline struct reduction *reduction_of(struct call *call)
{
	return (struct reduction *)call;
}

/*
 * Submit the rank's input. Returns -EINVAL if it is not the rank's input, the
 * ranks reduce in different orders or with different options, or the factor is
 * invalid.
 */
int reduction_submit(struct group *group, uint32_t rank,
		     const struct reduce_request *request,
		     uint64_t *ret_sequence, struct error *err);

enum reduction_outcome {
	REDUCTION_DONE = 0,
	REDUCTION_PENDING = 1,
};

/* Returns an enum reduction_outcome for the rank's reduction of that sequence
 * number, or -EINVAL if the rank has none. */
int reduction_look(const struct group *group, uint32_t rank, uint64_t sequence,
		   struct error *err);

/* Check that the rank may commit. Returns -EBUSY if a reduction of the rank is
 * not done, and -EINVAL if it has not submitted one that others have. */
int reductions_check_commit(const struct comm *comm, uint32_t rank,
			    struct error *err);
/* Unpin the inputs of a reduction that is done or will be freed. */
void reduction_release_inputs(struct reduction *reduction);
/* Unpin and free everything at the end of the run, including inputs that are
 * being filled. */
void reductions_free(struct comm *comm);
