/*
 * The catalog: everything of the broker's state that a restart needs, in one
 * memfd that outlives the process.
 *
 * Records of each kind lie in a section of their own and refer to each other
 * by index; index 0 means "none". Lists and hash chains are links inside the
 * records. The file is large and sparse: only what was used has pages.
 *
 * The journal makes every request all or nothing across kill -9. It is an
 * undo journal: before bytes of a live catalog are changed, catalog_save()
 * notes their old values; catalog_commit() is one store that forgets them. A
 * broker that adopts the catalog finds the journal empty, or puts the old
 * values back, newest first; doing so twice changes nothing. A process dies
 * between two instructions and its stores stay in order in the page cache, so
 * no fences are needed, only that the compiler keeps the order. (DESIGN.md
 * drew a redo record of absolute values with one commit word; undo keeps that
 * property, and code can read what it has just written.)
 *
 * The journal protects against crashes, not against changing one's mind: a
 * handler checks everything first and then changes things.
 *
 * LAYOUT: struct catalog_header, the journal, the sections in the order of
 * enum catalog_section, the hash buckets, the blob heap; offsets in catalog.c.
 * Fields marked [volatile] mean nothing after a restart and are not saved.
 */
#pragma once
#include "proto/message.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct error;

#define CATALOG_LAYOUT_VERSION 7
#define CATALOG_MAX_SESSIONS   4096
#define CATALOG_BUNDLES        4096 /* with record 0 */
#define OUTCOME_WINDOW         64

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
	SECTION_ORDER,
	SECTION_N
};

/* A place in a doubly linked list of records of one section. */
struct link {
	uint32_t next, prev;
};

struct list {
	uint32_t first, last;
	uint32_t n;
};

enum slot_flags {
	/* the low bits are enum publish_flags */
	SLOT_FLAG_NAMED = 0x100, /* the blob's name is (or will be) its name */
	SLOT_FLAG_IN_LIMBO = 0x200, /* in the limbo list */
	SLOT_FLAG_TAINTED = 0x400,  /* its writer died before it was written */
	SLOT_FLAG_SHARED = 0x800,   /* by its chunk's sharer: no view */
	SLOT_FLAG_WANTED = 0x1000,  /* who shared it wants it back */
};

struct slot_record {
	uint64_t generation; /* survives the slot being free */
	uint64_t offset;     /* in the block, bytes */
	uint64_t size;       /* bytes */
	uint64_t blob;       /* name, then shape, then strides (slot.c) */
	uint64_t version;
	uint64_t born_ms;
	uint64_t deadline_ms; /* end of the name; 0: none */
	uint32_t block;       /* 0: the slot is free */
	uint32_t writer;      /* session that is WRITING; 0: none */
	uint32_t tied;        /* session the name ends with; 0: none */
	uint32_t bundle;      /* version it is a member of; 0: none */
	uint32_t n_tickets;
	uint32_t name_next; /* chain of the name index */
	uint16_t flags;     /* enum slot_flags | enum publish_flags */
	uint16_t name_size;
	uint8_t dtype;
	uint8_t n_dims;
	uint16_t is_fenced;     /* [volatile] in limbo.fenced */
	uint32_t heap_position; /* [volatile] in the deadlines */
	uint32_t uid;           /* who is charged for the slot */
	uint32_t group;         /* that keeps it: its shards; 0: none */
	uint32_t n_pins; /* [volatile] the broker or its worker uses it */
	struct list grants;
	struct link block_link;   /* block_record.slots */
	struct link limbo_link;   /* header.limbo */
	struct link bundle_link;  /* bundle_record.members */
	struct link session_link; /* session_record.own: writing or tied */
	uint32_t order;           /* when its contents are there; 0: now */
};

struct block_record {
	uint32_t chunk;  /* 0: the record is free */
	uint32_t maker;  /* session whose budget pays; 0: it is gone */
	uint64_t offset; /* in the chunk */
	uint64_t size; /* as asked; accounts are charged this, rounded up to 64
			*/
	uint32_t uid;  /* who is charged */
	struct list slots;
};

