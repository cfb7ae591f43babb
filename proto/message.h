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
#include "proto/histogram.h"
#include "proto/message_channel.h"
#include "proto/message_collective.h"
#include "proto/message_kinds.h"
#include "proto/message_part.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

/* Major: different means no talk. Minor: additions only. */
#define PROTOCOL_MAJOR 1
#define PROTOCOL_MINOR 5

/* "get", "publish", ...; "?" for an unknown kind. */
const char *message_kind_name(uint16_t kind);

/* The flags of message_kinds.h; false for an unknown kind. */
bool message_is_recorded(uint16_t kind);
bool message_grants(uint16_t kind);
bool message_takes_fd(uint16_t kind);

/* --- requests ------------------------------------------------------------ */

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

struct share_item {
	struct tensor_type type;
	uint64_t offset; /* from the allocation's start; a multiple of the
			    dtype's size */
};

/*
 * Tensors over one allocation of device memory that the caller has already:
 * answered as alloc is. The memory is that of the fd that comes along, or of
 * the handle.
 */
struct share_request {
	struct device_uuid device; /* not the host */
	struct access_class access;
	bool has_handle;
	uint8_t handle[MESSAGE_HANDLE_SIZE];
	uint64_t size; /* bytes of the whole allocation */
	uint32_t n_items;
	struct share_item *items; /* may overlap */
};

/* Parks until nobody uses a tensor that this session shared; no body. Done at
 * once if it is gone already, so it may be repeated. */
struct unshare_request {
	struct slot_ref ref;
	int32_t timeout_ms; /* 0: do not wait; -1: for ever */
};

enum publish_flags {
	PUBLISH_REPLACE = 1,    /* the name may exist: its slot is let go */
	PUBLISH_EVICTABLE = 2,  /* may be evicted when room is needed */
	PUBLISH_TIED = 4,       /* the name goes with this session */
	PUBLISH_MUST_EXIST = 8, /* with REPLACE: refuse to create */
	/* Bundles: begin when no other session stages it with this flag. */
	PUBLISH_ONCE = 16,
};

