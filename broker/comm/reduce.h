/*
 * Reductions: the ranks' gradients of one group, summed and split into shards.
 *
 * As with gathers, one list is the common order. A reduction runs when every
 * rank has submitted its input, in the order of the list. The inputs are pinned
 * until it is done, and then every rank may have one more.
 *
 * An input is pinned from the moment a rank gets it, so that its slot cannot be
 * reused while the group refers to it. It counts against the rank's n_inputs
 * until its reduction is done.
 *
 * Sums that are not reduced over the replicas yet stay in the group's
 * `partial`, which is made on first use. With one replica there is nothing to
 * defer, and as in the reference REDUCE_NO_ALL_REDUCE has no effect.
 * REDUCE_ACCUMULATE adds to what the run has reduced so far; the first
 * reduction into the gradients stores.
 */
#pragma once
#include "broker/comm/comm.h"
#include "broker/engine/engine.h"
#include <stdint.h>

struct reduce_request;

#define REDUCTION_MAX 1024 /* how far a rank may be ahead of another */
/* Limit for one communicator, since all share the engine. */
#define REDUCTION_MAX_RUNNING 16

struct reduction {
	struct group *group;
	uint64_t sequence; /* within the group */
	uint64_t turn;     /* comm_worker.h */
	uint32_t flags;    /* enum reduce_flags */
	bool has_factor;
	double factor;
	uint32_t inputs[PLAN_MAX_RANKS];            /* slots, pinned */
	struct engine_order orders[PLAN_MAX_RANKS]; /* when they are written */
	uint64_t submitted;                         /* mask of ranks */
	bool is_running;
	/* Start of the time-out of ranks that have not submitted. */
	uint64_t since_ms;
	/* Since when it waits for memory of `partial`; 0: it does not wait. */
	uint64_t waits_since_ms;
	struct error shortage; /* the cause of that wait */
	struct reduction *next;
};

enum input_outcome {
	INPUT_OK = 0,
	/* All inputs that the rank may have are being reduced; `err` says so
	 * (-ETIMEDOUT), for a caller that gives up. */
	INPUT_WAIT = 1,
};

/* May the rank get an input of the group now? -EINVAL: the group has no
 * gradients. -EBUSY: the rank fills one already, or as many as it may have. */
int input_check(const struct group *group, uint32_t rank, struct error *err);

/* Give this slot to the rank as its input, and pin it. */
void input_add(struct group *group, uint32_t rank, uint32_t slot);

/*
 * The rank submits its input. -EINVAL: it is not the rank's input, the ranks
 * reduce in different orders or with different options, or the factor is
 * invalid.
 */
int reduction_submit(struct group *group, uint32_t rank,
		     const struct reduce_request *request,
		     uint64_t *ret_sequence, struct error *err);

enum reduction_outcome {
	REDUCTION_DONE = 0,
	REDUCTION_PENDING = 1,
};

/* Is the rank's reduction of that sequence number done? -EINVAL: it
 * has none. */
int reduction_look(const struct group *group, uint32_t rank, uint64_t sequence,
		   struct error *err);

/* The reduction is pending: -ETIMEDOUT, with what it waits for. */
int reduction_refuse_wait(const struct group *group, uint64_t sequence,
			  struct error *err);

/* Start the reductions that every rank has submitted. Commits. */
void reductions_progress(struct comm *comm);
uint64_t reductions_deadline(const struct comm *comm);
void reductions_describe_late(const struct comm *comm, struct error *ret);
/* -EBUSY: a reduction of the rank is not done, -EINVAL: it has not
 * submitted one. */
int reductions_check_commit(const struct comm *comm, uint32_t rank,
			    struct error *err);
/* The run is over: unpin and free everything, including inputs being filled. */
void reductions_free(struct comm *comm);
