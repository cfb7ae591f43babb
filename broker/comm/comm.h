/*
 * Communicators: ranks that work together, and the groups that they share.
 *
 * The persistent part is in the catalog (comm_record, group_record): the
 * shards, and the step that all ranks committed last. A run is a struct comm:
 * it begins when the first rank joins and is over when all ranks have left. It
 * fails as soon as one rank dies or is late, the engine fails, or the remaining
 * ranks request something that needs a rank that has left. A failed run stays
 * until its survivors have left, so that they learn the cause; meanwhile the
 * name can be joined again. Runs whose ranks do all work without the broker
 * outlive it (run_record.h).
 *
 * A rank waits by a parked request for the communicator's key (waiter.h):
 * comm_wake() reruns all such requests.
 *
 * Verbs start no work: they record the requests of ranks, and the rounds of
 * comm_progress.h, between transactions, start the work that is possible.
 *
 * This header has the state, and functions that find, fail and leave a
 * communicator. comm_join.h joins. comm_run.h begins and ends runs, and
 * run_adopt.h continues them after a restart. comm_commit.h commits.
 * comm_late.h has the deadlines. comm_worker.h is for devices where fsdp-worker
 * does the work. group.h registers groups and has their memory. gather.h
 * unshards, reshards and has the limiter. reduce.h has inputs and reductions.
 */
#pragma once
#include "broker/base/log.h"
#include "broker/base/loop.h"
#include "broker/catalog/catalog.h"
#include "broker/comm/call.h"
#include "broker/comm/gather_look.h"
#include "collective/limiter.h"
#include "collective/plan.h"
#include "proto/error.h"
#include "shm/board.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stdint.h>

struct comms;
struct engine;
struct store;
struct comm;
struct full_aside;
struct group;
struct session;

#define COMM_KEY_SIZE 32
#define RANK_TEXT     160 /* for comm_rank_name() and lists of ranks */

/* Returns the rank's bit in a mask. Masks are by index in comm.ranks. */
static inline uint64_t rank_bit(uint32_t rank)
{
	return UINT64_C(1) << rank;
}

/* Returns the first rank of a mask, which must not be 0. */
static inline uint32_t rank_first(uint64_t mask)
{
	return (uint32_t)__builtin_ctzll(mask);
}

struct comm_rank {
	struct comm *comm;
	uint32_t rank;  /* among all ranks, perhaps on several nodes */
	bool is_placed; /* it is known which rank has this place */
	struct device_uuid device; /* valid once joined; all 0: the host */
	/* NULL if it has not joined, or has left or died. */
	struct session *session;
	struct comm_rank *session_next, *session_prev;
	bool has_left;    /* or died */
	bool is_answered; /* it got the reply that it has joined */
	/* The number of the request that gets this reply. It is the last one,
	 * since the client may have given up an earlier one. */
	uint64_t reply_to;
	uint32_t pid; /* kept for messages after it is gone */
	char command[16];
	/* The number of its inputs, including those that are being reduced. It
	 * is not used if ranks reduce without the broker (input.h). */
	uint32_t n_inputs;
	uint64_t step; /* the step that it has committed; 0: none yet */
	/* The gathers that it began before the commit, if the ranks gather
	 * without the broker. */
	uint64_t n_gathers;
};

struct comm {
	struct comms *comms;
	uint64_t id;
	/* The comm_record; 0 when the run has failed or is over. */
	uint32_t record;
	uint32_t run;          /* run_record; 0: it has none */
	enum comm_state state; /* proto/message.h */
	struct error failure;  /* valid in COMM_FAILED */
	uint32_t n_world, n_shards;
	/* The ranks on this node. Counts and indexes of ranks in this struct
	 * are for this node, in the order of `ranks`. If all ranks are on this
	 * node, the index is the rank. */
	uint32_t n_ranks;
	uint32_t n_joined, n_left; /* n_left: left or died */
	bool is_on_devices;        /* each rank has memory of its own */
	/* The ranks do the work on devices; otherwise fsdp-worker does it. */
	bool is_by_ranks;
	uint32_t verdict; /* verdict.h; 0: none */
	/* enum comm_direct: the work that its ranks do by themselves */
	uint32_t direct;
	struct board board; /* run_board.h; page NULL: not made */
	bool is_board_kept; /* in the fd store */
	/* These fields are for comm_worker.h. */
	bool is_at_worker;             /* the worker has opened it, or will */
	uint64_t n_begun, n_submitted; /* gathers and reductions together */
	uint64_t comparing, compared;  /* steps, compared over all nodes */
	bool has_nccl_id;
	uint8_t nccl_id[MESSAGE_NCCL_ID_SIZE];
	int32_t timeout_ms;
	uint32_t n_inputs; /* the number of inputs that a rank may have */
	struct comm_rank ranks[PLAN_MAX_RANKS];
	char key[COMM_KEY_SIZE]; /* key of its parked requests */
	char name[256];          /* for messages */
	/* The request of the first rank; its name points to `name`. */
	struct comm_join_request asked;
	/* Copies from the record, which remain valid without it. */
	struct access_class access;
	uint32_t uid;
	uint64_t step; /* the last step that all ranks committed */
	struct group *first_group, *last_group;
	uint32_t n_groups; /* length of that list */
	uint32_t n_ready;  /* number of those that are ready */
	/* Groups that are neither ready nor withdrawn. */
	uint32_t n_registering;
	struct limiter *limiter;
	struct calls gathers; /* gather.h */
	struct full_aside *first_aside;
	/* When memory was last asked back, and the deadline to do it again. */
	uint64_t recalled_ms;
	uint32_t recall_position;
	struct calls reductions; /* reduce.h */
	/* The step that some ranks have committed; 0: none. */
	uint64_t committing;
	uint64_t committing_since_ms;
	uint64_t begun_ms;
	/* Of the time when a rank is too late, or is looked at before that. */
	uint32_t deadline_position;
	uint64_t looked_ms; /* comm_look_all() */
	/* The next look, and the time before it; 0: no rank waits. */
	uint64_t look_at_ms, look_ms;
	bool wants_progress;
	struct comm *next, *prev;
};

