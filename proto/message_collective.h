/*
 * Messages of collectives: requests, then replies. broker/comm/comm.h and
 * broker/comm/group.h describe collectives.
 */
#pragma once
#include "proto/message_part.h"

/* --- requests ------------------------------------------------------------ */

enum comm_limiter {
	COMM_LIMITER_WINDOW = 0,
	COMM_LIMITER_FSDP1 = 1,
};

/* The processes that move and add data on devices. */
enum comm_executor {
	COMM_EXECUTOR_RANK = 0, /* in the ranks' own processes */
	/* in fsdp-worker, which also does it on host memory */
	COMM_EXECUTOR_WORKER = 1,
};

/* The memory that is registered with NCCL. */
enum comm_memory {
	COMM_MEMORY_DEFAULT = 0,    /* no memory */
	COMM_MEMORY_REGISTERED = 1, /* all chunks */
};

/* The work that ranks on host memory do without the broker (shm/board.h). */
enum comm_direct {
	COMM_DIRECT_REDUCE = 1,
	COMM_DIRECT_GATHER = 2,
};
#define COMM_DIRECT_ALL (COMM_DIRECT_REDUCE | COMM_DIRECT_GATHER)

/* Joins a communicator. The reply, struct comm_reply, is sent when all ranks
 * have joined. */
struct comm_join_request {
	const char *name;
	struct access_class access; /* of the memory of its groups */
	/* 1 to MESSAGE_MAX_RANKS; on devices up to MESSAGE_MAX_WORLD */
	uint32_t n_ranks;
	uint32_t rank; /* less than n_ranks */
	/* a divisor of n_ranks; 0 is decoded as n_ranks */
	uint32_t n_shards;
	/* > 0: time for which other ranks may be late, here and in each
	 * collective */
	int32_t timeout_ms;
	/* > 0: time for which groups are kept without ranks */
	uint64_t ttl_ms;
	uint32_t limiter;     /* enum comm_limiter */
	uint32_t limit;       /* number of groups unsharded at a time; 0 is 2 */
	uint64_t limit_bytes; /* limit of their bytes; 0: no limit */
	uint32_t n_inputs;    /* >= 1; gradient inputs of a rank at a time */
	/* of this rank; on the host the fields below are 0 */
	struct device_uuid device;
	/* number of ranks on this node: 1 to MESSAGE_MAX_RANKS; 0 is decoded as
	 * n_ranks */
	uint32_t n_local;
	bool has_nccl_id;
	uint8_t nccl_id[MESSAGE_NCCL_ID_SIZE];
	uint32_t executor; /* enum comm_executor */
	uint32_t memory;   /* enum comm_memory */
	/* enum comm_direct: what this rank supports; unknown bits are
	 * ignored */
	uint32_t direct;
};

/*
 * The body of comm_board and comm_leave. The first gets the board of a run
 * (shm/board.h) as an fd, which all ranks of the node may write, and returns
 * -EOPNOTSUPP if some ranks are on other nodes. The replies are empty.
 */
struct comm_request {
	uint64_t comm;
};

/* Tells the broker that the process of this rank seems to be ending (ending.h),
 * or asks it to look at all ranks of this node. If one is ending, the run fails
 * now. The reply is empty, or the failure of the run. */
struct comm_look_request {
	uint64_t comm;
	uint32_t rank;
	bool all; /* `rank` is ignored */
};

/* Gets memory of a run in which ranks reduce without the broker: an input of
 * any rank, or the partial sums of the group, which are allocated at the first
 * request. The reply is a places_reply with one place, which the rank may
 * write. Returns -ENOENT if the run has no such input. */
struct comm_place_request {
	uint64_t group;
	bool is_input;
	struct slot_ref input; /* if is_input */
	int32_t timeout_ms;    /* for the memory of partial sums */
};

/* Gets memory of a run whose ranks gather without the broker (shm/gathers.h):
 * this version of a buffer for whole parameters. It is large enough for the
 * group and allocated at the first request. The reply is a places_reply with
 * one place, which the rank may write. Returns -ETIMEDOUT if there is no
 * memory. */
