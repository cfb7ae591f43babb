/*
 * The catalog: all broker state that a restart needs, in one memfd that
 * outlives the process.
 *
 * Records of each kind are stored in a section of their own and refer to each
 * other by index; index 0 means "none". Lists and hash chains are links inside
 * the records. The file is large and sparse: only the parts that were used have
 * pages.
 *
 * The journal makes every request atomic across kill -9. It is an undo journal:
 * before bytes of a live catalog are changed, catalog_save() records their old
 * values; catalog_commit() is one store that discards them. A broker that
 * adopts the catalog finds the journal empty, or restores the old values,
 * newest first; restoring them twice is harmless. A process is killed between
 * two instructions, and its stores are in order in the page cache, so no fences
 * are needed; only the compiler must keep the order. Code can read a value
 * right after it wrote it, which a redo journal would not allow.
 *
 * The journal protects against crashes; it cannot roll back a running request.
 * A handler therefore checks everything before its first change.
 *
 * LAYOUT: struct catalog_header, the journal, the sections in the order of enum
 * catalog_section, the hash buckets, the blob heap. The offsets are in
 * catalog.c. Fields marked [volatile] are meaningless after a restart and are
 * not journaled.
 */
#pragma once
#include "proto/message.h"
#include "shm/board.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct error;

#define CATALOG_LAYOUT_VERSION 12
#define CATALOG_MAX_SESSIONS   4096
#define CATALOG_BUNDLES        4096 /* including record 0 */
#define CATALOG_CHANNELS       129  /* including record 0 */
#define CATALOG_CHANNEL_SLOTS  64
#define RECORDED_REPLIES_MAX   64

enum catalog_section {
	SECTION_SLOT,
	SECTION_BLOCK,
	SECTION_GRANT,
	SECTION_CHUNK,
	SECTION_SESSION,
	SECTION_TICKET,
	SECTION_BUNDLE,
	SECTION_PREFIX,
	SECTION_COMM,
	SECTION_GROUP,
	SECTION_READY_FENCE,
	SECTION_CHANNEL,
	SECTION_RUN,
	SECTION_N
};

/* Links of a doubly linked list of records of one section. */
struct link {
	uint32_t next, prev;
};

struct list {
	uint32_t first, last;
	uint32_t n;
};

enum slot_flags {
	/* The low bits are enum publish_flags. */
	/* The name in the blob shows the slot, or will show it in its
	 * bundle. */
	SLOT_FLAG_NAMED = 0x100,
	SLOT_FLAG_IN_LIMBO = 0x200, /* in the limbo list */
	SLOT_FLAG_TAINTED = 0x400,  /* its writer died before publishing it */
	/* Its memory was shared by a client, and it is not a view. */
	SLOT_FLAG_SHARED = 0x800,
	/* The process that shared it wants it back. */
	SLOT_FLAG_WANTED = 0x1000,
};

struct slot_record {
	uint64_t generation; /* kept while the slot is free */
	uint64_t offset;     /* bytes, from the start of the block */
	uint64_t size;       /* bytes */
	uint64_t blob;       /* name, then shape, then strides (slot.c) */
	uint64_t version;
	uint64_t born_ms;
	uint64_t deadline_ms; /* when the name expires; 0: it never does */
	uint64_t digest;      /* XXH3 of the elements; 0: unknown */
	uint32_t block;       /* 0: the slot is free */
	uint32_t writer;      /* the session that writes it, or 0 */
	uint32_t tied;        /* the session whose end removes the name, or 0 */
	uint32_t bundle;      /* the bundle version that contains it, or 0 */
	uint32_t n_tickets;
	uint32_t name_next; /* next in the chain of the name index */
	uint16_t flags;     /* enum slot_flags | enum publish_flags */
	uint16_t name_size;
	uint8_t dtype;
	uint8_t n_dims;
	uint16_t is_fenced;     /* [volatile] the slot is in limbo.fenced */
	uint32_t heap_position; /* [volatile] position in the deadlines */
	uint32_t uid;           /* the uid that is charged for the slot */
	uint32_t group;         /* the group whose shard it is, or 0 */
	uint32_t n_pins; /* [volatile] uses by the broker or its worker */
	struct list grants;
	struct link block_link;   /* block_record.slots */
	struct link limbo_link;   /* header.limbo */
	struct link bundle_link;  /* bundle_record.members */
	struct link session_link; /* session_record.own: writing or tied */
	/* The ready fence of its contents; 0: they are complete. */
	uint32_t ready_fence;
	uint32_t channel; /* the channel whose buffer it is, or 0 */
	uint32_t reserved;
};

