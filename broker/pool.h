/*
 * Pools: the chunks of one access class, or of one bundle, from one source, and
 * who may have how much of them.
 *
 * A pool hands out blocks from the arenas of its chunks. Memory never moves
 * between pools without going back to the kernel, and mapping a chunk never
 * shows more than its access class allows.
 *
 * Admission is arithmetic: the sizes of all chunks together stay under
 * memory_max, and a new one under MemAvailable less the reserve. memfds have
 * no limit of their own; past memory the kernel kills instead of failing. On a
 * device they stay under device_memory_max, and there the driver can still
 * refuse, since others use the device too.
 *
 * Making and populating chunks takes milliseconds and happens on libuv's
 * worker threads. pool_alloc() then says POOL_WAIT, and `on_room` of the
 * broker is called when it is worth trying again: that reruns the parked
 * requests (waiter.h).
 *
 * A source is the host's memory or that of a device. Chunks of a device are
 * made by the CUDA driver, whole, and have no holes: they are released whole.
 * Their descriptor is the memory, so a broker that finds no driver any more
 * keeps them. They cannot be sealed, and whoever has the descriptor could map
 * them writable: who may only read is asked to map them so. (Who may not read
 * at all does not get it.)
 *
 * An arena chunk grows into its memory: [0, populated) is the arena's, the
 * tail is reserved until the next stretch of 64 MiB (or what is asked) has its
 * pages. What is freed stays warm for `warm_ms`; then a one-shot deadline gives
 * empty chunks back and punches whole free huge pages out of the others.
 */
#pragma once
#include "broker/account.h"
#include "broker/catalog.h"
#include "broker/deadline.h"
#include "proto/error.h"
#include <stdbool.h>
#include <stdint.h>

struct arena;
struct broker;
struct error;

struct pool; /* pool.c */

/* What is known of a chunk beyond its record; indexed by the record. */
struct chunk {
	int fd;              /* owned, read-write; -1: none (legacy IPC) */
	int readonly_fd;     /* owned; -1 until first asked for */
	struct arena *arena; /* NULL: shared by a process */
	struct pool *pool;   /* NULL: no chunk */
	uint32_t next;       /* record of the pool's next chunk; 0: none */
	bool is_busy;        /* a worker thread has its fd */
	bool is_sealing;     /* likewise; nothing is allocated in it */
	bool is_dying;    /* empty, to be retired; nothing is allocated in it */
	bool is_warm;     /* not trimmed since something was freed in it */
	uint64_t used_ms; /* when a block was last allocated or freed */
	uint64_t tail_size; /* at its end, without pages and reserved */
	uint64_t punched;   /* free bytes without pages, estimated */
};

/* Where chunks come from. */
struct pool_source {
	struct pools *pools;
	struct device_uuid device; /* all 0: the host */
	struct pool_source *next;
	uint64_t total_size; /* of all chunks, of those being made or going */
	uint64_t going_size; /* of those that are dying, and not yet closed */
	uint32_t n_works;    /* on worker threads now */
	/* A device whose driver had no memory for a chunk: */
	uint32_t n_refusals;   /* since it had */
	struct error refusal;  /* the last one's */
	uint32_t try_position; /* deadline at which it may be asked again */
};

struct pools {
	struct broker *broker;
	struct pool *first;
	struct chunk chunks[TABLE_CHUNKS]; /* index: catalog record */
	struct pool_source host;           /* the first source */
	uint32_t n_chunks;                 /* with those being made */
	uint32_t n_works;                  /* on worker threads now */
	struct pool_work *unstored; /* made, and not in the fd store yet */
	uint32_t trim_position;
	uint64_t trim_ms; /* when the deadline is, while there is one */
	uint64_t n_created, n_retired, n_trims; /* since start */
};

int pools_init(struct pools *pools, struct broker *broker, struct error *err);
/* After adoption of the catalog: take the chunks' fds from the fd store,
 * rebuild the arenas from the blocks, close what no record knows. */
