/*
 * The state of a broker: its tensors, their holders, its memory and its
 * counters; and events. fsdp.h includes this header and describes the
 * conventions.
 */
#pragma once
#include "fsdp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- inspection ---------------------------------------------------------- */

enum fsdp_state {
	FSDP_STATE_FREE = 0,
	FSDP_STATE_WRITING = 1,
	FSDP_STATE_PUBLISHED = 2,
	FSDP_STATE_LIMBO = 3
};

/* The owner of a tensor's memory: see fsdp_share(). */
enum fsdp_shared {
	FSDP_SHARED_NOT = 0,     /* allocated by the broker */
	FSDP_SHARED_DONATED = 1, /* made by a process, kept by the broker */
	FSDP_SHARED_LEGACY = 2,  /* owned by a process, and ends with it */
};

struct fsdp_entry {
	size_t struct_size;
	const struct fsdp_info *info;
	uint32_t uid, gid, mode;
	enum fsdp_state state;
	uint64_t age_ms;      /* since it was allocated */
	uint64_t ttl_left_ms; /* 0: its name does not expire */
	uint32_t n_holders;   /* sessions that hold it */
	uint32_t flags;       /* enum fsdp_publish_flags */
	uint64_t bundle;      /* 0: it is in no bundle */
	enum fsdp_shared shared;
	/* The memory that contains it: a block of the broker, or memory that a
	 * process shared. The tensor keeps all of it, even if it is a view of a
	 * part. */
	uint64_t block;      /* equal for tensors in the same memory */
	uint64_t block_size; /* in bytes */
	uint32_t n_in_block; /* tensors in it; for shared memory, blocks */
	uint32_t payer_uid;  /* the user whose quota is charged */
	/* The process that allocated it; 0: its session has ended, or it is of
	 * another user (root and the admin group see all). */
	uint32_t maker_pid;
	uint32_t n_tickets; /* valid tickets for the tensor */
	bool is_collective; /* a communicator's group keeps or uses it */
	/* The length of the bundle's name, which is a prefix of a member's
	 * name; 0: it is in no bundle. */
	uint32_t bundle_name_size;
	/* The location of its first element: the number of the chunk, and the
	 * offset from the start of the chunk in bytes. */
	uint32_t chunk;
	uint64_t offset;
	uint64_t digest; /* see fsdp_set_digests(); 0: unknown */
};

struct fsdp_holder {
	size_t struct_size;
	uint64_t session;
	uint32_t pid, uid;
	const char *command;
	int64_t holds;
	bool is_connected;
	bool is_writer;
	bool is_tainted; /* the tensor is tainted */
	/* The process is exiting, but the kernel has not yet freed its memory;
	 * the tensor is held until then. */
	bool is_ending;
};

struct fsdp_peer {
	size_t struct_size;
	uint64_t session;
	uint32_t pid, uid;
	const char *command;
	bool is_connected;
	uint64_t n_slots; /* tensors that it holds */
	uint64_t n_bytes; /* memory that it allocated and that was not freed */
	uint64_t n_requests, age_ms;
	uint32_t n_waiting; /* its requests that are waiting */
};

/* The first component of names: the part before the first '/'. */
struct fsdp_prefix {
	size_t struct_size;
	const char *name;
	uint32_t uid;       /* its owner */
	uint32_t n_names;   /* published tensors that have it, without members
			     * of bundles */
	uint32_t n_bundles; /* published bundles that have it */
	/* The owner is assigned by the configuration; otherwise it is the first
	 * user of the prefix. */
	bool is_configured;
	/* The time until an unused prefix loses its owner; 0: it is used, or
	 * its owner is configured. */
	uint64_t left_ms;
};

enum fsdp_histogram_kind {
	/* Iterations of the broker's event loop: in this time it did not look
	 * for new requests. */
	FSDP_HISTOGRAM_ITERATION = 1,
	/* Requests that did not wait, from reading to the reply. */
	FSDP_HISTOGRAM_REQUEST = 2,
	/* Requests that waited for a name or for memory, from parking to the
	 * reply. */
	FSDP_HISTOGRAM_PARKED = 3,
};

/*
 * A histogram of durations since the broker's start. Bucket i counts durations
 * below limits_ns[i] that are not below limits_ns[i - 1]; the last limit is
 * UINT64_MAX. All histograms have the same limits.
 */
struct fsdp_histogram {
	size_t struct_size;
	enum fsdp_histogram_kind kind;
	const char *name; /* the kind of request; "" for iterations */
	uint64_t n;       /* the sum of `counts` */
	uint64_t sum_ns;  /* of all durations */
	uint32_t n_buckets;
	const uint64_t *counts, *limits_ns;
};

/* A chunk: a memory object from the kernel or the driver, which is mapped as a
 * whole and divided into blocks. */
struct fsdp_chunk {
	size_t struct_size;
	uint32_t chunk;    /* its number, which is never reused */
	uint64_t size;     /* in bytes */
	uint64_t used;     /* bytes in blocks */
	uint64_t reserved; /* bytes at the end that have no pages yet */
	uint32_t n_blocks;
	uint32_t uid, gid, mode;   /* of all its tensors */
	struct fsdp_device device; /* all 0: host memory */
	enum fsdp_shared shared;
	uint64_t bundle; /* as in struct fsdp_entry; 0: it is of no bundle */
	bool is_sealed;  /* sealed against writing for ever */
};

/* The charges of a user, and their limits; UINT64_MAX means no limit. */
struct fsdp_account {
	size_t struct_size;
	uint32_t uid;
	uint64_t n_bytes, max_bytes; /* of blocks in host memory */
	uint64_t n_device_bytes, max_device_bytes; /* on all devices */
	uint64_t n_slots, max_slots;               /* tensors */
	uint64_t n_sessions, max_sessions;
	uint64_t n_waiting; /* requests that are waiting */
};

