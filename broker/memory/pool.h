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

struct pool; /* defined in pool_impl.h */

/* The volatile part of a chunk; indexed by the record. */
struct chunk {
	/* owned, read-write; -1: legacy IPC has no descriptor */
	int fd;
	int readonly_fd;     /* owned; -1 until first requested */
	struct arena *arena; /* NULL: the memory was shared by a process */
	struct pool *pool;   /* NULL: there is no chunk */
	uint32_t next;       /* record of the pool's next chunk; 0: none */
	bool is_busy;        /* a worker thread uses its fd, or will */
	bool is_late;        /* no request waits for that any more */
	bool is_sealing;     /* it is being sealed, so allocation is stopped */
	bool is_dying;       /* empty, will be retired; allocation is stopped */
	bool is_warm;        /* has free memory that was not trimmed yet */
	uint64_t used_ms;    /* when a block was last allocated or freed */
	/* Until this round the memory, which was made for a parked request, is
	 * not taken for another one. */
	uint64_t spared_until;
	/* at the end of the chunk, reserved and without pages */
	uint64_t tail_size;
	uint64_t punched; /* free bytes without pages, estimated */
};

/* A source of chunks. */
struct pool_source {
	struct pools *pools;
	struct device_uuid device; /* all 0: the host */
	struct pool_source *next;
	/* The bytes of all chunks, including those being made or freed. */
	uint64_t total_size;
	/* These count works that have not ended, and the bytes of chunks that
	 * are dying and not closed yet, both without those that are late. */
	uint32_t n_works;
	uint64_t going_size;
	/* These describe a device whose driver had no memory for a chunk. */
	uint32_t n_refusals;  /* refusals since the last success */
	struct error refusal; /* the last refusal */
	/* The deadline of the next attempt. */
	uint32_t try_position;
};

/* The functions that pools call in higher folders. broker.c sets them. */
struct pool_hooks {
	void *data;
	/* Forgets the descriptor of a chunk whose record was released and whose
	 * memory is about to be freed. Called between transactions. */
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
	/* The number of times that all requests which wait for memory have
	 * begun to be tried again; the queue of waiters counts it. */
	uint64_t n_rounds;
	uint32_t n_chunks; /* including those being made */
	uint32_t n_works;  /* works that have not ended */
	/* The number of timeline files, which also need places in the fd
	 * store. */
	uint32_t n_timelines;
	/* the files of channels need such places, too */
	uint32_t n_channels;
	/* chunks that are made, but not in the fd store yet */
	struct pool_work *unstored;
	uint32_t trim_position;
	uint64_t trim_ms; /* time of the deadline at trim_position */
	/* chunks used before this are due now; 0: pools_trim() was never
	 * called */
	uint64_t trim_asked_ms;
	uint64_t n_created, n_retired, n_trims; /* since the start */
};

void pools_init(struct pools *pools);
/* Adopts the pools after the catalog: takes the chunks' fds from the fd store,
 * rebuilds the arenas from the blocks, and closes fds without a record. */
int pools_adopt(struct pools *pools, struct error *err);
/* Stores the chunks that the fd store refused, after it has space again. */
void pools_on_store(struct pools *pools);
void pools_deinit(struct pools *pools); /* no work may be pending */

enum pool_outcome {
	POOL_OK = 0,
	/* a chunk is being made or populated for the request: park it */
	POOL_WAIT = 1,
	/* There is no memory; `err` has the message with figures (code -ENOMEM)
	 * for a caller that gives up. */
	POOL_FULL = 2,
};

/* A request for blocks of all `sizes`. It succeeds or fails as a whole. */
struct pool_request {
	struct access_class access; /* with the actual uid */
	struct device_uuid device;
	/* bundle record; 0: the block is in the class `access` */
	uint32_t bundle;
	uint64_t size_hint; /* for a bundle: all bytes still to be allocated */
	uint32_t n;
	const uint64_t *sizes; /* bytes; 0 counts as 1 */
	uint32_t maker;        /* session record */
	/* The uid that is charged for the bytes. The quota was checked
	 * already. */
	uint32_t uid;
};

