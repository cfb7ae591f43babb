/*
 * Messages of collectives: requests, then replies. What they mean is in
 * broker/comm/comm.h and broker/comm/group.h.
 */
#pragma once
#include "proto/message_part.h"

/* --- requests ------------------------------------------------------------ */

enum comm_limiter {
	COMM_LIMITER_WINDOW = 0,
	COMM_LIMITER_FSDP1 = 1,
};

/* Where what is on devices is moved and added. */
enum comm_executor {
	COMM_EXECUTOR_RANK = 0,   /* in the ranks' own processes */
	COMM_EXECUTOR_WORKER = 1, /* in fsdp-worker, as on host memory */
};

/* What NCCL is told of the memory that it moves. */
enum comm_memory {
	COMM_MEMORY_DEFAULT = 0,    /* nothing */
	COMM_MEMORY_REGISTERED = 1, /* every chunk */
};

/* What ranks on host memory do without the broker (shm/board.h). */
enum comm_direct {
	COMM_DIRECT_REDUCE = 1,
	COMM_DIRECT_GATHER = 2,
};
#define COMM_DIRECT_ALL (COMM_DIRECT_REDUCE | COMM_DIRECT_GATHER)

/* Answered when all ranks have joined: struct comm_reply. */
struct comm_join_request {
	const char *name;
	struct access_class access; /* of the groups' memory */
	uint32_t n_ranks;           /* 1 to MESSAGE_MAX_RANKS; on devices to
				       MESSAGE_MAX_WORLD */
	uint32_t rank;              /* below n_ranks */
	uint32_t n_shards;    /* divides n_ranks; decoding makes 0 n_ranks */
	int32_t timeout_ms;   /* > 0: how long others may be late, here and in
				 every collective */
	uint64_t ttl_ms;      /* > 0: groups are kept this long without ranks */
	uint32_t limiter;     /* enum comm_limiter */
	uint32_t limit;       /* groups unsharded at a time; 0: 2 */
	uint64_t limit_bytes; /* and their bytes; 0: no limit */
	uint32_t n_inputs; /* gradient inputs a rank may have at a time; >= 1 */
	struct device_uuid device; /* of this rank; the host: what follows is 0
				    */
	uint32_t n_local; /* of the ranks, on this node: 1 to MESSAGE_MAX_RANKS;
			     decoding makes 0 n_ranks */
	bool has_nccl_id;
	uint8_t nccl_id[MESSAGE_NCCL_ID_SIZE];
	uint32_t executor; /* enum comm_executor */
	uint32_t memory;   /* enum comm_memory */
	/* enum comm_direct: what this rank can do; unknown bits are ignored. */
	uint32_t direct;
};

/* The board of a run (shm/board.h), which all ranks of the node may write: the
 * reply is empty, and its file comes along. -EOPNOTSUPP: some ranks are on
 * other nodes. */
struct comm_board_request {
	uint64_t comm;
};

/* The process of this rank seems to be ending (ending.h). The broker looks, and
 * if so, the run fails now; otherwise nothing happens. The reply is empty. */
struct comm_look_request {
	uint64_t comm;
	uint32_t rank;
};

/* Memory of a run in which ranks reduce without the broker, for a rank that is
 * to work with it: an input of any rank, or the group's partial sums, which are
 * made when they are first asked for. places_reply with one place, to be
 * written. -ENOENT: the run has no such input. */
struct comm_place_request {
	uint64_t group;
	bool is_input;
	struct slot_ref input; /* is_input */
	int32_t timeout_ms;    /* to wait for memory of partial sums */
};

/* Memory of a run whose ranks gather without the broker (shm/gathers.h): this
 * version of a buffer for whole parameters, large enough for the group, is made
 * when it is first asked for. places_reply with one place, to be written.
 * -ETIMEDOUT: there is no memory. */
struct gather_buffer_request {
	uint64_t group;
	uint32_t buffer, version;
	int32_t timeout_ms;
};

/* There the rank keeps its inputs, until it gives them back: no rank will read
 * this one any more. */
struct input_end_request {
	uint64_t comm;
	struct slot_ref input; /* of a MESSAGE_INPUT */
};

struct comm_leave_request {
	uint64_t comm;
};

/* The rank tells why the communicator cannot go on: its engine says so. */
struct comm_fail_request {
	uint64_t comm;
	const char *sentence; /* at most MESSAGE_MAX_TEXT */
};

/* The groups end: names nobody is in. */
struct comm_remove_request {
	const char *name;
};

struct group_param {
	const char *name;
	struct tensor_type type; /* contiguous */
	int32_t shard_dim;
	bool is_frozen;
};

/* Answered when all ranks have registered the same: struct group_reply. */
struct group_request {
	uint64_t comm;
	const char *name;
	uint32_t param_dtype, input_dtype, reduce_dtype; /* 0: as it is */
	uint32_t layout; /* 0 or 1: enum plan_layout of the broker */
	bool stays_unsharded;
	bool is_offloaded; /* shards and gradients are in host memory */
	uint32_t n_gather_caps, n_reduce_caps;
	double *gather_caps_mb, *reduce_caps_mb; /* form is checked only */
	uint32_t n_params;                       /* >= 1 */
	struct group_param *params;
};

/* unshard: struct work_reply */
struct unshard_request {
	uint64_t group;
};

/* No body. */
struct reshard_request {
	uint64_t group;
	uint32_t n_mesh; /* ranks of the smaller mesh that keeps it; 0: whole */
};

/* Parks until the rank may have one more input and there is room: places_reply
 * with one place, to be written. */
