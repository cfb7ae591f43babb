/*
 * The messages of the protocol as plain structs, and the functions that encode
 * and decode them.
 *
 * The wire format is fsdp.proto (protobuf). Decoding checks everything that
 * does not depend on the broker's state: counts, lengths, names (name.h),
 * tensor types and reserved values. So callers need not check the form of a
 * decoded message again, and the decoders are fuzzed.
 *
 * A request is `struct request`, a reply `struct reply`: a kind and a union of
 * all bodies. All arrays and strings of a decoded message are in one
 * allocation, which the message owns (`mem`) and request_deinit() or
 * reply_deinit() frees. Encoding borrows everything.
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

/* Peers of different major versions refuse each other. A new minor version only
 * adds messages and fields. */
#define PROTOCOL_MAJOR 1
#define PROTOCOL_MINOR 6

/* Returns "get", "publish", ..., or "?" for an unknown kind. */
const char *message_kind_name(uint16_t kind);

/* These return the flags of message_kinds.h, or false for an unknown kind. */
bool message_is_recorded(uint16_t kind);
bool message_grants(uint16_t kind);
bool message_takes_fd(uint16_t kind);

/* --- requests ------------------------------------------------------------ */

struct empty_request {
};

/* A reconnect has two fds: the session's ref-counter file and its doorbell. */
struct hello_request {
	uint32_t major, minor;
	bool is_reconnect;
	uint64_t session;          /* reconnect: id of the session */
	uint8_t token[TOKEN_SIZE]; /* reconnect: its secret */
	uint64_t budget; /* limit of its memory in bytes; 0: unlimited */
};

struct challenge_request {
	uint64_t nonce;
};

struct alloc_item {
	struct tensor_type type; /* contiguous; a view may have strides */
	bool is_view;            /* a second tensor over the block of `base` */
	struct slot_ref base;    /* is_view: a slot that this session holds */
	uint64_t base_offset;    /* is_view: bytes from the start of `base` */
	const char *name; /* in a bundle: the member's full name; else "" */
};

struct alloc_request {
	struct access_class access; /* ignored in a bundle and for views */
	uint64_t bundle;            /* staged bundle to allocate in; 0: none */
	int32_t timeout_ms; /* for memory; 0: do not wait; -1: no limit */
	uint32_t n_items;
	struct alloc_item *items;
	struct device_uuid device; /* ignored in a bundle and for views */
};

struct share_item {
	struct tensor_type type;
	uint64_t offset; /* in bytes; a multiple of the dtype's size */
};

/*
 * Shares tensors in one allocation of device memory that the caller has
 * already. The memory is that of the fd of this request, or of the handle. The
 * reply is that of alloc.
 */
struct share_request {
	struct device_uuid device; /* not the host */
	struct access_class access;
	bool has_handle;
	uint8_t handle[MESSAGE_HANDLE_SIZE];
	uint64_t size; /* of the whole allocation, in bytes */
	uint32_t n_items;
	struct share_item *items; /* they may overlap */
};

/* Parks until no process uses a tensor that this session shared. The reply is
 * empty. If the tensor is gone it succeeds at once, so it can be repeated. */
struct unshare_request {
	struct slot_ref ref;
	int32_t timeout_ms; /* 0: do not wait, -1: without a limit */
};

enum publish_flags {
	PUBLISH_REPLACE = 1,    /* the name may exist, and is replaced */
	PUBLISH_EVICTABLE = 2,  /* may be evicted when memory is short */
	PUBLISH_TIED = 4,       /* the name ends with this session */
	PUBLISH_MUST_EXIST = 8, /* with REPLACE: the name must exist */
	PUBLISH_ONCE = 16,      /* bundles: wait while another stages it */
};

struct publish_item {
	struct slot_ref ref;
	const char *name; /* "": no name, only holds keep the tensor */
	uint32_t flags;
	uint64_t ttl_ms;   /* time until the name ends; 0: no limit */
	uint32_t timeline; /* of this session: the writer's work is complete */
	uint64_t value;    /* when it has this value; both 0: it is complete */
	/* or this event: its handle, MESSAGE_HANDLE_SIZE bytes; or NULL */
	const uint8_t *event;
};

