/*
 * Pools: the chunks of one access class, or of one bundle, from one source, and
 * the limits on their size.
 *
 * A pool allocates blocks from the arenas of its chunks. Memory moves between
 * pools only through the kernel, and mapping a chunk never exposes more than
 * its access class allows.
 *
 * Admission is arithmetic: the sizes of all chunks together stay below
 * memory_max, and a new chunk below MemAvailable less the reserve. memfds have
 * no limit of their own; when memory is exhausted, the kernel kills processes
 * and does not fail the allocation. On a device the sizes stay below
 * device_memory_max, and the driver may still refuse, since other processes use
 * the device, too.
 *
 * Making and populating chunks takes milliseconds and happens on libuv's worker
 * threads. pool_alloc() then returns POOL_WAIT, and wake_room() is
 * called when it is worth trying again: it reruns the parked requests
 * (waiter.h).
 *
 * A source is the host's memory or that of a device. Chunks of a device are
 * made by the CUDA driver, have no holes, and are released as a whole. Their
 * descriptor is the memory, so a broker that finds no driver after a restart
 * keeps them. They cannot be sealed, and a process with the descriptor could
 * map them writable: clients that may only read are asked to map them
 * read-only. (Clients that may not read do not get the descriptor.)
 *
 * An arena chunk grows into its memory: [0, populated) belongs to the arena,
 * and the tail is reserved until the next range of 64 MiB (or of the requested
 * size) has its pages. Freed memory stays warm for `warm_ms`; then a one-shot
 * deadline frees empty chunks and punches wholly free huge pages out of the
 * others.
 */
#pragma once
#include "broker/base/account.h"
#include "broker/base/deadline.h"
#include "broker/catalog/catalog.h"
#include "proto/error.h"
#include <stdbool.h>
#include <stdint.h>

struct arena;
struct base;
struct devices;
struct error;
struct table;

struct pool; /* pool.c */

/* The volatile part of a chunk; indexed by the record. */
struct chunk {
	int fd;              /* owned, read-write; -1: none (legacy IPC) */
	int readonly_fd;     /* owned; -1 until first requested */
	struct arena *arena; /* NULL: memory shared by a process */
	struct pool *pool;   /* NULL: there is no chunk */
	uint32_t next;       /* record of the pool's next chunk; 0: none */
	bool is_busy;        /* a worker thread uses its fd */
	bool is_sealing;     /* it is being sealed, so allocation is stopped */
	bool is_dying;       /* empty, to be retired; allocation is stopped */
	bool is_warm;        /* not trimmed since the last free in it */
	uint64_t used_ms;    /* when a block was last allocated or freed */
	uint64_t tail_size;  /* at the end, reserved and without pages */
	uint64_t punched;    /* free bytes without pages, estimated */
};

/* A source of chunks. */
struct pool_source {
	struct pools *pools;
	struct device_uuid device; /* all 0: the host */
	struct pool_source *next;
	/* Of all chunks, including those being made or freed. */
	uint64_t total_size;
	uint64_t going_size; /* of those that are dying and not closed yet */
	uint32_t n_works;    /* works on worker threads now */
	/* State of a device whose driver had no memory for a chunk: */
	uint32_t n_refusals;  /* refusals since the last success */
	struct error refusal; /* the last refusal */
	/* Deadline of the next attempt. */
	uint32_t try_position;
};

/* What pools call in the rooms above; set by broker.c. */
struct pool_hooks {
	void *data;
	/* The record of a chunk was released, and its memory is about to be:
	 * forget the descriptor. Called between transactions. */
	void (*on_chunk_gone)(void *data, uint32_t chunk);
};

struct pools {
	/* Borrowed; these and the hooks are set before pools_init(). */
	struct base *base;
	struct catalog *catalog;
	struct table *table;
	struct devices *devices;
	struct pool_hooks hooks;
	struct pool *first;
	struct chunk chunks[TABLE_CHUNKS]; /* indexed by catalog record */
	struct pool_source host;           /* the first source */
	uint32_t n_chunks;                 /* including those being made */
	uint32_t n_works;                  /* works on worker threads now */
	/* Timeline files, which take places in the fd store, too. */
	uint32_t n_timelines;
	uint32_t n_channels;        /* whose files take places there, too */
	struct pool_work *unstored; /* made, but not in the fd store yet */
	uint32_t trim_position;
	uint64_t trim_ms;       /* time of the deadline at trim_position */
	uint64_t trim_asked_ms; /* what was used before it is due; 0: never */
	uint64_t n_created, n_retired, n_trims; /* since the start */
};

int pools_init(struct pools *pools, struct error *err);
/* After adoption of the catalog: take the chunks' fds from the fd store,
 * rebuild the arenas from the blocks, and close fds without a record. */