struct gather_buffer_request {
	uint64_t group;
	uint32_t buffer, version;
	int32_t timeout_ms;
};

/* Returns an input to the broker, when no rank will read it any more. Ranks
 * that reduce without the broker keep their inputs until then. */
struct input_end_request {
	uint64_t comm;
	struct slot_ref input; /* from a MESSAGE_INPUT */
};

/* Tells the broker why the communicator cannot continue: an error of the rank's
 * engine. */
struct comm_fail_request {
	uint64_t comm;
	const char *sentence; /* at most MESSAGE_MAX_TEXT bytes */
};

/* Ends the groups of a communicator that no rank is in. */
struct comm_remove_request {
	const char *name;
};

struct group_param {
	const char *name;
	struct tensor_type type; /* contiguous */
	int32_t shard_dim;
	bool is_frozen;
};

/* Registers a group. The reply, struct group_reply, is sent when all ranks have
 * registered the same group. */
struct group_request {
	uint64_t comm;
	const char *name;
	/* 0: that of the parameter */
	uint32_t param_dtype, input_dtype, reduce_dtype;
	uint32_t layout; /* 0 or 1: enum plan_layout */
	bool stays_unsharded;
	bool is_offloaded; /* shards and gradients are kept in host memory */
	uint32_t n_gather_caps, n_reduce_caps;
	/* only their number is checked here */
	double *gather_caps_mb, *reduce_caps_mb;
	uint32_t n_params; /* >= 1 */
	struct group_param *params;
};

/* Begins an unshard. The reply is a struct work_reply. */
struct unshard_request {
	uint64_t group;
};

/* The reply is empty. */
struct reshard_request {
	uint64_t group;
	/* number of ranks of the smaller mesh that keeps it; 0: all keep it */
	uint32_t n_mesh;
};

/* Gets memory for a gradient input. Parks until the rank may have one more
 * input and there is memory. The reply is a places_reply with one place, which
 * the rank may write. */
struct input_request {
	uint64_t group;
	int32_t timeout_ms;
};

enum reduce_flags {
	REDUCE_ACCUMULATE = 1,
	/* replicas: keep the sums of this mesh for later */
	REDUCE_NO_ALL_REDUCE = 2,
	REDUCE_FORCE_SUM = 4,
};

/* Begins a reduction. The reply is a work_reply. The input then belongs to the
 * broker. */
struct reduce_request {
	uint64_t group;
	struct slot_ref input; /* from a MESSAGE_INPUT */
	uint32_t flags;        /* enum reduce_flags */
	bool has_factor;
	double factor;
	/* A timeline of the session (shm/timeline.h). The input is complete
	 * when it reaches `value`; with 0 it is complete now. Only allowed if
	 * comm_reply has takes_fences. */
	uint32_t timeline;
	uint64_t value;
};

/* The reply is a work_reply whose sequence is the step. */
struct commit_request {
	uint64_t comm;
	uint64_t step; /* > 0, and greater than the last step */
	/* The number of gathers that the rank has begun without the broker. It
	 * must be the same for all ranks that commit this step. */
	uint64_t n_gathers;
};

enum work_kind {
	WORK_UNSHARD = 1,
	WORK_REDUCE = 2,
	WORK_COMMIT = 3, /* `group` is 0 */
};

/* Parks until the work is done. The reply is a places_reply. For an unshard it
 * has one place: the whole parameters, with a hold. */
struct wait_request {
	uint64_t comm;
	uint64_t group;
	uint32_t kind;     /* enum work_kind */
	uint64_t sequence; /* for an unshard also 0: the one that is open */
	int32_t timeout_ms;
};

struct groups_request {
	const char *comm; /* name; "": all communicators */
	uint64_t cursor;
};

struct group_plan_request {
	const char *comm, *group; /* their names */
	uint64_t cursor;
};

/* --- replies ------------------------------------------------------------- */

struct comm_reply {
	uint64_t comm;    /* the run, whose number is never used again */
	uint64_t step;    /* the last committed step, or 0 */
	bool has_nccl_id; /* on devices */
	uint8_t nccl_id[MESSAGE_NCCL_ID_SIZE];
	/* inputs may be handed in before they are complete */
	bool takes_fences;
	/* The word of the state table that says whether the run is alive. If it
	 * is 0, the ranks do nothing without the broker. */
	uint32_t verdict;
	uint32_t direct; /* enum comm_direct: what all ranks support */
};