struct publish_request {
	uint32_t n_items;
	struct publish_item *items;
};

struct get_request {
	int32_t timeout_ms; /* 0: do not wait, -1: without a limit */
	bool is_trust_set;
	uint32_t trusted_uid; /* is_trust_set: owner of all tensors */
	uint32_t n_names;
	const char **names;
	uint64_t newer_than; /* versions of the names; 0: any version */
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
	const char **names; /* tensors, or bundles by their name with '/' */
};

struct ticket_request {
	struct slot_ref ref;
	uint32_t n_uses;
	uint64_t ttl_ms; /* > 0 */
};

struct revoke_request {
	uint64_t ticket; /* ticket_item.id */
};

struct redeem_request {
	uint32_t n_tickets;
	const uint8_t (*tickets)[TICKET_SIZE];
};

struct bundle_begin_request {
	const char *name; /* the name, which ends in '/' */
	struct access_class access;
	uint64_t size_hint; /* bytes to be allocated; 0: unknown */
	uint32_t flags;     /* all but PUBLISH_EVICTABLE */
	uint64_t ttl_ms;
	struct device_uuid device; /* of all members */
	int32_t timeout_ms; /* PUBLISH_ONCE; 0: do not wait; -1: no limit */
	uint32_t n_kept;    /* versions to keep; 0 is 1: the newest */
};

/* the body of bundle_commit and bundle_abort */
struct bundle_end_request {
	uint64_t bundle;
};

/* Gets all tensors of a committed bundle at once. */
struct bundle_get_request {
	const char *name;
	int32_t timeout_ms;
	bool is_trust_set;
	uint32_t trusted_uid;
	uint64_t newer_than; /* version; 0: any version */
	uint64_t version;    /* get this version; 0: the newest */
};

struct chunk_request {
	uint32_t n_chunks; /* at most FRAME_MAX_FDS */
	uint32_t *chunks;
};

enum list_filter {
	LIST_NAMED = 1,
	LIST_LIMBO = 2,
	LIST_ALL = 3,
	/* charged to the caller's user, even if unreadable; administrators: to
	 * any user */
	LIST_CHARGED = 4,
};

struct list_request {
	const char *prefix; /* "": all that the caller may read */
	uint32_t filter;    /* enum list_filter */
	uint64_t cursor;    /* 0: from the beginning */
};

struct who_request {
	const char *name; /* "": use `ref` instead */
	struct slot_ref ref;
	uint64_t cursor;
};

/* Lists everything of a kind, page by page. */
struct page_request {
	uint64_t cursor; /* 0: from the beginning */
};

/* `resets` sets maxima to 0 after they have been copied to the reply. Only
 * administrators may set it. */
struct status_request {
	bool resets;
};

/*
 * Gets the file with a session's timelines (shm/timeline.h) as an fd. A
 * session's own file is writable and made at the first request. The file of
 * another session is given to processes that wait for it, so the request names
 * a tensor that the caller holds and that this session orders. If an event
 * orders the tensor, the reply has the event's handle instead.
 */
struct timelines_request {
	uint64_t session; /* 0: the caller's own */
	struct slot_ref ref;
	bool wants_writable; /* another session's; it must have the same uid */
};

/* Reports that the event is complete by which the session ordered the tensor.
 * `event` is the `generation` of its handle. */
struct ordered_item {
	struct slot_ref ref;
	uint64_t event;
};

/* The reply is empty. Items are skipped if the tensor is not ordered by that
 * event. */
struct ordered_request {
	uint32_t n_items;
	struct ordered_item *items;
};

enum control_action {
	CONTROL_COLLECT = 1, /* free released tensors now */
	CONTROL_TRIM = 2,    /* return free memory to the kernel now */
	CONTROL_EVICT = 3,   /* until `value` bytes of the device are free */
	/* With `value` 1: refuse new sessions, except those of administrators,
	 * and wait until all others have ended. With 0: accept sessions
	 * again. */
	CONTROL_DRAIN = 4,
	CONTROL_LOG_LEVEL = 5, /* `value`: enum log_level */
	CONTROL_MAX = 5
};

/* An action that an administrator requests. */
struct control_request {
	uint32_t action; /* enum control_action */
	uint64_t value;
	int32_t timeout_ms; /* of a drain; 0: do not wait; -1: no limit */
	struct device_uuid device;
};

