/*
 * Groups: parameters that are unsharded and reduced together.
 *
 * A group is registered when every rank has requested the same group
 * (group_register.h) and there is memory (group_progress.h). The plan is made
 * from the first request and compared with every other request. The shards are
 * in two slots that the group_record keeps, one committed and one to be
 * written. Gradients and sums belong to the run, which pins them.
 */
#pragma once
#include "broker/comm/comm.h"
#include "broker/comm/group_record.h"
#include "broker/comm/group_spec.h"
#include "broker/comm/rank_memory.h"
#include "collective/plan.h"
#include <stdbool.h>
#include <stdint.h>

struct engine_plan;

struct group {
	struct comm *comm;
	uint64_t id; /* unique to this run; requests contain it */
	/* The group_record; 0 until its first registration is complete. */
	uint32_t record;
	char name[256];
	struct group_spec spec; /* owned; the first rank's request */
	struct plan plan;
	/* NULL if the engine gets no jobs */
	struct engine_plan *engine_plan;
	/* Whether all nodes compare, or have compared, the plan
	 * (comm_worker.h). */
	bool is_comparing, is_compared;
	/* The charge to ACCOUNT_GROUPS while there is no record. */
	uint64_t n_charged;
	uint32_t charged_uid; /* the user of that account */
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
	uint64_t n_gathers, n_reductions; /* the last sequence numbers */
	uint32_t index;     /* index among the ready groups of the run */
	uint64_t n_reduced; /* number of reductions that are done */
	/* The number of gathers that the ranks did by themselves, as far as
	 * they are counted. */
	uint64_t n_gathered;
	bool has_grads; /* a reduction into `grads` was submitted */
	/* For each rank the slot of the input that it fills, pinned, or 0.
	 * reductions_free() unpins them. */
	uint32_t inputs[PLAN_MAX_RANKS];
	struct group *next;
	struct group *id_next; /* next in the chain of comms.groups */
};

/* Returns the size of each slot of a rank_memory. `size` is the plan's size,
 * which is for one replica. */
uint64_t group_size(const struct group *group, uint64_t size);

/* Returns the group of that id in any communicator, also a failed one, or
 * NULL. */
struct group *group_find_id(const struct comms *comms, uint64_t id);

/* Find the group of that id in any communicator of the session, and the
 * session's rank there. */
int group_find(struct comms *comms, const struct session *session, uint64_t id,
	       struct group **ret, uint32_t *ret_rank, struct error *err);

/* Make an empty group that is being registered. Returns -ENOMEM if there is no
 * memory. */
int group_make(struct comm *comm, const char *name, uint64_t id,
	       struct group **ret, struct error *err);

/* These return whether the group is being registered, or its registration is
 * withdrawn because it cannot be completed for any rank. A withdrawn group
 * stays in the list until every rank was told. */
bool group_is_registering(const struct group *group);
bool group_is_withdrawn(const struct group *group);

/* Withdraw a registration, undoing all its changes. Waiting ranks get the cause
 * when their requests are rerun, other ranks when they request the group. */
void group_withdraw(struct group *group, const struct error *why);

/* Free the withdrawn groups whose ranks were all told. */
void groups_free_told(struct comm *comm);

/* groups_deadline() returns the time at which a rank is too late for a
 * registration (UINT64_MAX: never). groups_on_late() then fails the
 * communicator, or withdraws the group if memory is short. */
uint64_t groups_deadline(const struct comm *comm);
void groups_on_late(struct comm *comm);

/* Check that the rank may commit. Returns -EBUSY if it waits for a
 * registration. */
int groups_check_commit(const struct comm *comm, uint32_t rank,
			struct error *err);

/* Commit: change side and step, in the caller's transaction. */
void group_commit(struct group *group, uint64_t step);

/* groups_end() unpins everything and frees the plans when the run has ended,
 * but keeps the ids for ranks that still use them. groups_free(), later or at
 * once, frees everything. */
void groups_end(struct comm *comm);
void groups_free(struct comm *comm);
