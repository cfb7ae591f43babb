/*
 * Every message of the protocol as a plain struct, with one encode and one
 * decode function each way.
 *
 * The wire format is fsdp.proto (protobuf); the generated code is seen by
 * message.c only. Decoding checks everything that can be checked without
 * knowing the broker's state: counts, lengths, names (name.h), tensor types,
 * reserved values. What a decode function returned can be used without
 * further looks at its form; that is why it is also the fuzz target.
 *
 * A request is `struct request`, a reply `struct reply`: a kind and the union
 * of all bodies. All arrays and strings of a decoded message live in one
 * allocation that message memory owns (`mem`): free it with request_deinit()
 * or reply_deinit(). Encoding borrows everything.
 */
#pragma once
#include "proto/device_uuid.h"
#include "proto/tensor.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

/* Major: different means no talk. Minor: additions only. */
#define PROTOCOL_MAJOR 1
#define PROTOCOL_MINOR 0

/* Per batch: so that every reply to a batch fits a frame. */
#define MESSAGE_MAX_ITEMS 256
/* Members of a bundle: places in one manifest. */
#define MESSAGE_MAX_PLACES 131072
/* Entries of the state table's chunk list, see shm/table.h. */
#define MESSAGE_MAX_CHUNKS 1024
/* Timelines of a session, see shm/timeline.h; the first is 1. */
#define MESSAGE_MAX_TIMELINES 64
/* Bytes of a command, a version, the name of a status value. */
#define MESSAGE_MAX_TEXT 255
#define MESSAGE_MAX_NOTE 4095
/* Times to live: far beyond any use, and a deadline never overflows. */
#define MESSAGE_MAX_TTL_MS (UINT64_C(1) << 52)
/* Ranks of a communicator, parameters of a group, caps of its policy. */
#define MESSAGE_MAX_RANKS 64
/* Ranks of a communicator on devices, over all nodes. */
#define MESSAGE_MAX_WORLD    4096
#define MESSAGE_NCCL_ID_SIZE 128
#define MESSAGE_MAX_PARAMS   1024
#define MESSAGE_MAX_CAPS     16
#define TOKEN_SIZE           16
#define TICKET_SIZE          16

enum message_kind {
	MESSAGE_HELLO = 1,
	MESSAGE_CHALLENGE = 2, /* answer to the nonce in the hello reply */
	MESSAGE_GOODBYE = 3,
	MESSAGE_PING = 4,
	MESSAGE_ALLOC = 5,
	MESSAGE_PUBLISH = 6,
	MESSAGE_GET = 7,
	MESSAGE_RELEASE = 8,
	MESSAGE_REMOVE = 9,
	MESSAGE_TICKET = 10,
	MESSAGE_REDEEM = 11,
	MESSAGE_BUNDLE_BEGIN = 12,
	MESSAGE_BUNDLE_COMMIT = 13,
	MESSAGE_BUNDLE_ABORT = 14,
	MESSAGE_BUNDLE_GET = 15,
	MESSAGE_CHUNK = 16,
	MESSAGE_LIST = 17,
	MESSAGE_WHO = 18,
	MESSAGE_CLIENTS = 19,
	MESSAGE_STATUS = 20,
	MESSAGE_COMM_JOIN = 21,
	MESSAGE_COMM_LEAVE = 22,
	MESSAGE_COMM_REMOVE = 23,
	MESSAGE_GROUP = 24, /* register */
	MESSAGE_UNSHARD = 25,
	MESSAGE_RESHARD = 26,
	MESSAGE_INPUT = 27, /* memory to write gradients into */
	MESSAGE_REDUCE = 28,
	MESSAGE_COMMIT = 29,
	MESSAGE_WAIT = 30,
	MESSAGE_COMMS = 31,
	MESSAGE_GROUPS = 32,
	MESSAGE_GROUP_PLAN = 33,
	MESSAGE_TIMELINES = 34,
	MESSAGE_COMM_FAIL = 35,
	MESSAGE_MAX = 35
};

/* "get", "publish", ...; "?" for an unknown kind. */
const char *message_kind_name(uint16_t kind);

/* --- parts ------------------------------------------------------------ */

/* One version of one tensor. */
struct slot_ref {
	uint32_t slot;
	uint64_t generation;
};

/* When a tensor on a device is written: once this counter has this value. */
struct tensor_order {
	uint64_t session;  /* whose timeline; 0: it is written */
	uint32_t timeline; /* below MESSAGE_MAX_TIMELINES; 0 if session is */
	uint64_t value;    /* above 0 and below TIMELINE_POISON; 0 likewise */
};