#define COMM_GROUP_BUCKETS 1024

struct comms {
	/* Borrowed. */
	struct store *store;
	struct engine *engine;
	struct comm *first;
	uint32_t n;
	struct deferred progress;
	bool is_room_new; /* comms_on_room() was called */
	struct group *groups[COMM_GROUP_BUCKETS]; /* all groups, hashed by id */
	struct log_limit failures;
	/* These counters begin with the broker. */
	uint64_t n_failed, n_limited, n_unshards, n_commits;
	struct gather_totals gathered; /* of runs that are over */
};

/* Limits of the communicators of one session, which leave half of a node's runs
 * (TABLE_RUNS) to other sessions, and of the groups of one communicator. */
#define COMM_MAX_OF_SESSION 2043
#define COMM_MAX_GROUPS     1024

/* Remove the session from all of its communicators, because it ends. If its
 * process has died, its runs fail. */
void comm_end_session(struct session *session);

/* Find the place of a rank among the ranks of this node: its own place or a
 * free one. Returns false if no place is left. */
bool comm_find_place(const struct comm *comm, uint32_t rank, uint32_t *ret);

/* Make the session that rank. */
void comm_attach(struct comm *comm, uint32_t rank, struct session *session);

/* Let the rank leave. The run fails if other ranks then request something that
 * needs all ranks. */
void comm_leave(struct comm *comm, uint32_t rank);

/*
 * Find the running communicator of that id in which the session is a rank.
 * Returns -ECONNABORTED, with the message of its failure, if it has failed or
 * is not known.
 */
int comm_find(struct comms *comms, const struct session *session, uint64_t id,
	      struct comm **ret, uint32_t *ret_rank, struct error *err);

/* Returns the communicator of that id, also a failed one, or NULL. */
struct comm *comm_find_id(const struct comms *comms, uint64_t id);

/* Like comm_find(), but also finds failed communicators, which a rank may
 * leave. */
int comm_find_any(struct comms *comms, const struct session *session,
		  uint64_t id, struct comm **ret, uint32_t *ret_rank,
		  struct error *err);

/* Find the rank of the session. Returns false if the session is not a rank. */
bool comm_find_rank(const struct comm *comm, const struct session *session,
		    uint32_t *ret);

/* Returns the communicator that forms or runs under that name, or NULL. */
struct comm *comm_find_name(const struct comms *comms, const char *name);

/* Set `err` to the failure of a failed communicator, and return its code. */
int comm_refuse_failed(const struct comm *comm, struct error *err);

/*
 * Fail the communicator. `format` names the rank and the cause. Parked requests
 * of all ranks get their replies, memory is released, and jobs in progress keep
 * their pins until they are done. The struct stays. Idempotent: the first
 * failure is kept.
 */
void comm_fail(struct comm *comm, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Fail the communicator because the rank "has <how>". */
void comm_fail_by(struct comm *comm, uint32_t rank, const char *how);

/* If the process of that rank is ending, fail the run now, as its death will do
 * later. Its memory is released only after the death. Any number is allowed as
 * `rank`. */
void comm_look(struct comm *comm, uint32_t rank);
/* Do this for all ranks, unless it was just done. */
void comm_look_all(struct comm *comm);

/* Detach the run from its record, which is kept until its deadline. */
void comm_release_record(struct comm *comm);

/* Format "rank 2 (pid 123, trainer)". Returns `ret`. */
const char *comm_rank_name(const struct comm *comm, uint32_t rank,
			   char ret[RANK_TEXT]);

/* Rerun the parked requests of ranks, and run a round of comm_progress.h
 * soon. */
void comm_wake(struct comm *comm);

/* List the ranks that are missing from `done_mask`, as the subject of a
 * sentence: "rank 1 (pid ...), like 2 other ranks,". */
void comm_name_missing(const struct comm *comm, uint64_t done_mask,
		       char ret[RANK_TEXT]);

/* comm_has_all() returns whether all ranks have joined, comm_is_over() whether
 * all that joined have left. */
bool comm_has_all(const struct comm *comm);
bool comm_is_over(const struct comm *comm);

/* These return the masks of all ranks, and of those that have left. */
uint64_t comm_all(const struct comm *comm);
uint64_t comm_left(const struct comm *comm);

/* Returns -EBUSY if `rank` has already committed the present step. */
int comm_check_not_committing(const struct comm *comm, uint32_t rank,
			      struct error *err);