struct input_request {
	uint64_t group;
	int32_t timeout_ms;
};

enum reduce_flags {
	REDUCE_ACCUMULATE = 1,
	REDUCE_NO_ALL_REDUCE = 2, /* replicas: keep the sums for later */
	REDUCE_FORCE_SUM = 4,
};

/* work_reply. The input belongs to the broker then. */
struct reduce_request {
	uint64_t group;
	struct slot_ref input; /* of a MESSAGE_INPUT */
	uint32_t flags;        /* enum reduce_flags */
	bool has_factor;
	double factor;
	/* A timeline of the session (shm/timeline.h): the input is written
	 * when it has come to `value`; 0: it is. For a broker that takes
	 * orders. */
	uint32_t timeline;
	uint64_t value;
};

/* work_reply: the sequence is the step */
struct commit_request {
	uint64_t comm;
	uint64_t step; /* > 0, above the last */
	/* Gathers that the rank has begun without the broker: as many as all
	 * others that commit this step. */
	uint64_t n_gathers;
};

enum work_kind {
	WORK_UNSHARD = 1,
	WORK_REDUCE = 2,
	WORK_COMMIT = 3, /* group: 0 */
};

/* Parks until the work is done: places_reply; for an unshard it has one place,
 * the whole parameters, with a hold. */
struct wait_request {
	uint64_t comm;
	uint64_t group;
	uint32_t kind;     /* enum work_kind */
	uint64_t sequence; /* of an unshard also 0: the one that is open */
	int32_t timeout_ms;
};

struct comms_request {
	uint64_t cursor;
};

struct groups_request {
	const char *comm; /* name; "": of all */
	uint64_t cursor;
};

struct group_plan_request {
	const char *comm, *group; /* names */
	uint64_t cursor;
};

/* --- replies ------------------------------------------------------------- */

struct comm_reply {
	uint64_t comm;    /* this run of it; never used again */
	uint64_t step;    /* last committed; 0: none */
	bool has_nccl_id; /* on devices */
	uint8_t nccl_id[MESSAGE_NCCL_ID_SIZE];
	bool takes_fences; /* inputs may be handed in before they are written */
	/* Word of the state table that says whether the run is alive; 0: none.
	 * Then its ranks do nothing without the broker. */
	uint32_t verdict;
	uint32_t direct; /* enum comm_direct: what all ranks do in this run */
};

/* The shards of both sides; gradients; on devices partial sums. */
#define GROUP_REPLY_PLACES 4

/* One parameter, for the rank that asked. Offsets are bytes. */
struct group_entry {
	uint32_t full_dtype;
	uint32_t input_dtype; /* of the gradient; 0: frozen */
	uint32_t shard_dim;
	int64_t shard_size;    /* of the dimension, in this rank's shard */
	uint64_t shard_offset; /* of the shard, in both `shards` places */
	uint64_t full_offset;  /* of the parameter, in what an unshard gives */
	uint64_t input_offset; /* of the gradient, in an input */
	uint64_t grad_offset;  /* of the reduced gradient, in `grads` */
};

struct group_reply {
	uint64_t group; /* never used again */
	uint64_t hash;  /* of the plan */
	uint64_t step;  /* 0: nothing of it was committed yet */
	uint32_t side;  /* which of the first two places is committed */
	/* both shards, then the grads unless all is frozen; one hold each */
	uint32_t n_places; /* 2 to GROUP_REPLY_PLACES */
	struct tensor_place places[GROUP_REPLY_PLACES];
	uint32_t n_entries; /* in the order of the parameters */
	struct group_entry *entries;
	uint32_t n_chunks;
	struct chunk_ref *chunks;
	/* The committed shards are the whole parameters, and each rank unshards
	 * them alone. */
	bool is_in_place;
	uint32_t index; /* of the group on the board of its run */
};

struct work_reply {
	uint64_t sequence;
};

enum comm_state {
	COMM_KEPT = 1,    /* nobody is in it; its groups are kept */
	COMM_JOINING = 2, /* not all ranks are there yet */
	COMM_RUNNING = 3,
	COMM_FAILED = 4, /* survivors have not left yet */
};

struct comm_item {
	const char *name;
	uint64_t comm; /* 0: COMM_KEPT */
	uint32_t uid;
	uint32_t state; /* enum comm_state */
	uint32_t n_ranks, n_shards, n_joined, n_groups;
	uint64_t step;
	uint64_t n_bytes;     /* kept shards */
	uint64_t ttl_left_ms; /* COMM_KEPT */
	uint32_t n_in_flight; /* unshards; and those that wait for the limiter
			       */
	uint32_t n_limited;
	uint64_t bytes_in_flight;
	const char *note; /* "", or why it failed */
	uint32_t n_local; /* of the ranks, on this node */
	bool is_on_devices;
	uint32_t executor; /* enum comm_executor; COMM_KEPT: 0 */
};

struct comms_reply {
	uint32_t n_items;
	struct comm_item *items;
	uint64_t next_cursor;
};

struct group_item {
	const char *comm, *name;
	uint32_t n_params, n_gather_buckets, n_reduce_buckets;
	uint64_t step, hash;
	uint64_t shards_bytes; /* both versions, all ranks */
	uint64_t full_bytes;   /* 0: in place */
	bool is_unsharded;
	uint64_t n_gathers, n_reductions;
};

struct groups_reply {
	uint32_t n_items;
	struct group_item *items;
	uint64_t next_cursor;
};

/* The plan's entries, of rank 0 where it matters; see collective/. */
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