/* Where a tensor lies and what it is: all a client needs to use it. */
struct tensor_place {
	struct slot_ref ref;
	uint32_t chunk;   /* id, never used again */
	uint64_t offset;  /* of the first element in the chunk, bytes */
	uint64_t size;    /* bytes of the view */
	uint64_t version; /* of the name; 0 if it has none */
	struct tensor_type type;
	const char *name; /* "" if it has none; replies to get and redeem leave
			     it out: whoever asked by name knows it */
	struct tensor_order order;
	bool is_tainted; /* its writer died before the work was done */
};

/* A chunk whose fd travels with this reply, in the order of the fds. */
struct chunk_ref {
	uint32_t chunk;
	uint32_t index; /* its entry in the state table's chunk list */
	uint64_t size;  /* bytes */
	bool is_writable;
	struct device_uuid device; /* not of the host: the fd is an export of
				      device memory, and whoever may not write
				      is only asked to map it read-only */
};

/* Access class as with files. */
struct access_class {
	uint32_t uid;  /* ignored in requests: the peer's */
	uint32_t gid;  /* GID_DEFAULT: the peer's primary group */
	uint32_t mode; /* permission bits 0600..0666; 0 means 0600 */
};
#define GID_DEFAULT 0xffffffffu

/* --- requests ---------------------------------------------------------- */

/* fds of a reconnect: the session's ref-counter file, its doorbell. */
struct hello_request {
	uint32_t major, minor;
	bool is_reconnect;
	uint64_t session;          /* reconnect: id of the session */
	uint8_t token[TOKEN_SIZE]; /* reconnect: its secret */
	uint64_t budget; /* bytes this session may have live; 0: no limit of its
			    own */
};

struct challenge_request {
	uint64_t nonce;
};

struct alloc_item {
	struct tensor_type type; /* contiguous; strides may be given */
	bool is_view;            /* a second tensor over the block of `base` */
	struct slot_ref base;    /* is_view: a slot this session holds */
	uint64_t base_offset;    /* is_view: bytes from the start of `base` */
	const char *name; /* in a bundle: the member's full name; else "" */
};

struct alloc_request {
	struct access_class access; /* ignored in a bundle and for views */
	uint64_t bundle;            /* staged bundle to allocate in; 0: none */
	int32_t timeout_ms;         /* wait for room; 0: do not, -1: for ever */
	uint32_t n_items;
	struct alloc_item *items;
	struct device_uuid device; /* likewise ignored */
};

enum publish_flags {
	PUBLISH_REPLACE = 1,    /* the name may exist: its slot is let go */
	PUBLISH_EVICTABLE = 2,  /* may be evicted when room is needed */
	PUBLISH_TIED = 4,       /* the name goes with this session */
	PUBLISH_MUST_EXIST = 8, /* with REPLACE: refuse to create */
};

struct publish_item {
	struct slot_ref ref;
	const char *name; /* "": anonymous, kept by holds alone */
	uint32_t flags;
	uint64_t ttl_ms;   /* the name ends after this; 0: never */
	uint32_t timeline; /* of this session: the writer's work is done when */
	uint64_t value;    /* it has this value; both 0: it is done */
};

struct publish_request {
	uint32_t n_items;
	struct publish_item *items;
};

struct get_request {
	int32_t timeout_ms; /* 0: do not wait; -1: for ever */
	bool is_trust_set;
	uint32_t trusted_uid; /* is_trust_set: take tensors of this uid only */
	uint32_t n_names;
	const char **names;
};

struct release_item {
	struct slot_ref ref;
	uint32_t n_holds;
};

struct release_request {
	uint32_t n_items;
	struct release_item *items;
};

struct remove_request {
	uint32_t n_names;
	const char **names; /* tensors, or bundles by their prefix with '/' */
};

struct ticket_request {
	struct slot_ref ref;
	uint32_t n_uses;
	uint64_t ttl_ms; /* > 0 */
};

struct redeem_request {
	uint32_t n_tickets;
	const uint8_t (*tickets)[TICKET_SIZE];
};

struct bundle_begin_request {
	const char *name; /* prefix with its '/' at the end */
	struct access_class access;
	uint64_t size_hint; /* bytes that will be allocated; 0: unknown */
	uint32_t flags; /* PUBLISH_REPLACE, PUBLISH_MUST_EXIST, PUBLISH_TIED */
	uint64_t ttl_ms;
	struct device_uuid device; /* all members lie there */
};

/* bundle_commit and bundle_abort */
struct bundle_end_request {
	uint64_t bundle;
};

/* Gets every tensor of the committed bundle at once. */
struct bundle_get_request {
	const char *name;
	int32_t timeout_ms;
	bool is_trust_set;
	uint32_t trusted_uid;
};

struct chunk_request {
	uint32_t n_chunks; /* at most FRAME_MAX_FDS */
	uint32_t *chunks;
};

enum list_filter {
	LIST_NAMED = 1,
	LIST_LIMBO = 2,
	LIST_ALL = 3,
};