/*
 * Allocates `n` blocks; `ret_blocks` gets their records (without slots yet).
 * Accounts are not charged. Negative: an error occurred, which is in `err`. It
 * neither collects limbo nor evicts: the order of these attempts is up to the
 * caller (tensor/room.c).
 */
int pool_alloc(struct pools *pools, const struct pool_request *request,
	       uint32_t *ret_blocks, struct error *err);

/* pool_block_size() returns the size that a block of `size` bytes on this
 * device takes and is charged for. pool_account() returns the kind of account
 * that is charged. */
uint64_t pool_block_size(uint64_t size, const struct device_uuid *device);
enum account_kind pool_account(const struct device_uuid *device);
/* Returns the bytes that are charged for an existing block; 0 in a shared
 * chunk, which is charged as a whole. */
uint64_t pool_block_charge(const struct pools *pools,
			   const struct block_record *block);
const struct device_uuid *pool_block_device(const struct pools *pools,
					    const struct block_record *block);

/* Checks that these sizes could fit if all other memory were free. Returns
 * -ENOMEM if not, or the result of devices_find(). */
int pool_could_fit(const struct pools *pools,
		   const struct pool_request *request, struct error *err);

/* Frees a block whose last slot was freed. */
void pool_release(struct pools *pools, uint32_t block);

/* Returns the fd of a chunk for a peer, borrowed. Each chunk gets one read-only
 * fd, which all clients get once the chunk is sealed; a device's chunk has only
 * one fd. */
int pool_chunk_fd(struct pools *pools, uint32_t chunk_index, bool is_writable,
		  int *ret_fd, struct error *err);

/* Returns a chunk of a staged or committed bundle: the first, or the one after
 * `after` if it is not 0; 0: there is no further chunk. */
uint32_t pool_next_of_bundle(const struct pools *pools, uint32_t bundle,
			     uint32_t after);

/* Finds the record of the chunk with that id. Returns 0 if there is none. */
uint32_t pool_find_chunk(const struct pools *pools, uint32_t chunk_id);

/*
 * Makes a bundle's chunks permanently read-only. A thread does it, which takes
 * long if pages are in use. POOL_WAIT: the caller parks the request, which is
 * woken by wake_uid() of the bundle's owner, and calls again. -EBUSY: a process
 * has a chunk mapped writable, and the message names it; chunks sealed so far
 * stay sealed, and the next call seals the rest. On a device the seal is only a
 * promise: from then on clients are asked to map the chunks read-only. Commits.
 */
int pool_seal_bundle(struct pools *pools, uint32_t bundle, struct error *err);
/* Forgets the error of a failed sealing, since no caller will ask for it. */
void pool_forget_unsealed(struct pools *pools, uint32_t bundle);

/* Lets the bundle's pool be freed with its last block, and retires its chunks
 * without blocks. Call it when the bundle is no longer staged (abort,
 * retire). */
void pool_forget_bundle(struct pools *pools, uint32_t bundle);

/* Returns the bytes of a chunk that blocks take. */
uint64_t pool_chunk_used(const struct pools *pools, uint32_t chunk_index);

/* Returns the bytes of chunks on a device. */
uint64_t pools_device_size(const struct pools *pools,
			   const struct device_uuid *device);

/* Lets the trimmer visit all chunks soon, because a dying chunk is no longer
 * busy or warm_ms has changed. */
void pools_look_again(struct pools *pools);

/* Returns free memory to the kernel now, not after warm_ms. A thread does it
 * for `ret_n` chunks and at most `ret_bytes` bytes. */
void pools_trim(struct pools *pools, uint64_t *ret_n, uint64_t *ret_bytes);

/* Returns the number and the bytes of the chunks that processes shared. The
 * bytes include memory that the broker does not own. */
void pools_shared(const struct pools *pools, uint32_t *ret_n,
		  uint64_t *ret_size);

/* Returns the free bytes with pages in arenas of host memory, and all free
 * bytes there. */
void pools_free_bytes(const struct pools *pools, uint64_t *ret_warm,
		      uint64_t *ret_free);