/*
 * Gets the events of names after the event `since` (0: later than now; the
 * reply is sent at once). It parks until there are events. A reply may have no
 * items, if the time-out has expired or if the events were about other names.
 */
struct events_request {
	uint64_t since;     /* events_reply.next */
	const char *prefix; /* "": all names that the session may read */
	int32_t timeout_ms; /* 0: do not wait, -1: without a limit */
};

/* The XXH3 of the elements, in row-major order, of a tensor that the session is
 * writing. */
struct digest_item {
	struct slot_ref ref;
	uint64_t digest; /* 0: unknown */
};

struct digests_request {
	uint32_t n_items;
	struct digest_item *items;
};

/* The bodies have the names of their kinds. */
struct request {
	uint16_t kind;
	union {
#define X(KIND, number, noun, action, request, ...)                            \
	struct request##_request noun;
		MESSAGE_KINDS(X)
#undef X
	};
	void *mem; /* owned; memory that a decoded message uses */
};

/* --- replies ------------------------------------------------------------- */

/*
 * The first reply to a hello has either `is_challenge` (the client sends the
 * nonce in a challenge request, whose reply is of kind hello again) or a
 * session. The fds of a session are the state table (read-only), the
 * ref-counter file and the doorbell. After a reconnect there are no fds,
 * because the client has them.
 */
struct hello_reply {
	bool is_challenge;
	uint64_t nonce;
	uint64_t session;
	uint8_t token[TOKEN_SIZE];
	uint32_t n_slots; /* of state table and ref-counter file */
};

/*
 * The reply to alloc, share, get and redeem: one place for each item, in order.
 * `chunks` describes the fds of this reply. A client fetches the chunk of a
 * place by a chunk request, if it neither knows the chunk nor gets it here.
 */
struct places_reply {
	uint32_t n_places;
	struct tensor_place *places;
	uint32_t n_chunks;
	struct chunk_ref *chunks;
};

/* The reply to chunk. */
struct chunks_reply {
	uint32_t n_chunks;
	struct chunk_ref *chunks;
};

/* The reply to publish: the new version of each name. That to remove is
 * empty. */
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
	const char *value;  /* as it is written in a file */
	const char *origin; /* "default", FILE:LINE, "--set" */
};

struct config_reply PAGE_OF(struct config_item);

struct reload_reply {
	const char *report; /* one line for each change */
};

/* A ticket without the secret half that redeems it. */
struct ticket_item {
	uint64_t id; /* its first 8 bytes, big-endian; the others are secret */
	struct slot_ref ref;
	const char *name;     /* "": the tensor has no name */
	uint64_t block_bytes; /* as in struct list_item */
	uint32_t uid, pid;    /* of the process that made the ticket */
	uint32_t uses_left;
	uint64_t age_ms, ttl_left_ms;
};

/* The reply to tickets. That to revoke is empty. */
struct tickets_reply PAGE_OF(struct ticket_item);

/* The reply to bundle_begin and bundle_commit. Only the latter has a
 * version. */
struct bundle_reply {
	uint64_t bundle;
	uint64_t version;
};

/*
 * The reply to bundle_get, when all members are granted. Their places are in a
 * sealed memfd, which the broker makes once for each version: an encoded
 * places_reply of `manifest_size` bytes. It is the first fd, and the fds of
 * `chunks` follow it.
 */
struct bundle_get_reply {
	uint64_t bundle;
	uint64_t version;
	uint32_t n_members;
	uint64_t manifest_size;
	uint32_t n_chunks;
	struct chunk_ref *chunks;
};

/* How a process shared the memory. Memory of the broker is SHARE_NONE. */
enum share_kind {
	SHARE_NONE = 0,
	SHARE_DONATED = 1, /* by an fd: it outlives the process */
	SHARE_LEGACY = 2,  /* by a handle: it ends with the process */
	SHARE_MAX = 2
};