struct block_record {
	uint32_t chunk;  /* 0: the record is free */
	uint32_t maker;  /* session whose budget is charged; 0: it has ended */
	uint64_t offset; /* bytes, from the start of the chunk */
	/* The size as requested. Accounts are charged the size rounded up to
	 * 64. */
	uint64_t size;
	uint32_t uid; /* the uid that is charged for the block */
	struct list slots;
};

struct grant_record {
	uint32_t session; /* 0: the record is free */
	uint32_t slot;
	int32_t granted; /* cumulative, over all generations: see grant.h */
	/* The next grant in the chain of the (session, slot) index. */
	uint32_t hash_next;
	/* The generation of the last grant. The record is linked to the slot
	 * while the slot has this generation. */
	uint64_t generation;
	struct link slot_link;
	struct link session_link;
};

struct chunk_record {
	uint32_t id; /* never reused; 0: the record is free */
	uint32_t is_sealed;
	uint64_t size;
	uint64_t populated; /* arenas: [0, populated) may be allocated */
	struct access_class access;
	/* bundle version it belongs to; 0: it is an arena chunk */
	uint32_t bundle;
	uint32_t n_blocks;
	struct device_uuid device;
	uint32_t shared; /* enum share_kind (shared_chunk.h) */
	uint32_t sharer; /* session that shared it; 0: it has ended */
	uint64_t handle; /* blob; only for SHARE_LEGACY */
};

struct recorded_reply {
	uint64_t number; /* of the request; 0: the entry is empty */
	uint64_t blob;   /* the encoded body of the reply */
	uint32_t size;
	int32_t code;
};

struct session_record {
	uint64_t id; /* 0: the record is free */
	uint8_t token[TOKEN_SIZE];
	/* start time of the process: field 22 of /proc/PID/stat */
	uint64_t start_time;
	uint32_t pid, uid, gid;
	char command[16];
	uint64_t born_ms;
	uint64_t refs_inode;
	uint64_t budget; /* bytes; 0: unlimited */
	/* The client has the replies of requests below this number, so their
	 * recorded replies are dropped. */
	uint64_t answered;
	struct list grants;
	/* slots that the session writes or that are tied to it */
	struct list own;
	/* ready fences by timelines and events of the session */
	struct list fences;
	/* The first bundle version that it stages or that is tied to it; the
	 * others are chained by bundle_record.next. */
	uint32_t first_bundle;
	/* The bundle version that the session leases (0: none), the next member
	 * to grant, and the number of members left (lease.h). */
	uint32_t lease_bundle, lease_slot, lease_left;
	struct recorded_reply recorded_replies[RECORDED_REPLIES_MAX];
};

struct ticket_record {
	uint8_t id[TICKET_SIZE];
	uint32_t slot; /* 0: the record is free */
	uint32_t uses_left;
	uint64_t deadline_ms;
	uint64_t born_ms;
	uint32_t uid; /* the uid that is charged for the ticket */
	uint32_t pid; /* of the process that made it */
	uint32_t hash_next;
	uint32_t heap_position; /* [volatile] */
};

enum bundle_state {
	BUNDLE_FREE = 0,
	BUNDLE_STAGED = 1,
	BUNDLE_COMMITTED = 2, /* the names refer to this version */
	/* It was replaced or removed, and is freed with its last slot. */
	BUNDLE_RETIRED = 3,
	/* It was replaced, but sessions can still get it by its number, until
	 * the n_kept of a later version or the end of the name retires it. */
	BUNDLE_KEPT = 4,
};

/* One version of a bundle. */
struct bundle_record {
	uint64_t id; /* never reused */
	uint64_t name_blob;
	uint64_t version;
	uint64_t born_ms;
	uint64_t deadline_ms;
	uint64_t ttl_ms;
	uint32_t state; /* enum bundle_state; storing it commits the version */
	uint32_t name_size;
	/* The session that stages it or that it is tied to; 0: there is
	 * none. */
	uint32_t loader;
	uint32_t flags; /* enum publish_flags */
	/* next in the chain of session_record.first_bundle */
	uint32_t next;
	uint32_t hash_next; /* next in the chain of the bundle name index */
	struct access_class access;
	struct device_uuid device;
	uint32_t owner_uid;
	struct list members;
	/* While it is staged: the number of member names that tensors outside
	 * this bundle have. */
	uint32_t n_clashes;
	/* versions that sessions can get, including this one */
	uint32_t n_kept;
	/* [volatile] While it is staged: the bytes that its loader will still
	 * allocate; 0: they are unknown. */
	uint64_t size_hint;
	int32_t manifest_fd;    /* [volatile] owned; -1: not made yet */
	uint32_t heap_position; /* [volatile] */
};