int pools_adopt(struct pools *pools, struct error *err);
/* What the fd store could not take may be tried again. */
void pools_on_store(struct pools *pools);
void pools_deinit(struct pools *pools); /* no work may be pending */

enum pool_outcome {
	POOL_OK = 0,
	POOL_WAIT = 1, /* a chunk is being made or populated for this: park */
	POOL_FULL = 2, /* no room; `err` holds the sentence with figures, should
			  the caller give up (code -ENOMEM) */
};

/* What a caller wants: blocks for all of `sizes`, or nothing. */
struct pool_request {
	struct access_class access; /* with the real uid */
	struct device_uuid device;
	uint32_t bundle;    /* bundle record; 0: an arena of `access` */
	uint64_t size_hint; /* bundle: bytes still to come in all */
	uint32_t n;
	const uint64_t *sizes; /* bytes; 0 counts as 1 */
	uint32_t maker;        /* session record */
	uint32_t uid;          /* charged for the bytes (already checked) */
};

/*
 * Allocate `n` blocks; `ret_blocks` gets their records (no slots yet). Does
 * not charge accounts. Negative: no heap, or a sentence. It never collects
 * limbo or evicts: that is the caller's order of trying (verbs/alloc.c).
 */
int pool_alloc(struct pools *pools, const struct pool_request *request,
	       uint32_t *ret_blocks, struct error *err);

/* What a block of `size` bytes made there takes, which is what is charged for
 * it, and the account. */
uint64_t pool_block_size(uint64_t size, const struct device_uuid *device);
enum account_kind pool_account(const struct device_uuid *device);
/* The same for one that is there; 0 in a shared chunk, which is charged as a
 * whole. */
uint64_t pool_block_charge(const struct pools *pools,
			   const struct block_record *block);
const struct device_uuid *pool_block_device(const struct pools *pools,
					    const struct block_record *block);

/* Could these sizes ever fit, with everything else gone? -ENOMEM if not; what
 * devices_find() says of the device. */
int pool_could_fit(const struct pools *pools,
		   const struct pool_request *request, struct error *err);

/* Give the block back (its last slot went). */
void pool_release(struct pools *pools, uint32_t block);

/* The fd of a chunk for a peer; borrowed. Read-only ones are made once, and
 * are what everybody gets of a sealed chunk; a device's has but one. */
int pool_chunk_fd(struct pools *pools, uint32_t chunk_index, bool is_writable,
		  int *ret_fd, struct error *err);

/* A chunk of a bundle that is staged or committed: the first, or the one after
 * `after`; 0: no more. */
uint32_t pool_next_of_bundle(const struct pools *pools, uint32_t bundle,
			     uint32_t after);

/* The record of the chunk with that id, 0 if there is none. */
uint32_t pool_find_chunk(const struct pools *pools, uint32_t chunk_id);

/*
 * A bundle's chunks may never be written again. A thread sees to it, which
 * takes its time where pages are in use. POOL_WAIT: park, to be woken by
 * waiters_wake_uid() of the bundle's owner, and ask again. -EBUSY names the
 * mapper; what was sealed until then stays so, and the next call does the rest.
 * On a device it is only a promise: nobody gets them as writable any more.
 * Commits.
 */
int pool_seal_bundle(struct pools *pools, uint32_t bundle, struct error *err);
/* Nobody asks any more why a bundle could not be sealed. */
void pool_forget_unsealed(struct pools *pools, uint32_t bundle);

/* The bundle's pool goes when its last block does; call when it is staged no
 * more (abort, retire), for chunks that have no block. */
void pool_forget_bundle(struct pools *pools, uint32_t bundle);

/* Bytes of chunks on a device. */
uint64_t pools_device_size(const struct pools *pools,
			   const struct device_uuid *device);

/* Chunks that processes shared, and their bytes, also of those whose memory is
 * not ours. */
void pools_shared(const struct pools *pools, uint32_t *ret_n,
		  uint64_t *ret_size);

/* Free bytes in arenas of host memory with warm pages, and all free bytes. */
void pools_free_bytes(const struct pools *pools, uint64_t *ret_warm,
		      uint64_t *ret_free);
