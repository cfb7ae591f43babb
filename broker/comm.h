/*
 * Communicators: ranks that work together, and the groups they share.
 *
 * What lasts is in the catalog (comm_record, group_record): the shards, the
 * step that all ranks committed last. What runs is a struct comm: it begins
 * with the first rank that joins and is over when all have left, or has failed
 * as soon as one rank dies or is late, the engine fails, or others want
 * something that needs one who has left. A failed one stays until its survivors
 * have left, to tell them why; meanwhile the name can be joined again. After a
 * restart of the broker nothing runs.
 *
 * Everything a rank waits for is a parked request that waits for the
 * communicator's key (waiter.h): comm_wake() has them all look again.
 *
 * Nothing is begun inside a verb: verbs note what a rank wants, and
 * comm_progress(), between transactions, starts what can be started.
 *
 * This file: joining, leaving, failing, committing, what is kept.
 * comm_worker.h: on devices, where fsdp-worker does the work.
 * group.h: registering, storage. gather.h: unshard, reshard, the limiter.
 * reduce.h: inputs and reductions.
 */
#pragma once
#include "broker/catalog.h"
#include "broker/collective/limiter.h"
#include "broker/collective/plan.h"
#include "broker/loop.h"
#include "proto/error.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct comm;
struct gather;
struct group;
struct reduction;
struct session;
struct verb_call;

#define COMM_KEY_SIZE 32

struct comm_rank {
	uint32_t rank;  /* in the world, which may span several nodes */
	bool is_placed; /* it is known which rank has this place */
	struct device_uuid device; /* once joined; the host */
	struct session *session; /* NULL: not joined, or it has left or died */
	bool has_left;           /* or died */
	bool is_answered;        /* it knows that it has joined */
	uint32_t pid;            /* for sentences, also when it is gone */
	char command[16];
	uint32_t n_inputs; /* it has, or that are being reduced */
	uint64_t step;     /* it has committed; until then 0 */
};

struct comm {
	struct broker *broker;
	uint64_t id;
	uint32_t record;       /* comm_record; 0 once failed or over */
	enum comm_state state; /* proto/message.h */
	struct error failure;  /* COMM_FAILED */
	uint32_t n_world, n_shards;
	/* On this node. All that counts ranks or has one as a number means
	 * these, by their place in `ranks`; where all of the world are here,
	 * that is their rank. */
	uint32_t n_ranks;
	uint32_t n_joined, n_left; /* left or died */
	bool is_on_devices;        /* each rank has memory of its own */
	bool is_by_ranks; /* and they do the work: else it is fsdp-worker's */
	/* comm_worker.h: */
	bool is_at_worker;             /* which has opened it, or is about to */
	uint64_t n_begun, n_submitted; /* gathers and reductions, together */
	uint64_t agreeing, agreed;     /* steps, over all nodes */
	bool has_nccl_id;
	uint8_t nccl_id[MESSAGE_NCCL_ID_SIZE];
	int32_t timeout_ms;
	uint32_t n_inputs; /* a rank may have */
	struct comm_rank ranks[PLAN_MAX_RANKS];
	char key[COMM_KEY_SIZE];        /* what its parked requests wait for */
	char name[256];                 /* for sentences */
	struct comm_join_request asked; /* by the first; its name is ours */
	struct access_class access;     /* the record's, also without one */
	uint32_t uid;
	uint64_t step; /* last one that all committed */
	struct group *first_group, *last_group;
	uint32_t n_groups;      /* in that list */
	uint32_t n_registering; /* of them not ready and not withdrawn */
	struct limiter *limiter;
	struct gather *first_gather, *last_gather; /* gather.h */
	struct full_aside *first_aside;
	struct reduction *first_reduction, *last_reduction; /* reduce.h */
	uint64_t committing; /* step some ranks have committed; 0 */
	uint64_t committing_since_ms;
	uint64_t begun_ms;
	uint32_t deadline_position; /* when somebody is too late */
	bool wants_progress;
	struct comm *next, *prev;
};

#define COMM_GROUP_BUCKETS 1024

struct comms {
	struct comm *first;
	uint32_t n;
	struct deferred progress;
	bool is_room_new; /* comms_on_room() was called */
	struct group *groups[COMM_GROUP_BUCKETS]; /* of all, by id */
	uint64_t logged_ms;                       /* the last failure's line */
	uint32_t n_unlogged;
	/* since start */
	uint64_t n_failed, n_limited, n_unshards, n_commits;
};