struct prefix_record {
	uint64_t name_blob;
	uint32_t name_size; /* 0: the record is free */
	uint32_t uid;
	uint32_t hash_next;
	uint32_t n_names;   /* visible names outside bundles */
	uint32_t n_bundles; /* visible bundles */
	/* The link in header.idle_prefixes, while both counts are 0. */
	struct link idle_link;
	uint32_t reserved;
	uint64_t idle_ms; /* when it became idle */
};

/* A rank on this node. The index of the place is that of the rank's shards. */
struct comm_place {
	uint32_t rank; /* number of the rank in the world */
	struct device_uuid device;
};

/* The persistent part of a communicator; comm.h has the volatile part. */
struct comm_record {
	uint64_t id; /* id of the record; 0: the record is free */
	uint64_t name_blob;
	uint32_t name_size;
	/* the user that made it, and is charged for everything in it */
	uint32_t uid;
	struct access_class access;
	uint32_t n_ranks, n_shards;
	/* the last step that all ranks committed, or 0 before the first */
	uint64_t step;
	uint64_t ttl_ms;
	uint64_t deadline_ms; /* when it ends if no rank is in it then */
	/* The groups are chained by group_record.next, in the order of
	 * registration. */
	uint32_t first_group;
	uint32_t n_groups;
	uint32_t heap_position; /* [volatile] */
	uint32_t n_local;       /* ranks on this node */
	/* Set only in a communicator that has groups. */
	struct comm_place places[MESSAGE_MAX_RANKS];
};

/* The part of a group that lasts as long as a run. */
struct group_run {
	/* id of the run; the other fields are valid while it goes on */
	uint64_t run;
	uint64_t id;       /* the id by which its ranks name the group */
	uint64_t answered; /* mask of ranks that got the reply */
	uint32_t index;    /* index among the groups of the run */
	/* Memory that the run keeps; 0: it was not made. */
	uint32_t grads, partial;
	uint32_t reserved;
};

struct group_record {
	uint64_t id;        /* 0: the record is free */
	uint64_t spec_blob; /* blob: the encoded group_request that made it */
	uint32_t spec_size;
	uint32_t comm; /* record of its communicator */
	uint32_t next;
	uint32_t side; /* index into `slots` of the committed side */
	/* The slots of the shards, which the group keeps, as in struct
	 * rank_memory. */
	uint32_t slots[2][MESSAGE_MAX_RANKS];
	/* the last commit that included this group, or 0 before the first */
	uint64_t step;
	uint64_t plan_hash; /* a plan made again must have the same hash */
	/* The gathers and reductions of all finished runs. */
	uint64_t n_gathers, n_reductions;
	/* used only if the ranks do all work by themselves */
	struct group_run run;
};

/* A rank of a run, indexed by its place. */
struct run_rank {
	uint32_t session;     /* 0: it has left or died */
	uint32_t is_answered; /* the rank knows that all have joined */
	/* The step that it has committed and that other ranks have not; else
	 * 0. */
	uint64_t step;
	uint64_t n_gathers; /* gathers that it began before the commit */
	uint32_t n_inputs;
	uint32_t inputs[BOARD_MAX_AHEAD]; /* pinned slots, in any order */
};

/* Memory that ranks gather into (gather_buffers.h). */
struct run_buffer {
	uint64_t generation;
	uint32_t slot; /* 0: it was not made */
	uint32_t version;
	uint32_t is_pinned;
	uint32_t reserved;
};

/* A run whose ranks do all work by themselves. It lasts from when all ranks
 * have joined until all have left (run_record.h). */
struct run_record {
	uint64_t id;       /* 0: the record is free */
	uint32_t comm;     /* record of its communicator */
	uint32_t verdict;  /* index of its verdict in the state table */
	uint32_t direct;   /* enum comm_direct */
	uint32_t is_shown; /* ranks may have its board */
	/* The request of the first rank; its name is NULL. */
	struct comm_join_request asked;
	struct run_rank ranks[MESSAGE_MAX_RANKS];
	struct run_buffer buffers[GATHERS_BUFFERS];
};

