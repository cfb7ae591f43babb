/*
 * Groups: parameters that are unsharded and reduced together.
 *
 * Registered when every rank has asked for the same; the plan is made from the
 * first, and compared with every other. The shards are two slots that the
 * group_record keeps, one committed, one to be written; gradients and sums are
 * the run's own, and pinned by it.
 */
#pragma once
#include "broker/collective/plan.h"
#include "broker/comm.h"
#include "broker/group_record.h"
#include "broker/group_spec.h"
#include "broker/rank_memory.h"
#include <stdbool.h>
#include <stdint.h>

struct group {
	struct comm *comm;
	uint64_t id;     /* of this run's group; what requests name */
	uint32_t record; /* group_record; 0: being registered for the first
			    time */
	char name[256];
	struct group_spec spec; /* owned: what the first rank asked for */
	struct plan plan;
	uint64_t engine_plan;
	bool is_agreeing, is_agreed; /* all nodes have that plan: comm_worker.h
				      */
	uint64_t n_charged;    /* of ACCOUNT_GROUPS, while there is no record */
	uint32_t charged_uid;  /* for that */
	uint64_t registered;   /* mask of ranks that asked for it */
	uint64_t answered;     /* ... and have been told how it ended */
	bool is_ready;         /* all did, and there is memory */
	uint64_t since_ms;     /* first asked for, or that all have */
	struct error refusal;  /* withdrawn: for all ranks to hear */
	struct error shortage; /* why it is not ready though all asked */
	struct rank_memory shards[2]; /* the record has the same */
	bool is_fresh[2];             /* the record has them not yet: pinned */
	uint32_t side;                /* committed */
	uint64_t step;                /* 0: nothing committed */
	struct rank_memory grads;     /* pinned; none: all frozen */
	struct rank_memory partial;   /* pinned; none yet */
	bool has_partial;             /* sums in it wait for an all-reduce */
	struct rank_memory kept_full; /* pinned: resharded to a smaller mesh */
	uint64_t n_gathers, n_reductions; /* sequences handed out */
	uint64_t n_reduced;               /* reductions done */
	bool has_grads; /* something was reduced into `grads` */
	uint32_t inputs[PLAN_MAX_RANKS]; /* slot a rank fills, pinned; 0.
					  * reductions_free() unpins them */
	struct group *next;
	struct group *id_next; /* chain of comms.groups */
};

/* What `size` of the plan, which is of one replica, is in each slot of a
 * rank_memory. */
uint64_t group_size(const struct group *group, uint64_t size);

/* The group of that id in any communicator of the session, with its rank. */
int group_find(const struct session *session, uint64_t id, struct group **ret,
	       uint32_t *ret_rank, struct error *err);

enum group_outcome {
	GROUP_READY = 0,
	GROUP_WAIT = 1, /* again when the communicator's key was woken */
};

/*
 * A rank registers, or goes on waiting for the others: enum group_outcome, and
 * the group. If it asks for what cannot be, or for something else than others
 * did, then all ranks are refused, each once, those that come later too:
 * -EINVAL says where they differ. -EEXIST: it has it already.
 */
int group_register(struct comm *comm, uint32_t rank,
		   const struct group_request *request, struct group **ret,
		   struct error *err);

/* Registrations that have all ranks: memory, record, ready. */
void groups_progress(struct comm *comm);

/* When somebody is too late for one (UINT64_MAX: nobody). What to do then:
 * the communicator fails, or, if memory is short, the group is withdrawn. */
uint64_t groups_deadline(const struct comm *comm);
void groups_on_late(struct comm *comm);

/* Does the rank wait for a registration? -EBUSY: it cannot commit. */
int groups_check_commit(const struct comm *comm, uint32_t rank,
			struct error *err);

/* The commit: in one transaction of the caller's, sides and steps change. */
void group_commit(struct group *group, uint64_t step);

/* Their records count this run's works, too. Call it once, while the run has
 * its record and its groups. */
void groups_keep_counts(struct comm *comm);

/* The run has ended: unpin everything and forget plans, but keep the ids, for
 * those who still ask. Then, or at once, everything. */
void groups_end(struct comm *comm);
void groups_free(struct comm *comm);