struct grant_record {
	uint32_t session; /* 0: the record is free */
	uint32_t slot;
	int32_t granted;     /* cumulative, over all generations: see grant.h */
	uint32_t hash_next;  /* chain of the (session, slot) index */
	uint64_t generation; /* of the last grant; linked to the slot while this
				is the slot's */
	struct link slot_link;
	struct link session_link;
};

struct chunk_record {
	uint32_t id; /* never used again; 0: the record is free */
	uint32_t is_sealed;
	uint64_t size;
	uint64_t populated; /* arenas: [0, populated) may be allocated */
	struct access_class access;
	uint32_t bundle; /* version it belongs to; 0: an arena chunk */
	uint32_t n_blocks;
	struct device_uuid device;
	uint32_t shared; /* enum share_kind: see shared_chunk.h */
	uint32_t sharer; /* session that shared it; 0: it is gone */
	uint64_t handle; /* blob, SHARE_LEGACY */
};

struct outcome {
	uint64_t number; /* of the request; 0: empty */
	uint64_t blob;   /* the encoded body of the reply */
	uint32_t size;
	int32_t code;
};

struct session_record {
	uint64_t id; /* 0: the record is free */
	uint8_t token[TOKEN_SIZE];
	uint64_t start_time; /* of the process, /proc/PID/stat field 22 */
	uint32_t pid, uid, gid;
	char command[16];
	uint64_t born_ms;
	uint64_t refs_inode;
	uint64_t budget;   /* bytes; 0: none */
	uint64_t answered; /* requests below are answered and forgotten */
	struct list grants;
	struct list own;       /* slots it writes or is tied to */
	struct list orders;    /* by its timelines and events */
	uint32_t first_bundle; /* staged by it, chained by bundle_record.next */
	/* Version that it has a lease of, 0: none; the member to be granted
	 * next, and how many are left: see lease.h. */
	uint32_t lease_bundle, lease_slot, lease_left;
	struct outcome outcomes[OUTCOME_WINDOW];
};

struct ticket_record {
	uint8_t id[TICKET_SIZE];
	uint32_t slot; /* 0: the record is free */
	uint32_t uses_left;
	uint64_t deadline_ms;
	uint64_t born_ms;
	uint32_t uid; /* who is charged for it */
	uint32_t pid; /* of the process that made it */
	uint32_t hash_next;
	uint32_t heap_position; /* [volatile] */
};

enum bundle_state {
	BUNDLE_FREE = 0,
	BUNDLE_STAGED = 1,
	BUNDLE_COMMITTED = 2, /* what the names point to */
	BUNDLE_RETIRED = 3,   /* replaced or removed; goes when its slots do */
};

/* One version of a bundle. */
struct bundle_record {
	uint64_t id; /* never used again */
	uint64_t name_blob;
	uint64_t version;
	uint64_t born_ms;
	uint64_t deadline_ms;
	uint64_t ttl_ms;
	uint32_t state; /* enum bundle_state: the one store of a commit */
	uint32_t name_size;
	uint32_t loader;    /* session that stages it, or is tied; 0: none */
	uint32_t flags;     /* enum publish_flags */
	uint32_t next;      /* chain of session_record.first_bundle */
	uint32_t hash_next; /* chain of the bundle name index */
	struct access_class access;
	struct device_uuid device;
	uint32_t owner_uid;
	struct list members;
	uint32_t n_clashes;  /* staged: names of members that tensors outside of
				it have */
	uint64_t size_hint;  /* [volatile] staged: what its loader will still
				allocate, bytes; 0: unknown */
	int32_t manifest_fd; /* [volatile] owned; -1: not made yet */
	uint32_t heap_position; /* [volatile] */
};

struct prefix_record {
	uint64_t name_blob;
	uint32_t name_size; /* 0: the record is free */
	uint32_t uid;
	uint32_t hash_next;
	uint32_t n_names;      /* shown, outside bundles */
	uint32_t n_bundles;    /* shown */
	struct link idle_link; /* header.idle_prefixes, while both are 0 */
	uint32_t reserved;
	uint64_t idle_ms; /* since when it is there */
};