struct list_request {
	const char *prefix; /* "": everything readable */
	uint32_t filter;    /* enum list_filter */
	uint64_t cursor;    /* 0: from the start */
};

struct who_request {
	const char *name; /* "": by ref */
	struct slot_ref ref;
	uint64_t cursor;
};

struct clients_request {
	uint64_t cursor;
};

/*
 * The file with a session's timelines (shm/timeline.h), which comes along as
 * an fd. One's own is writable, and made when it is first asked for. Another's
 * is for who has to wait for it, so the request names a tensor that is held
 * and that this session's timeline orders.
 */
struct timelines_request {
	uint64_t session; /* 0: one's own */
	struct slot_ref ref;
	bool wants_writable; /* another's: only for the same uid */
};

/* --- collectives: requests ----------------------------------------------- */

enum comm_limiter {
	COMM_LIMITER_WINDOW = 0,
	COMM_LIMITER_FAITHFUL = 1,
};

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
	uint32_t param_dtype, reduce_dtype; /* 0: as it is */
	uint32_t layout; /* 0 or 1: enum plan_layout of the broker */
	bool stays_unsharded;
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
};

/* work_reply: the sequence is the step */
struct commit_request {
	uint64_t comm;
	uint64_t step; /* > 0, above the last */
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

struct request {
	uint16_t kind;
	union {
		struct hello_request hello;
		struct challenge_request challenge;
		struct alloc_request alloc;
		struct publish_request publish;
		struct get_request get;
		struct release_request release;
		struct remove_request remove;
		struct ticket_request ticket;
		struct redeem_request redeem;
		struct bundle_begin_request bundle_begin;
		struct bundle_end_request bundle_end;
		struct bundle_get_request bundle_get;
		struct chunk_request chunk;
		struct list_request list;
		struct who_request who;
		struct clients_request clients;
		struct timelines_request timelines;
		struct comm_join_request comm_join;
		struct comm_leave_request comm_leave;
		struct comm_fail_request comm_fail;
		struct comm_remove_request comm_remove;
		struct group_request group;
		struct unshard_request unshard;
		struct reshard_request reshard;
		struct input_request input;
		struct reduce_request reduce;
		struct commit_request commit;
		struct wait_request wait;
		struct comms_request comms;
		struct groups_request groups;
		struct group_plan_request group_plan;
	};
	void *mem; /* owned: what a decoded message points into */
};

/* --- replies ----------------------------------------------------------- */

/*
 * First reply to a hello: either `is_challenge` (answer the nonce with a
 * challenge request, whose reply is again of kind hello), or the session.
 * fds of the session: state table (read-only), ref-counter file, doorbell.
 * After a reconnect: none, the client has them all.
 */
struct hello_reply {
	bool is_challenge;
	uint64_t nonce;
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	uint32_t n_slots; /* of state table and ref-counter file */
};

/*
 * alloc, get, redeem: one place per item, in order. `chunks` describes the
 * fds that came along; a place whose chunk the client does not know and did
 * not get is fetched by a chunk request.
 */
struct places_reply {
	uint32_t n_places;
	struct tensor_place *places;
	uint32_t n_chunks;
	struct chunk_ref *chunks;
};

/* chunk */
struct chunks_reply {
	uint32_t n_chunks;
	struct chunk_ref *chunks;
};

/* publish: the version each name got. remove: nothing. */
struct versions_reply {
	uint32_t n_versions;
	uint64_t *versions;
};

struct ticket_reply {
	uint8_t ticket[TICKET_SIZE];
};

/* bundle_begin: its number. bundle_commit: `version` as well. */
struct bundle_reply {
	uint64_t bundle;
	uint64_t version;
};

/*
 * bundle_get: all members were granted. Their places are in a sealed memfd,
 * the first fd, that the broker makes once per version: an encoded
 * places_reply of `manifest_size` bytes. Then come the fds of `chunks`.
 */
struct bundle_get_reply {
	uint64_t bundle;
	uint64_t version;
	uint32_t n_members;
	uint64_t manifest_size;
	uint32_t n_chunks;
	struct chunk_ref *chunks;
};

struct list_item {
	struct tensor_place place;
	struct access_class access;
	uint32_t state; /* enum slot_state */
	uint64_t age_ms;
	uint64_t ttl_left_ms; /* 0: no end */
	uint32_t n_holders;   /* sessions */
	uint32_t flags;       /* enum publish_flags */
	uint64_t bundle;      /* 0: none */
	struct device_uuid device;
};

struct list_reply {
	uint32_t n_items;
	struct list_item *items;
	uint64_t next_cursor; /* 0: that was all */
};

struct holder {
	uint64_t session;
	uint32_t pid, uid;
	const char *command;
	int64_t holds; /* 0: none any more, but its device is at work */
	bool is_connected;
	bool is_writer;
};

struct who_reply {
	struct tensor_place place;
	uint32_t state;
	uint32_t n_tickets;
	uint32_t n_holders;
	struct holder *holders;
	uint64_t next_cursor;
};

struct client_item {
	uint64_t session;
	uint32_t pid, uid;
	const char *command;
	bool is_connected;
	uint64_t n_slots; /* slots it holds */
	uint64_t n_bytes; /* of memory it made */
	uint64_t n_requests;
	uint64_t age_ms;
	uint32_t n_waiting;
};

struct clients_reply {
	uint32_t n_items;
	struct client_item *items;
	uint64_t next_cursor;
};

/* Counters and sizes by name, so that adding one changes no format. */
struct status_value {
	const char *name;
	uint64_t value;
};

struct status_reply {
	const char *version;
	const char
		*note; /* "" or what an operator should know, in a sentence */
	uint32_t n_values;
	struct status_value *values;
};

/* timelines */
struct timelines_reply {
	uint64_t session; /* whose they are */
};

/* --- collectives: replies ------------------------------------------------ */

struct comm_reply {
	uint64_t comm;    /* this run of it; never used again */
	uint64_t step;    /* last committed; 0: none */
	bool has_nccl_id; /* on devices */
	uint8_t nccl_id[MESSAGE_NCCL_ID_SIZE];
};

/* The shards of both sides; gradients; on devices partial sums. */
#define GROUP_REPLY_PLACES 4

/* One parameter, for the rank that asked. Offsets are bytes. */
struct group_entry {
	uint32_t full_dtype;
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

/* The plan's entries, of rank 0 where it matters; see broker/collective. */
struct plan_item {
	const char *name;
	struct tensor_type type;
	uint32_t shard_dim;
	uint32_t full_dtype, reduce_dtype;     /* 0: frozen */
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

struct reply {
	uint16_t kind;
	int32_t code;         /* 0 or -errno */
	const char *sentence; /* code < 0: why, and what to do */
	union {
		struct hello_reply hello;
		struct places_reply
			places; /* alloc, get, redeem, input, wait */
		struct chunks_reply chunks;
		struct versions_reply versions; /* publish */
		struct ticket_reply ticket;
		struct bundle_reply bundle; /* begin, commit */
		struct bundle_get_reply bundle_get;
		struct list_reply list;
		struct who_reply who;
		struct clients_reply clients;
		struct status_reply status;
		struct timelines_reply timelines;
		struct comm_reply comm; /* join */
		struct group_reply group;
		struct work_reply work; /* unshard, reduce, commit */
		/* input, wait: places */
		struct comms_reply comms;
		struct groups_reply groups;
		struct group_plan_reply group_plan;
	};
	void *mem;
};

/*
 * Encode into a fresh buffer that the caller frees. -EMSGSIZE if the result
 * does not fit a frame (places_encode() has no such limit).
 */
int request_encode(const struct request *request, uint8_t **ret_body,
		   size_t *ret_size, struct error *err);
int reply_encode(const struct reply *reply, uint8_t **ret_body,
		 size_t *ret_size, struct error *err);

/*
 * Decode and check. `ret` needs no cleanup on failure. Request bodies come
 * from clients, replies from the broker; neither is trusted.
 */
int request_decode(uint16_t kind, const uint8_t *body, size_t size,
		   struct request *ret, struct error *err);
int reply_decode(uint16_t kind, int32_t code, const uint8_t *body, size_t size,
		 struct reply *ret, struct error *err);

void request_deinit(struct request *request);
void reply_deinit(struct reply *reply);

/* A places_reply without chunks, outside a frame: the manifest of a bundle. */
int places_encode(const struct places_reply *places, uint8_t **ret_bytes,
		  size_t *ret_size, struct error *err);

/*
 * Read one, a few places at a time. Each is checked as it is read; the number
 * of places is known from the start.
 */
struct manifest;
int manifest_open(const uint8_t *bytes, size_t size, struct manifest **ret,
		  struct error *err);
uint32_t manifest_n_places(const struct manifest *manifest);
/* Up to `max` places; gives how many, 0 behind the last. Their names live as
 * long as the manifest does. */
int manifest_read(struct manifest *manifest, struct tensor_place *ret,
		  uint32_t max, struct error *err);
void manifest_close(struct manifest *manifest); /* NULL is fine */

/*
 * The bytes that, put behind an encoded places_reply or bundle_get_reply,
 * add these chunks to it (concatenation merges in protobuf). A replayed
 * outcome is sent with the chunk fds that the new connection lacks.
 */
int chunk_refs_encode(uint16_t kind, const struct chunk_ref *chunks,
		      uint32_t n_chunks, uint8_t **ret_bytes, size_t *ret_size,
		      struct error *err);