int pools_adopt(struct pools *pools, struct error *err);
/* The fd store has space again: retry storing chunks that it refused. */
void pools_on_store(struct pools *pools);
void pools_deinit(struct pools *pools); /* no work may be pending */

enum pool_outcome {
	POOL_OK = 0,
	POOL_WAIT = 1, /* park: a chunk is being made or populated for this */
	/* No memory; `err` holds the message with figures (code -ENOMEM) for a
	 * caller that gives up. */
	POOL_FULL = 2,
};

/* A request for blocks of all `sizes`. It succeeds or fails as a whole. */
struct pool_request {
	struct access_class access; /* with the actual uid */
	struct device_uuid device;
	uint32_t bundle;    /* bundle record; 0: an arena of `access` */
	uint64_t size_hint; /* bundle: bytes still to be allocated in all */
	uint32_t n;
	const uint64_t *sizes; /* bytes; 0 counts as 1 */
	uint32_t maker;        /* session record */
	/* Charged for the bytes (quota already checked). */
	uint32_t uid;
};

/*
 * Allocate `n` blocks; `ret_blocks` gets their records (without slots yet).
 * Accounts are not charged. Negative: out of memory, or an error in `err`. It
 * neither collects limbo nor evicts: the order of these attempts is up to the
 * caller (verbs/alloc.c).
 */
int pool_alloc(struct pools *pools, const struct pool_request *request,
	       uint32_t *ret_blocks, struct error *err);

/* The size that a block of `size` bytes on this device takes, and is charged
 * for, and the account that is charged. */
uint64_t pool_block_size(uint64_t size, const struct device_uuid *device);
enum account_kind pool_account(const struct device_uuid *device);
/* The same for an existing block; 0 in a shared chunk, which is charged as
 * a whole. */
uint64_t pool_block_charge(const struct pools *pools,
			   const struct block_record *block);
const struct device_uuid *pool_block_device(const struct pools *pools,
					    const struct block_record *block);

/* Could these sizes fit if all other memory were free? -ENOMEM if not, or the
 * error of devices_find(). */
int pool_could_fit(const struct pools *pools,
		   const struct pool_request *request, struct error *err);

/* Free a block whose last slot was freed. */
void pool_release(struct pools *pools, uint32_t block);

/* The fd of a chunk for a peer; borrowed. Each chunk gets one read-only fd,
 * which all clients get once it is sealed; a device's chunk has only one fd. */
int pool_chunk_fd(struct pools *pools, uint32_t chunk_index, bool is_writable,
		  int *ret_fd, struct error *err);

/* A chunk of a staged or committed bundle: the first, or the one after `after`;
 * 0: no more. */
uint32_t pool_next_of_bundle(const struct pools *pools, uint32_t bundle,
			     uint32_t after);

/* Find the record of the chunk with that id. Returns 0 without one. */
uint32_t pool_find_chunk(const struct pools *pools, uint32_t chunk_id);

/*
 * Make a bundle's chunks permanently read-only. A thread does it, which takes
 * long if pages are in use. POOL_WAIT: park, to be woken by wake_uid()
 * of the bundle's owner, and ask again. -EBUSY names the process that maps a
 * chunk; chunks sealed so far stay sealed, and the next call seals the rest. On
 * a device the seal is only a promise: from then on clients get the chunks as
 * read-only. Commits.
 */
int pool_seal_bundle(struct pools *pools, uint32_t bundle, struct error *err);
/* Forget the error of a failed sealing, since no caller will ask for it. */
void pool_forget_unsealed(struct pools *pools, uint32_t bundle);

/* The bundle's pool is freed with its last block. Call this when the bundle is
 * no longer staged (abort, retire), for chunks without blocks. */
void pool_forget_bundle(struct pools *pools, uint32_t bundle);

/* Bytes of a chunk that blocks take. */
uint64_t pool_chunk_used(const struct pools *pools, uint32_t chunk_index);

/* Bytes of chunks on a device. */
uint64_t pools_device_size(const struct pools *pools,
			   const struct device_uuid *device);

/* A dying chunk is no longer busy, or warm_ms is another: the trimmer visits
 * all chunks soon. */
void pools_look_again(struct pools *pools);

/* Return free memory to the kernel now, not after warm_ms: of how many chunks,
 * and at most how many bytes, a thread will do that. */
void pools_trim(struct pools *pools, uint64_t *ret_n, uint64_t *ret_bytes);

/* Number and bytes of the chunks that processes shared. The bytes include
 * memory that the broker does not own. */
void pools_shared(const struct pools *pools, uint32_t *ret_n,
		  uint64_t *ret_size);

/* Free bytes with pages in arenas of host memory, and all free bytes. */
void pools_free_bytes(const struct pools *pools, uint64_t *ret_warm,
		      uint64_t *ret_free);