/* A rank on this node: its place in the list is that of its shards. */
struct comm_place {
	uint32_t rank; /* in the world */
	struct device_uuid device;
};

/* What lasts of a communicator: see comm.h for what runs. */
struct comm_record {
	uint64_t id; /* of the record; 0: it is free */
	uint64_t name_blob;
	uint32_t name_size;
	uint32_t uid; /* who made it: charged for everything */
	struct access_class access;
	uint32_t n_ranks, n_shards;
	uint64_t step; /* last one that all ranks committed; 0: none */
	uint64_t ttl_ms;
	uint64_t deadline_ms; /* while nobody is in it: when it ends */
	uint32_t first_group; /* chained by group_record.next, as registered */
	uint32_t n_groups;
	uint32_t heap_position; /* [volatile] */
	uint32_t n_local;       /* ranks on this node */
	/* Of a communicator that has groups. */
	struct comm_place places[MESSAGE_MAX_RANKS];
};

struct group_record {
	uint64_t id;        /* 0: the record is free */
	uint64_t spec_blob; /* the group_request that made it, encoded */
	uint32_t spec_size;
	uint32_t comm; /* its record */
	uint32_t next;
	uint32_t side; /* which of `slots` is committed */
	/* The shards, kept by this group: as struct rank_memory. */
	uint32_t slots[2][MESSAGE_MAX_RANKS];
	uint64_t step;      /* last commit that included it; 0: none */
	uint64_t plan_hash; /* must come out the same again */
	/* Works of all runs that are over. */
	uint64_t n_gathers, n_reductions;
};

/* When a slot's contents are there: see order.h. */
struct order_record {
	uint64_t value; /* of the timeline; of an event: its number */
	uint64_t event; /* blob of its handle; 0: none */
	uint32_t slot;  /* 0: the record is free */
	uint32_t session;
	uint32_t timeline; /* of the session; 0: it is an event */
	uint32_t original; /* a view's order by an event: that of what it views,
			      which has the handle; 0: it is none */
	struct link session_link;
	struct link copy_link; /* order_record.copies */
	struct list copies;    /* by views */
	uint32_t reserved;
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
	uint32_t first_free; /* chained through a field of the kind (catalog.c)
			      */
	uint32_t n_touched;  /* records ever used; the rest are holes */
	uint32_t n_live;
	uint32_t reserved;
};

#define BLOB_CLASSES 23 /* 32, 48, 64, 96, 128, ... bytes to 64 KiB */

struct catalog_header {
	uint64_t magic; /* "FSDPCAT1" */
	uint32_t layout_version;
	uint32_t adoption_attempts; /* since one went well */
	uint64_t journal_size;      /* bytes noted; 0 is the commit */
	uint64_t epoch;
	uint64_t hash_seed; /* random, so that nobody can choose names that all
			       hash alike */
	uint64_t next_session_id;
	uint64_t next_bundle_id;
	uint64_t next_comm_id; /* of records, runs and groups alike */
	uint32_t next_chunk_id;
	uint32_t reserved;
	struct list limbo;
	struct list idle_prefixes; /* those that end in time, oldest first */
	uint64_t blob_top;
	uint64_t blob_free[BLOB_CLASSES];
	struct catalog_section_state sections[SECTION_N];
};

/* What the present transaction has noted already; a small cache. */
struct catalog_saved {
	uint64_t offset, size;
	uint64_t transaction; /* 0: none */
};

#define CATALOG_SAVED 256 /* a power of two */

struct catalog {
	struct catalog_header *header; /* mapping; NULL when closed */
	uint8_t *base;                 /* the same address */
	int fd;                        /* owned; -1 when closed */
	uint64_t n_commits;
	struct catalog_saved saved[CATALOG_SAVED];
};

#define CATALOG_NULL ((struct catalog){.fd = -1})

/* A new, empty catalog. */
int catalog_create(struct catalog *ret, struct error *err);

/*
 * Adopt one that an earlier broker left. Counts the attempt, undoes an
 * unfinished request. Consumes `fd`, also on failure. -EPROTO: unknown layout.
 * -EUCLEAN: two earlier adoptions of it did not end well, or it is damaged.
 */