/* Callbacks get borrowed data that is valid during the call. A nonzero return
 * value ends the iteration and is returned. */
typedef int fsdp_entry_fn(const struct fsdp_entry *entry, void *data);
typedef int fsdp_holder_fn(const struct fsdp_holder *holder, void *data);
typedef int fsdp_peer_fn(const struct fsdp_peer *peer, void *data);
typedef int fsdp_prefix_fn(const struct fsdp_prefix *prefix, void *data);
typedef int fsdp_histogram_fn(const struct fsdp_histogram *histogram,
			      void *data);
typedef int fsdp_chunk_fn(const struct fsdp_chunk *chunk, void *data);
typedef int fsdp_account_fn(const struct fsdp_account *account, void *data);
typedef int fsdp_value_fn(const char *name, uint64_t value, void *data);

/* Lists the named tensors that the caller may read and whose names begin with
 * `prefix` (NULL: all), in no particular order. */
FSDP_API int fsdp_list(struct fsdp_client *client, const char *prefix,
		       fsdp_entry_fn *fn, void *data);
/*
 * Lists all tensors whose memory is charged to the caller's user; for
 * administrators, all tensors of all users. This includes tensors that are
 * being written, staged in a bundle, in limbo, without a name, or kept by a
 * ticket. The sum of the blocks is what fsdp_status() calls own_bytes, without
 * board_bytes, and own_device_bytes; for an administrator, it is bytes_live and
 * device_bytes_live. Memory of legacy IPC is listed, but is not charged to any
 * user.
 */
FSDP_API int fsdp_list_all(struct fsdp_client *client, fsdp_entry_fn *fn,
			   void *data);
/* Lists the tensors in limbo, which only holds keep. */
FSDP_API int fsdp_limbo(struct fsdp_client *client, fsdp_entry_fn *fn,
			void *data);
/* Lists the holders of the tensor of this name; its owner and administrators
 * may ask. */
FSDP_API int fsdp_who(struct fsdp_client *client, const char *name,
		      fsdp_holder_fn *fn, void *data);
/* Does the same for a tensor without a name, for example from fsdp_limbo(). */
FSDP_API int fsdp_who_slot(struct fsdp_client *client, uint32_t slot,
			   uint64_t generation, fsdp_holder_fn *fn, void *data);
/* Lists the sessions of the caller's user; administrators see all sessions. */
FSDP_API int fsdp_clients(struct fsdp_client *client, fsdp_peer_fn *fn,
			  void *data);
/* Lists the first components of names that have an owner: those in the
 * configuration and the caller's own. Root and administrators see all. */
FSDP_API int fsdp_prefixes(struct fsdp_client *client, fsdp_prefix_fn *fn,
			   void *data);
/* Calls `fn` for each counter, and stores the warnings for the operator in
 * `*ret_note` ("" if there are none). The caller must free() it; `ret_note` may
 * be NULL. */
FSDP_API int fsdp_status(struct fsdp_client *client, fsdp_value_fn *fn,
			 void *data, char **ret_note);
/* Resets the counters that are a maximum (loop_longest_ns). -EPERM: the caller
 * is neither root nor a member of admin_group. */
FSDP_API int fsdp_status_reset(struct fsdp_client *client);
/* Calls `fn` for each histogram that is not empty. */
FSDP_API int fsdp_histograms(struct fsdp_client *client, fsdp_histogram_fn *fn,
			     void *data);
/* Lists the chunks whose tensors the caller may read; root and administrators
 * see all. */
FSDP_API int fsdp_chunks(struct fsdp_client *client, fsdp_chunk_fn *fn,
			 void *data);
/* Lists the accounts of users with charges: the caller's own, or for root and
 * administrators all of them. */
FSDP_API int fsdp_accounts(struct fsdp_client *client, fsdp_account_fn *fn,
			   void *data);

/* --- watching ------------------------------------------------------------ */

enum fsdp_event_kind {
	FSDP_EVENT_LOST = 0, /* events were lost; `name` is "" */
	FSDP_EVENT_PUBLISHED = 1,
	FSDP_EVENT_REMOVED = 2, /* the owner removed the name */
	FSDP_EVENT_EXPIRED = 3, /* the ttl_ms of the name has passed */
	FSDP_EVENT_EVICTED = 4, /* the broker evicted the tensor */
	FSDP_EVENT_ENDED = 5,   /* the name's session or memory has ended */
};

struct fsdp_event {
	size_t struct_size;
	enum fsdp_event_kind kind;
	const char *name; /* a bundle is one event; its name ends in '/' */
	uint64_t version;
	uint32_t uid;    /* the owner */
	uint64_t age_ms; /* since the event */
};
typedef int fsdp_event_fn(const struct fsdp_event *event, void *data);

/*
 * Waits up to `timeout_ms` for events of names that begin with `prefix` (NULL:
 * all) and that the caller may read, and calls `fn` for each. Set `*cursor` to
 * 0 before the first call, which only stores the current position there and
 * returns at once; each later call advances it. A replacement is one event,
 * FSDP_EVENT_PUBLISHED. The broker keeps the last 4,096 events while any client
 * watches. If events that the caller has not seen were dropped, or the broker
 * was restarted, `fn` gets FSDP_EVENT_LOST, and the caller should list the
 * names again. A call may return 0 without an event before the time has
 * expired.
 */
FSDP_API int fsdp_watch(struct fsdp_client *client, const char *prefix,
			uint64_t *cursor, int32_t timeout_ms, fsdp_event_fn *fn,
			void *data);

#ifdef __cplusplus
}
#endif