struct list_item {
	struct tensor_place place;
	struct access_class access;
	uint32_t state; /* enum slot_state */
	uint64_t age_ms;
	uint64_t ttl_left_ms; /* 0: no limit */
	uint32_t n_holders;   /* number of sessions */
	uint32_t flags;       /* enum publish_flags */
	uint64_t bundle;      /* 0: not in a bundle */
	struct device_uuid device;
	uint32_t shared; /* enum share_kind */
	/* The memory of the tensor: a block of the broker, or the allocation
	 * that a process shared. The tensor keeps all of it. */
	uint64_t block;       /* number that identifies the block */
	uint64_t block_bytes; /* allocated, and charged to payer_uid */
	uint32_t block_slots; /* tensors in it; a minimum if it is shared */
	uint32_t payer_uid;
	/* process that allocated it; 0: its session has ended, or is of another
	 * user */
	uint32_t maker_pid;
	uint32_t n_tickets;
	bool is_collective;        /* kept by a group, or by work on a group */
	uint32_t bundle_name_size; /* of the bundle's part of the name */
	uint64_t digest;           /* as in struct digest_item */
};

struct list_reply PAGE_OF(struct list_item);

struct holder {
	uint64_t session;
	uint32_t pid, uid;
	const char *command;
	int64_t holds; /* 0: only its device still uses it */
	bool is_connected;
	bool is_writer;
	bool is_ending; /* see ending.h */
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
	uint64_t n_slots; /* number of slots that it holds */
	uint64_t n_bytes; /* bytes of memory that it allocated */
	uint64_t n_requests;
	uint64_t age_ms;
	uint32_t n_waiting;
};

struct clients_reply PAGE_OF(struct client_item);

/* The first component of names. */
struct prefix_item {
	const char *name;
	uint32_t uid;       /* its owner */
	uint32_t n_names;   /* of visible names below it, outside of bundles */
	uint32_t n_bundles; /* of visible bundles below it */
	bool is_configured; /* else the first user owns it */
	uint64_t left_ms;   /* until it has no owner; 0: it is used */
};

struct prefixes_reply PAGE_OF(struct prefix_item);

/* Counters and sizes by name, so that a new one does not change the format. */
struct status_value {
	const char *name;
	uint64_t value;
};

struct status_reply {
	const char *version;
	const char
		/* hints for an operator, one sentence for each line; or "" */
		*note;
	uint32_t n_values;
	struct status_value *values;
};

enum histogram_what {
	HISTOGRAM_ITERATION = 1, /* of the event loop */
	HISTOGRAM_REQUEST = 2,   /* a request that was answered at once */
	HISTOGRAM_PARKED = 3,    /* parked and answered later */
	HISTOGRAM_MAX = 3
};

#define MESSAGE_MAX_HISTOGRAMS 32 /* in one reply */

struct histogram_item {
	uint32_t what;    /* enum histogram_what */
	const char *name; /* kind of request, "other", or "" for the loop */
	uint64_t sum_ns;
};

/* The reply to histograms. It has only those that have counted something. */
struct histograms_reply {
	uint32_t n_items;
	struct histogram_item *items;
	uint32_t n_counts; /* HISTOGRAM_BUCKETS times n_items */
	uint64_t *counts;
	uint64_t next_cursor; /* 0: there are no more */
};

struct memory_item {
	uint32_t chunk; /* id of the chunk, as in struct tensor_place */
	uint64_t size;
	uint64_t used;     /* in blocks */
	uint64_t reserved; /* free at the end, and still without pages */
	struct access_class access;
	struct device_uuid device;
	uint32_t shared; /* enum share_kind */
	uint64_t bundle; /* 0: of no bundle */
	uint32_t n_blocks;
	bool is_sealed;
};

/* The chunks that the caller may read; for administrators, all chunks. */
struct memory_reply PAGE_OF(struct memory_item);

/* The charges of a user, and their limits. */
struct account_item {
	uint32_t uid;
	uint64_t n_bytes, max_bytes; /* of blocks in host memory */
	uint64_t n_device_bytes, max_device_bytes;
	uint64_t n_slots, max_slots;
	uint64_t n_sessions, max_sessions;
	uint64_t n_waiting; /* number of parked requests */
};

/* The caller's account; for administrators, those of all users. */
struct accounts_reply PAGE_OF(struct account_item);

/* The reply to timelines. */
struct timelines_reply {
	uint64_t session; /* the session of the timelines */
	bool has_event;   /* the reply has an event's handle, but no fd */
	uint8_t event[MESSAGE_HANDLE_SIZE];
};

