/*
 * Reductions: the ranks' gradients of one group, summed and cut into shards.
 *
 * As with gathers one list is the common order. A reduction runs when every
 * rank has handed in its input, in the order of the list; the inputs are pinned
 * until it is done, and then every rank may have one more.
 *
 * An input is pinned from the moment a rank gets it, so that its slot cannot
 * become something else while the group names it. It counts against the
 * rank's n_inputs until its reduction is done.
 *
 * Sums that are not reduced over the replicas yet stay in the group's
 * `partial`, made when first wanted. With one replica there is nothing to put
 * off: as in the reference REDUCE_NO_ALL_REDUCE then changes nothing.
 * REDUCE_ACCUMULATE adds to what the run has reduced so far; its first
 * reduction into the gradients stores.
 */
#pragma once
#include "broker/comm.h"
#include <stdint.h>

struct reduce_request;

#define REDUCTION_MAX 1024 /* that a rank may be ahead of another */
/* Of one communicator, at the engine: it is for others too. */
#define REDUCTION_MAX_RUNNING 16

struct reduction {
	struct group *group;
	uint64_t sequence; /* in the group */
	uint64_t turn;     /* comm_worker.h */
	uint32_t flags;    /* enum reduce_flags */
	bool has_factor;
	double factor;
	uint32_t inputs[PLAN_MAX_RANKS]; /* slots, pinned */
	uint64_t submitted;              /* mask of ranks */
	bool is_running;
	uint64_t since_ms;       /* who has not handed in is late since */
	uint64_t waits_since_ms; /* for room of `partial`; 0: it does not */
	struct error shortage;   /* then: why */
	struct reduction *next;
};

enum input_outcome {
	INPUT_OK = 0,
	INPUT_WAIT = 1, /* all that it may have are being reduced; `err` says
			   so, should the caller give up (-ETIMEDOUT) */
};

/* May the rank have an input of the group now? -EINVAL: it has no gradients.
 * -EBUSY: it fills one already, or as many as it may have. */
int input_check(const struct group *group, uint32_t rank, struct error *err);

/* The rank fills this slot, which is pinned for it. */
void input_add(struct group *group, uint32_t rank, uint32_t slot);

/*
 * The rank hands its input in. -EINVAL: it is not the rank's input, the ranks
 * reduce in another order or with other options, or a factor that is none.
 */
int reduction_submit(struct group *group, uint32_t rank,
		     const struct reduce_request *request,
		     uint64_t *ret_sequence, struct error *err);

enum reduction_outcome {
	REDUCTION_DONE = 0,
	REDUCTION_PENDING = 1,
};

/* Is the rank's reduction of that sequence done? -EINVAL: it has none. */
int reduction_look(const struct group *group, uint32_t rank, uint64_t sequence,
		   struct error *err);

/* It is pending: -ETIMEDOUT, with what it waits for. */
int reduction_refuse_wait(const struct group *group, uint64_t sequence,
			  struct error *err);

/* Start those that every rank has handed in. Commits. */
void reductions_progress(struct comm *comm);
uint64_t reductions_deadline(const struct comm *comm);
void reductions_describe_late(const struct comm *comm, struct error *ret);
/* -EBUSY: one of the rank's is not done, -EINVAL: it owes one. */
int reductions_check_commit(const struct comm *comm, uint32_t rank,
			    struct error *err);
/* The run is over: unpin, forget, with the inputs that are being filled. */
void reductions_free(struct comm *comm);