/* The ready fence of a slot's contents (ready_fence.h). */
struct ready_fence_record {
	uint64_t value; /* value of the timeline, or number of the event */
	uint64_t event; /* the blob with the handle of the event, or 0 */
	uint32_t slot;  /* 0: the record is free */
	uint32_t session;
	/* timeline of the session; 0: the fence is an event */
	uint32_t timeline;
	/* For a view's fence by an event: the fence of the viewed slot, which
	 * has the handle; 0: this fence is not a copy. */
	uint32_t original;
	struct link session_link;
	struct link copy_link; /* ready_fence_record.copies */
	struct list copies;    /* fences of views */
	uint32_t reserved;
};

/* A process that has a channel open, in one role. */
struct channel_user {
	uint32_t session; /* 0: the place is free */
	uint16_t role;    /* enum channel_role */
	/* a producer that sends nothing more, or a consumer that was cut */
	uint16_t is_ended;
	uint64_t born_ms;
};

/* A channel, which exists while some process has it open (channel.h). */
struct channel_record {
	uint64_t id; /* never reused; 0: the record is free */
	uint64_t name_blob;
	uint64_t capacity; /* bytes of a buffer */
	uint32_t name_size;
	uint32_t uid; /* the user that made it, and is charged for its memory */
	struct access_class access;
	uint32_t way;     /* enum slots_mode */
	uint32_t n_slots; /* number of buffers that it should have */
	uint32_t lag_ms;  /* limit of a broadcast; 0: no consumer is cut */
	struct channel_user users[CATALOG_CHANNEL_SLOTS]; /* indexed by place */
	/* The slots of its buffers; 0: the buffer has left, and will be
	 * replaced. */
	uint32_t slots[CATALOG_CHANNEL_SLOTS];
};

enum catalog_hash {
	HASH_NAME,   /* slot_record.name_next */
	HASH_GRANT,  /* grant_record.hash_next */
	HASH_TICKET, /* ticket_record.hash_next */
	HASH_BUNDLE, /* bundle_record.hash_next */
	HASH_PREFIX, /* prefix_record.hash_next */
	HASH_N
};

struct catalog_section_state {
	/* The free records are chained through a field of the record, which
	 * depends on the kind (catalog.c). */
	uint32_t first_free;
	/* The number of records ever used; the rest are holes in the file. */
	uint32_t n_touched;
	uint32_t n_live;
	uint32_t reserved;
};

#define BLOB_CLASSES 23 /* 32, 48, 64, 96, 128, ... bytes to 64 KiB */

struct catalog_header {
	uint64_t magic; /* "FSDPCAT1" */
	uint32_t layout_version;
	/* adoptions since the last one that succeeded */
	uint32_t adoption_attempts;
	/* bytes in the journal; storing 0 commits */
	uint64_t journal_size;
	uint64_t epoch;
	/* It is random, so that a client cannot choose names with colliding
	 * hashes. */
	uint64_t hash_seed;
	uint64_t next_session_id;
	uint64_t next_bundle_id;
	uint64_t next_comm_id; /* for records, runs and groups */
	uint64_t next_channel_id;
	uint32_t next_chunk_id;
	uint32_t is_draining; /* only administrators get new sessions */
	struct list limbo;
	struct list idle_prefixes; /* prefixes that expire, oldest first */
	uint64_t blob_top;
	uint64_t blob_free[BLOB_CLASSES];
	struct catalog_section_state sections[SECTION_N];
};

/* A range that was saved in the transaction with this number. The array is a
 * small cache. */
struct catalog_saved {
	uint64_t offset, size;
	uint64_t transaction; /* 0: the entry is empty */
};

#define CATALOG_SAVED 256 /* a power of two */

struct catalog {
	struct catalog_header *header; /* the mapping; NULL when closed */
	uint8_t *base;                 /* the same address */
	int fd;                        /* owned; -1 when closed */
	uint64_t n_commits;
	struct catalog_saved saved[CATALOG_SAVED];
};

#define CATALOG_NULL ((struct catalog){.fd = -1})

/* Makes a new, empty catalog. */
int catalog_create(struct catalog *ret, struct error *err);

/*
 * Adopts the catalog of an earlier broker: counts the attempt and undoes an
 * unfinished request. Consumes `fd`, also on failure. -EPROTO: the layout is
 * that of another version. -EUCLEAN: two earlier adoptions of it failed, or it
 * is damaged.
 */
int catalog_adopt(struct catalog *ret, int fd, struct error *err);

/* Takes back the attempt, because the adoption failed for lack of memory or
 * descriptors. */