/* The reply to control: `n` tensors or chunks with `bytes` bytes are freed, now
 * or soon. */
struct control_reply {
	uint64_t n, bytes;
	bool has_more; /* CONTROL_EVICT: repeat it for the rest */
};

enum name_event {
	EVENT_PUBLISHED = 1,
	EVENT_REMOVED = 2, /* removed by its owner */
	EVENT_EXPIRED = 3,
	EVENT_EVICTED = 4,
	EVENT_ENDED = 5, /* ended with its session, or with its memory */
	EVENT_MAX = 5
};

struct event_item {
	uint32_t event;   /* enum name_event */
	const char *name; /* of a bundle if it ends in '/' */
	uint64_t version;
	uint32_t uid; /* the owner */
	uint64_t age_ms;
};

struct events_reply {
	uint64_t next; /* the value of `since` for the next request */
	bool is_lost;  /* some events after `since` were dropped */
	uint32_t n_items;
	struct event_item *items;
};

struct reply {
	uint16_t kind;
	int32_t code;         /* 0 or -errno */
	const char *sentence; /* code < 0: the cause and the remedy */
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

/* Returns the time-out that message_kinds.h names for this kind, or NULL if it
 * has no time-out. */
int32_t *request_timeout(struct request *request);
/* Returns the maximum size of the body of a recorded reply to this request. */
uint32_t reply_bound(const struct request *request);

/* Gets the fields that list the chunks of a reply, so that the caller can set
 * them. Returns false if replies of this kind do not list chunks. */
bool reply_chunks(struct reply *reply, struct chunk_ref ***ret_chunks,
		  uint32_t **ret_n);
/* Returns the number of places in the reply, and the first of them. */
uint32_t reply_places(const struct reply *reply,
		      const struct tensor_place **ret_first);

/*
 * Encodes into a new buffer, which the caller frees. Returns -EMSGSIZE if the
 * result does not fit into a frame; places_encode() has no such limit.
 */
int request_encode(const struct request *request, uint8_t **ret_body,
		   size_t *ret_size, struct error *err);
int reply_encode(const struct reply *reply, uint8_t **ret_body,
		 size_t *ret_size, struct error *err);

/*
 * Decodes and checks. On failure `ret` needs no cleanup. Request bodies come
 * from clients and replies from the broker; neither is trusted.
 */
int request_decode(uint16_t kind, const uint8_t *body, size_t size,
		   struct request *ret, struct error *err);
int reply_decode(uint16_t kind, int32_t code, const uint8_t *body, size_t size,
		 struct reply *ret, struct error *err);

void request_deinit(struct request *request);
void reply_deinit(struct reply *reply);

/* Returns the number that is `at` bytes into the reply, without decoding other
 * fields. Returns 0 if the field is absent or the bytes are malformed. */
uint64_t reply_peek(uint16_t kind, const uint8_t *body, size_t size, size_t at);

/* Encodes a places_reply without chunks, which is not sent in a frame: the
 * manifest of a bundle. */
int places_encode(const struct places_reply *places, uint8_t **ret_bytes,
		  size_t *ret_size, struct error *err);

/*
 * Reads a manifest, a few places at a time. Each place is checked when it is
 * read; the number of places is known from the start.
 */
struct manifest;
int manifest_open(const uint8_t *bytes, size_t size, struct manifest **ret,
		  struct error *err);
uint32_t manifest_n_places(const struct manifest *manifest);
/* Reads up to `max` places and returns their number, 0 after the last one.
 * Their names stay valid as long as the manifest. */
int manifest_read(struct manifest *manifest, struct tensor_place *ret,
		  uint32_t max, struct error *err);
void manifest_close(struct manifest *manifest); /* NULL is allowed */

/*
 * Encodes these chunks such that the bytes, appended to an encoded places_reply
 * or bundle_get_reply, add them to it (protobuf merges concatenated messages).
 * A recorded reply is sent again with the chunk fds that the new connection
 * lacks.
 */
int chunk_refs_encode(uint16_t kind, const struct chunk_ref *chunks,
		      uint32_t n_chunks, uint8_t **ret_bytes, size_t *ret_size);
