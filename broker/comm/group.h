/*
 * Groups: parameters that are unsharded and reduced together.
 *
 * A group is registered when every rank has requested the same
 * (group_register.h) and there is memory (group_progress.h); the plan is made
 * from the first request and compared with every other. The shards are two
 * slots that the group_record keeps, one committed and one to be written.
 * Gradients and sums belong to the run, which pins them.
 */
#pragma once
#include "broker/comm/comm.h"
#include "broker/comm/group_record.h"
#include "broker/comm/group_spec.h"
#include "broker/comm/rank_memory.h"
#include "collective/plan.h"
#include <stdbool.h>
#include <stdint.h>

struct group {
	struct comm *comm;
	uint64_t id; /* of this run's group; requests name it */
	/* group_record; 0 while it is being registered for the first time. */
	uint32_t record;
	char name[256];
	struct group_spec spec; /* owned; the first rank's request */
	struct plan plan;
	uint64_t engine_plan;
	/* All nodes have the same plan: comm_worker.h. */
	bool is_comparing, is_compared;
	/* Against ACCOUNT_GROUPS, while there is no record. */
	uint64_t n_charged;
	uint32_t charged_uid; /* whose account that is */
	uint64_t registered;  /* mask of ranks that requested it */
	uint64_t answered;    /* mask of ranks that got the result */
	bool is_ready;        /* all requested it, and there is memory */
	/* The time at which the first rank, or later the last rank, requested
	 * it. */
	uint64_t since_ms;
	struct error refusal;  /* why it was withdrawn, for all ranks */
	struct error shortage; /* why it is not ready after all requests */
	struct rank_memory shards[2]; /* as in the record */
	bool is_fresh[2];             /* pinned, not in the record yet */
	uint32_t side;                /* index of the committed side */
	uint64_t step;                /* 0: nothing was committed */
	struct rank_memory grads;     /* pinned; empty if all are frozen */
	struct rank_memory partial;   /* pinned; empty until needed */
	bool has_partial;             /* its sums wait for an all-reduce */
	struct rank_memory kept_full; /* pinned; resharded to a smaller mesh */
	uint64_t n_gathers, n_reductions; /* sequence numbers used */
	uint32_t index;     /* among those of the run that are ready */
	uint64_t n_reduced; /* reductions done */
	/* The number of gathers that the ranks did by themselves, as far as
	 * they are counted. */
	uint64_t n_gathered;
	bool has_grads; /* a reduction into `grads` was submitted */
	/* The slot that a rank fills, pinned, or 0; reductions_free()
	 * unpins it. */
	uint32_t inputs[PLAN_MAX_RANKS];
	struct group *next;
	struct group *id_next; /* next in the chain of comms.groups */
};

/* Return the size of each slot of a rank_memory, if the plan, which is for one
 * replica, has `size`. */
uint64_t group_size(const struct group *group, uint64_t size);

/* Find the group of that id in any communicator, also a failed one, or NULL. */
struct group *group_find_id(const struct comms *comms, uint64_t id);

/* Find the group of that id in any communicator of the session, with
 * its rank. */
int group_find(struct comms *comms, const struct session *session, uint64_t id,
	       struct group **ret, uint32_t *ret_rank, struct error *err);

/* Make an empty group that is being registered. -ENOMEM. */
int group_make(struct comm *comm, const char *name, uint64_t id,
	       struct group **ret, struct error *err);

/* A registration is withdrawn if it can be completed for no rank. It stays in
 * the list until every rank was told. */
bool group_is_registering(const struct group *group);
bool group_is_withdrawn(const struct group *group);

/* Withdraw a registration, undoing all its changes. Waiting ranks get the cause
 * when their requests are rerun, the others when they come. */
void group_withdraw(struct group *group, const struct error *why);

/* Free the withdrawn groups of which every rank was told. */
void groups_free_told(struct comm *comm);

/* When a rank is too late for a registration (UINT64_MAX: never), and the
 * consequence: the communicator fails, or, if memory is short, the group
 * is withdrawn. */
uint64_t groups_deadline(const struct comm *comm);
void groups_on_late(struct comm *comm);

/* -EBUSY: the rank waits for a registration, so it cannot commit. */
int groups_check_commit(const struct comm *comm, uint32_t rank,
			struct error *err);

/* Commit: switch side and step, in the caller's transaction. */
void group_commit(struct group *group, uint64_t step);

/* The run has ended: unpin everything and free the plans, but keep the
 * ids for ranks that still use them. groups_free(), then or at once,
 * frees everything. */
void groups_end(struct comm *comm);
void groups_free(struct comm *comm);