/* Both versions of the shards, the gradients, and on devices the partial
 * sums. */
#define GROUP_REPLY_PLACES 4

/* One parameter, for the rank that registered the group. Offsets are in
 * bytes. */
struct group_entry {
	uint32_t full_dtype;
	uint32_t input_dtype; /* of the gradient; 0: frozen */
	uint32_t shard_dim;
	int64_t shard_size; /* size of the dimension in this rank's shard */
	/* of the shard in each of the two `shards` places */
	uint64_t shard_offset;
	/* of the parameter in the result of an unshard */
	uint64_t full_offset;
	uint64_t input_offset; /* of the gradient in an input */
	uint64_t grad_offset;  /* of the reduced gradient in `grads` */
};

struct group_reply {
	uint64_t group; /* number that is never used again */
	uint64_t hash;  /* of the plan */
	uint64_t step;  /* 0: no step of the group was committed yet */
	uint32_t side;  /* the index of the place with the committed shards */
	/* Both shards, and then the gradients, unless all parameters are
	 * frozen. Each place has one hold. */
	uint32_t n_places; /* 2 to GROUP_REPLY_PLACES */
	struct tensor_place places[GROUP_REPLY_PLACES];
	uint32_t n_entries; /* in the order of the parameters */
	struct group_entry *entries;
	uint32_t n_chunks;
	struct chunk_ref *chunks;
	/* Each rank has the whole parameters in its committed shards, and
	 * unshards them without others. */
	bool is_in_place;
	uint32_t index; /* of the group on the board of the run */
};

struct work_reply {
	uint64_t sequence;
};

enum comm_state {
	COMM_KEPT = 1,    /* it has no ranks; its groups are kept */
	COMM_JOINING = 2, /* some ranks have not joined yet */
	COMM_RUNNING = 3,
	COMM_FAILED = 4, /* some ranks have not left yet */
};

struct comm_item {
	const char *name;
	uint64_t comm; /* 0 if COMM_KEPT */
	uint32_t uid;
	uint32_t state; /* enum comm_state */
	uint32_t n_ranks, n_shards, n_joined, n_groups;
	uint64_t step;
	uint64_t n_bytes;     /* of the kept shards */
	uint64_t ttl_left_ms; /* if COMM_KEPT */
	/* number of unshards; n_limited: those that wait for the limiter */
	uint32_t n_in_flight;
	uint32_t n_limited;
	uint64_t bytes_in_flight;
	const char *note; /* the cause of a failure, or "" */
	uint32_t n_local; /* number of ranks on this node */
	bool is_on_devices;
	uint32_t executor; /* enum comm_executor; 0 if COMM_KEPT */
};

struct comms_reply PAGE_OF(struct comm_item);

struct group_item {
	const char *comm, *name;
	uint32_t n_params, n_gather_buckets, n_reduce_buckets;
	uint64_t step, hash;
	uint64_t shards_bytes; /* of both versions and all ranks */
	uint64_t full_bytes;   /* 0: it is in place */
	bool is_unsharded;
	uint64_t n_gathers, n_reductions;
};

struct groups_reply PAGE_OF(struct group_item);

/* The entries of the plan (collective/plan.h). Values that differ between ranks
 * are those of rank 0. */
struct plan_item {
	const char *name;
	struct tensor_type type;
	uint32_t shard_dim;
	uint32_t full_dtype;
	uint32_t input_dtype, reduce_dtype;    /* 0: frozen */
	uint32_t gather_bucket, reduce_bucket; /* UINT32_MAX: frozen */
	uint64_t shard_offset, shard_stride, full_offset, input_offset,
		grad_offset;
	uint64_t chunk_bytes;
};

struct group_plan_reply {
	uint64_t hash;
	uint32_t n_shards, n_replicas, layout;
	bool is_in_place;
	uint32_t n_items;
	struct plan_item *items;
	uint64_t next_cursor;
};