/* After a restart: kept communicators get their deadlines. Call it before
 * slot_adopt_all(). */
int comms_adopt(struct broker *broker, struct error *err);
/* Everything volatile goes; what lasts stays. */
void comms_deinit(struct broker *broker);

/* Of one session; groups of one communicator. */
#define COMM_MAX_OF_SESSION 64
#define COMM_MAX_GROUPS     1024
/* What a run counts beside its record (comm_record.h), in groups. */
#define COMM_RUN_CHARGE 4

/* The session is over: it leaves, or has died in, all of its communicators. */
void comms_end_session(struct broker *broker, struct session *session);

/* Memory was freed or made: gathers and registrations may go on. */
void comms_on_room(struct broker *broker);

/* The part of an idle round. True: there is more. */
bool comms_on_idle(struct broker *broker);

enum comm_join_outcome {
	COMM_JOIN_DONE = 0,
	COMM_JOIN_WAIT = 1, /* for others; again when its key was woken */
};

/*
 * Join, or go on waiting for the others: enum comm_join_outcome. It waits for
 * the communicator in `ret`: the one that forms, or one of that name which is
 * not over. `is_late`: its time is over, so that it waits for the end of an
 * earlier run no longer; for the others it does until the run's time is over.
 */
int comm_join(struct session *session, const struct comm_join_request *request,
	      bool is_late, struct comm **ret, struct error *err);

/* The first joins: a run of the record. Nothing is changed if it fails. */
int comm_new(struct broker *broker, uint32_t record,
	     const struct comm_join_request *request, struct comm **ret,
	     struct error *err);

/* The place of a rank of the world among those of this node, its own or a free
 * one; false: there is none left for it. */
bool comm_find_place(const struct comm *comm, uint32_t rank, uint32_t *ret);

/* The rank goes. What others still want to do together fails then. */
void comm_leave(struct comm *comm, uint32_t rank);

/* The rank has written all its next shards. -EBUSY, -EINVAL. */
int comm_commit(struct comm *comm, uint32_t rank, uint64_t step,
		struct error *err);

/*
 * The running communicator of that id, of which the session is a
 * rank. -ECONNABORTED with the sentence of its failure, or that it is unknown.
 */
int comm_find(const struct session *session, uint64_t id, struct comm **ret,
	      uint32_t *ret_rank, struct error *err);

/* The same, but also one that has failed: to leave it. */
int comm_find_any(const struct session *session, uint64_t id, struct comm **ret,
		  uint32_t *ret_rank, struct error *err);

/* The rank that the session is; false: none. */
bool comm_find_rank(const struct comm *comm, const struct session *session,
		    uint32_t *ret);

/* One that forms or runs by that name; NULL. */
struct comm *comm_find_name(const struct broker *broker, const char *name);

/* Its failed self as an error: copies the sentence. */
int comm_refuse_failed(const struct comm *comm, struct error *err);

/*
 * It has failed: `format` says who and why. Parked requests of all ranks are
 * answered, memory is let go of, jobs that run keep their pins until done.
 * The struct stays. Idempotent: the first failure counts.
 */
void comm_fail(struct comm *comm, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* "rank 2 (pid 123, trainer)" into a buffer that is returned. */
const char *comm_rank_name(const struct comm *comm, uint32_t rank, char *buffer,
			   size_t size);

/* Something changed: parked requests look again; comm_progress() runs soon. */
void comm_wake(struct comm *comm);

/* Set the deadline anew: the earliest time at which somebody is too late, of
 * join, registrations, gathers, reductions and commit. */
void comm_update_deadline(struct comm *comm);

/* Who has not done it yet: "rank 1 (pid ...) and 2 more" by the mask of those
 * who have. */
void comm_name_missing(const struct comm *comm, uint64_t done_mask, char *ret,
		       size_t size);

/* All ranks as a mask. */
uint64_t comm_all(const struct comm *comm);

/* Those who have committed the step that is being committed. */
uint64_t comm_committed(const struct comm *comm);

/* What `rank` does next would run into its own commit: -EBUSY. */
int comm_check_not_committing(const struct comm *comm, uint32_t rank,
			      struct error *err);