void catalog_put_off_adoption(struct catalog *catalog);
/* Resets the count of attempts after an adoption that succeeded. */
void catalog_adopted(struct catalog *catalog);
void catalog_close(struct catalog *catalog);

/* --- journal ------------------------------------------------------------- */

/* Saves the `size` bytes at `at` (in the catalog) in the journal, before they
 * are changed. */
void catalog_save(struct catalog *catalog, const void *at, size_t size);

/* Makes all changes since the last commit permanent. */
void catalog_commit(struct catalog *catalog);

/* Returns the bytes that the journal can still take, 48 MiB when it is empty.
 * Work that may exceed it commits in steps, each of which leaves the catalog
 * consistent. */
size_t catalog_journal_room(const struct catalog *catalog);

/* Saves the field, then assigns the value: catalog_set(catalog, record->field,
 * value). */
#define catalog_set(catalog, field, value)                                     \
	do {                                                                   \
		catalog_save((catalog), &(field), sizeof(field));              \
		(field) = (value);                                             \
	} while (0)

/* --- records ------------------------------------------------------------- */

/*
 * Allocates a zeroed record (slots keep their generation). Returns 0 if the
 * section is full. The record's bytes are already saved: until the commit they
 * may be assigned directly.
 */
uint32_t catalog_alloc(struct catalog *catalog, enum catalog_section section);
void catalog_release(struct catalog *catalog, enum catalog_section section,
		     uint32_t index);
uint32_t catalog_n_live(const struct catalog *catalog,
			enum catalog_section section);
/* Returns the number of records ever used. They have the indexes [1,
 * n_touched]. A free one among them has 0 in a field of its kind (slot.block,
 * chunk.id, ...). */
uint32_t catalog_n_touched(const struct catalog *catalog,
			   enum catalog_section section);
/* Returns the number of records that fit, which is also the highest index. */
uint32_t catalog_capacity(enum catalog_section section);

/* Checks that `n` more records fit. -ENOSPC; `what` names them in the error. */
int catalog_check_room(const struct catalog *catalog,
		       enum catalog_section section, uint32_t n,
		       const char *what, struct error *err);

/* catalog_slot(), catalog_block(), ... return the record with this index. */
#define CATALOG_RECORDS(X)                                                     \
	X(SECTION_SLOT, slot)                                                  \
	X(SECTION_BLOCK, block)                                                \
	X(SECTION_GRANT, grant)                                                \
	X(SECTION_CHUNK, chunk)                                                \
	X(SECTION_SESSION, session)                                            \
	X(SECTION_TICKET, ticket)                                              \
	X(SECTION_BUNDLE, bundle)                                              \
	X(SECTION_PREFIX, prefix)                                              \
	X(SECTION_COMM, comm)                                                  \
	X(SECTION_GROUP, group)                                                \
	X(SECTION_READY_FENCE, ready_fence)                                    \
	X(SECTION_CHANNEL, channel)                                            \
	X(SECTION_RUN, run)
#define X(SECTION, noun)                                                       \
	struct noun##_record *catalog_##noun(const struct catalog *catalog,    \
					     uint32_t index);
CATALOG_RECORDS(X)
#undef X

/* --- lists, hashes, blobs (all journaled) -------------------------------- */

/* Appends record `index` of `section`, whose link is at `link_offset`. */
void catalog_list_append(struct catalog *catalog, struct list *list,
			 enum catalog_section section, size_t link_offset,
			 uint32_t index);
void catalog_list_remove(struct catalog *catalog, struct list *list,
			 enum catalog_section section, size_t link_offset,
			 uint32_t index);

/* Returns the bucket of a hash value: the head of a chain, which is changed by
 * catalog_set(). */
uint32_t *catalog_bucket(const struct catalog *catalog, enum catalog_hash hash,
			 uint64_t value);

/* Removes record `index` from the chain that begins at `*at`. */
void catalog_chain_remove(struct catalog *catalog, enum catalog_section section,
			  uint32_t *at, uint32_t index);

/* Allocates `size` bytes (1 to 64 KiB), aligned to 8. Returns 0 if there is no
 * space. The contents are undefined and may be written without
 * catalog_save(). */
uint64_t catalog_blob_alloc(struct catalog *catalog, size_t size);
void catalog_blob_release(struct catalog *catalog, uint64_t blob, size_t size);
void *catalog_blob(const struct catalog *catalog, uint64_t blob);
/* Returns the bytes of pages that blobs have used so far. */
uint64_t catalog_blob_bytes(const struct catalog *catalog);