int catalog_adopt(struct catalog *ret, int fd, struct error *err);

/* The adoption went well: the next one may try again. */
void catalog_adopted(struct catalog *catalog);
void catalog_close(struct catalog *catalog);

/* --- journal ---------------------------------------------------------------
 */

/* Note `size` bytes at `at` (in the catalog) before they are changed. */
void catalog_save(struct catalog *catalog, const void *at, size_t size);

/* All changes since the last commit stand. */
void catalog_commit(struct catalog *catalog);

/* Bytes the journal can still take: work that may exceed it commits in steps,
 * each of which leaves the catalog in order. 48 MiB when empty. */
size_t catalog_journal_room(const struct catalog *catalog);

/* Save, then assign: catalog_set(catalog, record->field, value). */
#define catalog_set(catalog, field, value)                                     \
	do {                                                                   \
		catalog_save((catalog), &(field), sizeof(field));              \
		(field) = (value);                                             \
	} while (0)

/* --- records ---------------------------------------------------------------
 */

/*
 * A zeroed record (slots keep their generation); 0 if the section is full. Its
 * bytes are noted already: until the commit they may be assigned directly.
 */
uint32_t catalog_alloc(struct catalog *catalog, enum catalog_section section);
void catalog_release(struct catalog *catalog, enum catalog_section section,
		     uint32_t index);
uint32_t catalog_n_live(const struct catalog *catalog,
			enum catalog_section section);
/* Records are [1, n_touched]; free ones among them are told by their own
 * field (slot.block, chunk.id, ...), which is 0. */
uint32_t catalog_n_touched(const struct catalog *catalog,
			   enum catalog_section section);
/* The highest index that can be handed out: so many records fit. */
uint32_t catalog_capacity(enum catalog_section section);

/* Are there `n` records more? -ENOSPC; `what` names them in the sentence. */
int catalog_check_room(const struct catalog *catalog,
		       enum catalog_section section, uint32_t n,
		       const char *what, struct error *err);

struct slot_record *catalog_slot(const struct catalog *catalog, uint32_t index);
struct block_record *catalog_block(const struct catalog *catalog,
				   uint32_t index);
struct grant_record *catalog_grant(const struct catalog *catalog,
				   uint32_t index);
struct chunk_record *catalog_chunk(const struct catalog *catalog,
				   uint32_t index);
struct session_record *catalog_session(const struct catalog *catalog,
				       uint32_t index);
struct ticket_record *catalog_ticket(const struct catalog *catalog,
				     uint32_t index);
struct bundle_record *catalog_bundle(const struct catalog *catalog,
				     uint32_t index);
struct prefix_record *catalog_prefix(const struct catalog *catalog,
				     uint32_t index);
struct comm_record *catalog_comm(const struct catalog *catalog, uint32_t index);
struct group_record *catalog_group(const struct catalog *catalog,
				   uint32_t index);
struct order_record *catalog_order(const struct catalog *catalog,
				   uint32_t index);

/* --- lists, hashes, blobs (all journaled) -----------------------------------
 */

/* Append record `index` of `section`, whose link is at `link_offset`. */
void catalog_list_append(struct catalog *catalog, struct list *list,
			 enum catalog_section section, size_t link_offset,
			 uint32_t index);
void catalog_list_remove(struct catalog *catalog, struct list *list,
			 enum catalog_section section, size_t link_offset,
			 uint32_t index);

/* The bucket of a hash value: head of a chain, to be changed by
 * catalog_set(). */
uint32_t *catalog_bucket(const struct catalog *catalog, enum catalog_hash hash,
			 uint64_t value);

/* Room for `size` bytes (1 to 64 KiB), 8-byte aligned; 0 if there is none. They
 * mean nothing yet and may be written without catalog_save(). */
uint64_t catalog_blob_alloc(struct catalog *catalog, size_t size);
void catalog_blob_release(struct catalog *catalog, uint64_t blob, size_t size);
void *catalog_blob(const struct catalog *catalog, uint64_t blob);
/* Bytes of pages that blobs have taken so far. */
uint64_t catalog_blob_bytes(const struct catalog *catalog);