struct publish_item {
	struct slot_ref ref;
	const char *name; /* "": anonymous, kept by holds alone */
	uint32_t flags;
	uint64_t ttl_ms;   /* the name ends after this; 0: never */
	uint32_t timeline; /* of this session: the writer's work is done when */
	uint64_t value;    /* it has this value; both 0: it is done */
	const uint8_t *event; /* or when this is: the handle of an interprocess
				 event, MESSAGE_HANDLE_SIZE bytes; NULL: none */
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
	uint64_t newer_than; /* versions of the names; 0: any */
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

struct config_request {
	uint64_t cursor;
};

struct tickets_request {
	uint64_t cursor;
};

struct revoke_request {
	uint64_t ticket; /* ticket_item.id */
};

struct redeem_request {
	uint32_t n_tickets;
	const uint8_t (*tickets)[TICKET_SIZE];
};

struct bundle_begin_request {
	const char *name; /* prefix with its '/' at the end */
	struct access_class access;
	uint64_t size_hint; /* bytes that will be allocated; 0: unknown */
	uint32_t flags;     /* all but PUBLISH_EVICTABLE */
	uint64_t ttl_ms;
	struct device_uuid device; /* all members lie there */
	/* With PUBLISH_ONCE; 0: do not wait; -1: for ever. */
	int32_t timeout_ms;
	uint32_t n_kept; /* versions that can be got; 0 is 1: the newest */
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
	uint64_t newer_than; /* version; 0: any */
	uint64_t version;    /* this one, which may be kept; 0: the newest */
};

struct chunk_request {
	uint32_t n_chunks; /* at most FRAME_MAX_FDS */
	uint32_t *chunks;
};

enum list_filter {
	LIST_NAMED = 1,
	LIST_LIMBO = 2,
	LIST_ALL = 3,
	LIST_CHARGED = 4, /* to the caller's user, readable or not; for
			     administrators: to anybody */
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

/* `resets`: once they are in the reply, values that are the longest or largest
 * since start begin anew. Only administrators may. */
struct status_request {
	bool resets;
};

struct prefixes_request {
	uint64_t cursor;
};

struct histograms_request {
	uint64_t cursor;
};

/* The chunks that the caller may read; administrators see all. */
struct memory_request {
	uint64_t cursor;
};

/* The caller's account; administrators see those of all users. */
struct accounts_request {
	uint64_t cursor;
};

/*
 * The file with a session's timelines (shm/timeline.h), which comes along as
 * an fd. One's own is writable, and made when it is first asked for. Another
 * session's is given to processes that wait for it, so the request names a
 * tensor that is held and that this session orders; if it does so by an event,
 * the answer has the event's handle instead.
 */
struct timelines_request {
	uint64_t session; /* 0: one's own */
	struct slot_ref ref;
	bool wants_writable; /* another's: only for the same uid */
};

/* The event of that number (a handle's `generation`), by which the session
 * ordered the tensor, is done. */
struct ordered_item {
	struct slot_ref ref;
	uint64_t event;
};

/* No body. What is not ordered so, or not any more, is passed over. */
struct ordered_request {
	uint32_t n_items;
	struct ordered_item *items;
};

enum control_action {
	CONTROL_COLLECT = 1, /* free what was released, now */
	CONTROL_TRIM = 2,    /* return free memory to the kernel, now */
	/* Evict until `value` bytes on the device or the host are free. */
	CONTROL_EVICT = 3,
	/* `value` 1: refuse new sessions except of administrators, and wait
	 * until all others have ended; 0: take them again. */
	CONTROL_DRAIN = 4,
	CONTROL_LOG_LEVEL = 5, /* `value`: enum log_level */
	CONTROL_MAX = 5
};

/* What administrators may have the broker do. */
struct control_request {
	uint32_t action; /* enum control_action */
	uint64_t value;
	int32_t timeout_ms; /* of CONTROL_DRAIN; 0: do not wait; -1: for ever */
	struct device_uuid device;
};

/*
 * What happened to names after the event `since` (0: after now; the reply comes
 * at once). Parks until there is something. A reply may have no items: the time
 * has expired, or what happened was all of other names.
 */
struct events_request {
	uint64_t since;     /* events_reply.next */
	const char *prefix; /* "": all that the session may read */
	int32_t timeout_ms; /* 0: do not wait; -1: for ever */
};

/* XXH3 of the elements, in row-major order, of a tensor that the session is
 * writing. */
struct digest_item {
	struct slot_ref ref;
	uint64_t digest; /* 0: unknown */
};

struct digests_request {
	uint32_t n_items;
	struct digest_item *items;
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
		struct tickets_request tickets;
		struct config_request config;
		struct revoke_request revoke;
		struct bundle_begin_request bundle_begin;
		struct bundle_end_request bundle_end;
		struct bundle_get_request bundle_get;
		struct chunk_request chunk;
		struct list_request list;
		struct who_request who;
		struct clients_request clients;
		struct status_request status;
		struct prefixes_request prefixes;
		struct histograms_request histograms;
		struct memory_request memory;
		struct accounts_request accounts;
		struct timelines_request timelines;
		struct share_request share;
		struct unshare_request unshare;
		struct ordered_request ordered;
		struct control_request control;
		struct events_request events;
		struct digests_request digests;
		struct channel_open_request channel_open;
		struct channel_slots_request channel_slots;
		struct channel_buffer_request channel_buffer;
		struct channel_close_request channel_close;
		struct channel_keep_request channel_keep;
		struct channel_lag_request channel_lag;
		struct channel_resize_request channel_resize;
		struct channels_request channels;
		struct comm_join_request comm_join;
		struct comm_board_request comm_board;
		struct comm_look_request comm_look;
		struct comm_place_request comm_place;
		struct input_end_request input_end;
		struct gather_buffer_request gather_buffer;
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

/* --- replies ------------------------------------------------------------- */

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
 * alloc, share, get, redeem: one place per item, in order. `chunks` describes
 * the fds that came along; a place whose chunk the client does not know and did
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

/* A key of the configuration, or an entry of [prefixes]. */
struct config_item {
	const char *section, *name;
	const char *value;  /* as in a file */
	const char *origin; /* "default", FILE:LINE, "--set" */
};

struct config_reply {
	uint32_t n_items;
	struct config_item *items;
	uint64_t next_cursor; /* 0: that was all */
};

struct reload_reply {
	const char *report; /* a line for each change */
};

/* A ticket without the half that redeems it. */
struct ticket_item {
	uint64_t id; /* its first 8 bytes, big-endian; the others are secret */
	struct slot_ref ref;
	const char *name;     /* "": the tensor has none */
	uint64_t block_bytes; /* as in struct list_item */
	uint32_t uid, pid;    /* of the process that made the ticket */
	uint32_t uses_left;
	uint64_t age_ms, ttl_left_ms;
};

/* tickets; revoke has no body */
struct tickets_reply {
	uint32_t n_items;
	struct ticket_item *items;
	uint64_t next_cursor; /* 0: that was all */
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

/* Memory that a process shared; the broker's own is SHARE_NONE. */
enum share_kind {
	SHARE_NONE = 0,
	SHARE_DONATED = 1, /* by fd: it outlives the process */
	SHARE_LEGACY = 2,  /* by handle: it does not */
	SHARE_MAX = 2
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
	uint32_t shared; /* enum share_kind */
	/* The memory under it, which it keeps whole: a block of the broker's,
	 * or the allocation that a process shared. */
	uint64_t block;       /* tells blocks apart */
	uint64_t block_bytes; /* allocated, and charged to payer_uid */
	uint32_t block_slots; /* tensors in it, of shared memory at least */
	uint32_t payer_uid;
	uint32_t maker_pid; /* who allocated it; 0: its session has ended, or
			     * is of another user */
	uint32_t n_tickets;
	bool is_collective;        /* kept by a group, or by work on it */
	uint32_t bundle_name_size; /* of its name so much is the bundle's */
	uint64_t digest;           /* as in struct digest_item */
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
	bool is_ending; /* ending.h */
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

/* A first component of names. */
struct prefix_item {
	const char *name;
	uint32_t uid;       /* its owner */
	uint32_t n_names;   /* shown below it, outside bundles */
	uint32_t n_bundles; /* likewise */
	bool is_configured; /* for ever; else by the first use */
	uint64_t left_ms;   /* until it has no owner; 0: not soon */
};

struct prefixes_reply {
	uint32_t n_items;
	struct prefix_item *items;
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
		*note; /* "" or what an operator should know, a sentence a line
			*/
	uint32_t n_values;
	struct status_value *values;
};

enum histogram_what {
	HISTOGRAM_ITERATION = 1, /* of the loop */
	HISTOGRAM_REQUEST = 2,   /* answered at once */
	HISTOGRAM_PARKED = 3,    /* parked, and answered later */
	HISTOGRAM_MAX = 3
};

#define MESSAGE_MAX_HISTOGRAMS 32 /* in one page */

struct histogram_item {
	uint32_t what;    /* enum histogram_what */
	const char *name; /* the kind of request; "other": unknown; "": none */
	uint64_t sum_ns;
};

/* Histograms that have counted something. */
struct histograms_reply {
	uint32_t n_items;
	struct histogram_item *items;
	uint32_t n_counts; /* HISTOGRAM_BUCKETS for each item */
	uint64_t *counts;
	uint64_t next_cursor; /* 0: that was all */
};

struct memory_item {
	uint32_t chunk; /* id, as in struct tensor_place */
	uint64_t size;
	uint64_t used;     /* by blocks */
	uint64_t reserved; /* at the end, without pages yet */
	struct access_class access;
	struct device_uuid device;
	uint32_t shared; /* enum share_kind */
	uint64_t bundle; /* 0: none */
	uint32_t n_blocks;
	bool is_sealed;
};

struct memory_reply {
	uint32_t n_items;
	struct memory_item *items;
	uint64_t next_cursor; /* 0: that was all */
};

/* What is charged to a user, and the limits. */
struct account_item {
	uint32_t uid;
	uint64_t n_bytes, max_bytes; /* of blocks in host memory */
	uint64_t n_device_bytes, max_device_bytes;
	uint64_t n_slots, max_slots;
	uint64_t n_sessions, max_sessions;
	uint64_t n_waiting; /* parked requests */
};

struct accounts_reply {
	uint32_t n_items;
	struct account_item *items;
	uint64_t next_cursor; /* 0: that was all */
};

/* timelines */
struct timelines_reply {
	uint64_t session; /* whose they are */
	bool has_event;   /* no fd, but the handle of an event */
	uint8_t event[MESSAGE_HANDLE_SIZE];
};

/* control: `n` tensors or chunks and `bytes` were freed, or will be. */
struct control_reply {
	uint64_t n, bytes;
	bool has_more; /* CONTROL_EVICT: repeat it for the rest */
};

enum name_event {
	EVENT_PUBLISHED = 1,
	EVENT_REMOVED = 2, /* by its owner */
	EVENT_EXPIRED = 3,
	EVENT_EVICTED = 4,
	EVENT_ENDED = 5, /* with its session, or with its memory */
	EVENT_MAX = 5
};

struct event_item {
	uint32_t event;   /* enum name_event */
	const char *name; /* a bundle's ends in '/' */
	uint64_t version;
	uint32_t uid; /* the owner */
	uint64_t age_ms;
};

struct events_reply {
	uint64_t next; /* `since` of the next request */
	bool is_lost;  /* the broker had forgotten some events after `since` */
	uint32_t n_items;
	struct event_item *items;
};

struct reply {
	uint16_t kind;
	int32_t code;         /* 0 or -errno */
	const char *sentence; /* code < 0: why, and what to do */
	union {
		struct hello_reply hello;
		struct places_reply
			places; /* alloc, share, get, redeem, input, wait */
		struct chunks_reply chunks;
		struct versions_reply versions; /* publish */
		struct ticket_reply ticket;
		struct tickets_reply tickets;
		struct config_reply config;
		struct reload_reply reload;
		struct bundle_reply bundle; /* begin, commit */
		struct bundle_get_reply bundle_get;
		struct list_reply list;
		struct who_reply who;
		struct clients_reply clients;
		struct prefixes_reply prefixes;
		struct status_reply status;
		struct histograms_reply histograms;
		struct memory_reply memory;
		struct accounts_reply accounts;
		struct timelines_reply timelines;
		struct control_reply control;
		struct events_reply events;
		struct channel_reply channel; /* channel_open */
		struct channels_reply channels;
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

/* Find the time-out that message_kinds.h names. Returns NULL without one. */
int32_t *request_timeout(struct request *request);
/* What the body of its reply takes at most, if it is recorded. */
uint32_t reply_bound(const struct request *request);

/* Find where a reply of its kind lists its chunks, so that they can be filled
 * in. Returns false if replies of that kind list no chunks. */
bool reply_chunks(struct reply *reply, struct chunk_ref ***ret_chunks,
		  uint32_t **ret_n);
/* The places in it, 0 if it has none of them. */
uint32_t reply_places(const struct reply *reply,
		      const struct tensor_place **ret_first);

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

/* Returns one number without decoding the rest: the one that would be `at`
 * bytes into the reply, or 0 if it is absent or the bytes are malformed. */
uint64_t reply_peek(uint16_t kind, const uint8_t *body, size_t size, size_t at);

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
