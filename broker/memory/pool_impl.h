/*
 * Internals that the files of the pool share.
 *
 * pool.c places blocks, pool_admit.c decides whether there may be more memory,
 * pool_grow.c makes it, pool_seal.c makes a bundle's memory read-only,
 * pool_trim.c frees it, and pool_adopt.c adopts the chunks of an earlier
 * broker. Work on chunks runs on threads as a `struct pool_work`
 * (pool_work.c): its kind has two functions, one for the thread, which uses
 * only the struct, and one for the loop. While a chunk is busy its fd stays
 * open; ranges that a thread populates or punches are reserved in the arena, so
 * that they cannot be allocated.
 */
#pragma once
#include "broker/base/base.h"
#include "broker/base/mapper.h"
#include "broker/memory/devices.h"
#include "broker/memory/pool.h"
#include "proto/error.h"
#include "shm/table.h"
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define BLOCK_ALIGN        64
#define DEVICE_BLOCK_ALIGN 512
#define MIB                (UINT64_C(1) << 20)

struct pool {
	struct pools *pools;
	struct pool *next;
	struct pool_source *source;
	struct access_class access;
	uint32_t bundle; /* 0: the pool belongs to an access class */
	/* Nothing is allocated from the pool (any more): it is that of a bundle
	 * that is no longer staged, or of shared memory. */
	bool is_forgotten;
	uint32_t first;     /* chunk record */
	uint32_t last_used; /* chunk record; 0: none */
	uint32_t n_growing; /* chunks that are being made */
	uint64_t next_size; /* size of the next chunk, if memory permits */
	/* The error of the last growth, which is reported to the next
	 * caller. */
	struct error failed;
	/* likewise, the error of the last sealing of a bundle */
	struct error unsealed;
};

struct range {
	uint64_t offset, size;
};

struct donation;
struct pool_work_kind;

struct pool_work {
	union {
		uv_work_t req;    /* on libuv's threads */
		uv_async_t alone; /* on a thread of its own */
		uv_timer_t retry; /* waits for such a thread */
	};
	/* The list is pools.unstored, or that of works that wait of an
	 * account. */
	struct pool_work *next;
	struct pools *pools;
	struct pool_source *source;
	const struct pool_work_kind *kind;
	const struct device *device; /* create; NULL: host memory */
	struct pool *pool;           /* create */
	struct donation *donation;   /* check */
	/* This is the user whose processes have the memory, and could keep the
	 * lock of its file. NULL: create, check, close, memory of a device */
	struct account *account;
	struct mapper_suspect suspect; /* seal */
	uint32_t chunk;                /* record; create, close: 0 */
	int fd, readonly_fd;
	uint64_t size;          /* of the chunk */
	uint64_t need;          /* create: the least size that is accepted */
	struct range range;     /* create, populate */
	bool is_going;          /* close: the size is part of going_size */
	uint32_t late_position; /* the deadline after which its chunk is late */
	int result;
	struct error err;
	uint32_t n_ranges;
	struct range ranges[]; /* punch */
};

struct pool_work_kind {
	/* Runs on a thread. */
	void (*run)(struct pool_work *work);
	/* Runs in the loop. It frees the work or passes it on. */
	void (*done)(struct pool_work *work);
};

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static inline struct chunk_record *pool_record(const struct pools *pools,
					       uint32_t index)
{
	return catalog_chunk(pools->catalog, index);
}

static inline bool pool_has_chunk(const struct pools *pools, uint32_t index)
{
	return pools->chunks[index].pool;
}

/* Returns the size that the chunk takes from its source. Memory of legacy IPC
 * is not the broker's, so it takes 0. */
static inline uint64_t pool_chunk_size(const struct pools *pools,
				       uint32_t index)
{
	const struct chunk_record *record = pool_record(pools, index);

	return record->shared == SHARE_LEGACY ? 0 : record->size;
}

/* Returns an estimate of the free bytes of a chunk that have pages. */
uint64_t pool_warm_bytes(const struct pools *pools, uint32_t index);

/* Returns whether the chunk is about to be freed. */
static inline bool pool_is_going(const struct chunk *chunk)
{
	return chunk->is_dying && !chunk->is_late;
}

static inline bool pool_is_empty(const struct pools *pools, uint32_t index)
{
	return pool_record(pools, index)->n_blocks == 0;
}

/* Lets the request for which memory was made in the chunk be the first to try.
 * Two requests that freed each other's empty chunks would never end. The round
 * that goes on may be past that request, so the next one counts. */
static inline void pool_spare(const struct pools *pools, struct chunk *chunk)
{
	chunk->spared_until = pools->n_rounds + 2;
}

static inline bool pool_is_spared(const struct pools *pools, uint32_t index)
{
	return pools->n_rounds < pools->chunks[index].spared_until;
}

static inline bool pool_source_is_host(const struct pool_source *source)
{
	return source == &source->pools->host;
}

/* --- pool.c -------------------------------------------------------------- */

/* Writes the name of a chunk's fd in the fd store. */
void pool_chunk_name(char ret[FDSTORE_NAME_SIZE], uint32_t id);
/* Returns the pool of the class, or of the bundle; NULL: memory ran out. */
struct pool *pool_get(struct pools *pools, const struct access_class *access,
		      const struct device_uuid *device, uint32_t bundle);
/* Finds the pool of a bundle that accepts allocations. Returns NULL if there is
 * none. */
struct pool *pool_find_bundle(const struct pools *pools, uint32_t bundle);
struct pool *pool_new(struct pools *pools, const struct access_class *access,
		      const struct device_uuid *device, uint32_t bundle);
/* Frees the pool if it has neither chunks nor an error to report. */
void pool_maybe_free(struct pool *pool);
void pool_link_chunk(struct pool *pool, uint32_t index);
void pool_unlink_chunk(struct pool *pool, uint32_t index);
/* Sets the size of the pool's next chunk after one of this size was made. */
void pool_note_size(struct pool *pool, uint64_t size);
/* Stores the chunk's id in the state table, or 0 when the chunk is gone. */
void pool_show_chunk(struct pools *pools, uint32_t index, uint32_t id);
/* Makes an arena for a chunk of this source, in which everything after
 * `populated` is reserved. */
int pool_make_arena(const struct pool_source *source, uint64_t size,
		    uint64_t populated, struct arena **ret, struct error *err);
/* Refunds one chunk, to this uid and in total. */
void pool_refund_chunk(struct pool_source *source, uint32_t uid, uint64_t size);
/* Charges a shared chunk, and its bytes if the broker owns them now. */
int pool_charge_shared(struct pool_source *source, struct account *account,
		       enum share_kind kind, uint64_t size, struct error *err);
void pool_refund_shared(struct pool_source *source, uint32_t uid,
			enum share_kind kind, uint64_t size);

/* --- pool_admit.c -------------------------------------------------------- */

/* Returns the source for the host or that device; NULL: memory ran out. */
struct pool_source *pool_source_get(struct pools *pools,
				    const struct device_uuid *device);
void pool_sources_free(struct pools *pools);

/*
 * Decides whether the pool may get a chunk of `want` bytes, or else one of at
 * least `need`. Returns as pool_alloc(); POOL_WAIT also while empty chunks are
 * being freed.
 */
int pool_admit(struct pool *pool, const struct device *device, uint64_t need,
	       uint64_t want, uint64_t *ret_size, struct error *err);
/* Does the same for donated memory, which exists already. */
int pool_admit_donated(struct pool_source *source, const struct device *device,
		       uint64_t size, struct error *err);
/* Returns whether a thread is free for one more call of the driver. */
bool pool_has_thread(const struct pools *pools);
/* Checks that a descriptor and a chunk number are available. */
int pool_admit_count(struct pools *pools, struct error *err);
/* Charges one more chunk. -EDQUOT; POOL_WAIT: chunks of that uid are being
 * freed. */
int pool_charge_chunk(struct pools *pools, struct account *account,
		      struct error *err);

/* Records that the driver had no memory for a chunk, so that it is asked again
 * after a while. */
void pool_note_refusal(struct pool_source *source, const struct error *cause);
/* Records that the driver had memory, or got some back, so that it is asked
 * again at once. */
void pool_forget_refusals(struct pool_source *source);

/* --- pool_grow.c --------------------------------------------------------- */

/* Grows the pool by at least `missing` bytes, which is the part of the request
 * that did not fit. Returns as pool_alloc(). */
int pool_grow(struct pool *pool, const struct pool_request *request,
	      uint64_t missing, struct error *err);

/* --- pool_work.c --------------------------------------------------------- */

/* Makes a work of this kind with space for ranges; NULL: memory ran out. */
struct pool_work *pool_work_new(struct pool_source *source,
				const struct pool_work_kind *kind,
				uint32_t n_ranges);
/* Makes a work on the memory of a chunk, which must be busy until the work is
 * done; otherwise the same. */
struct pool_work *pool_work_on(struct pools *pools, uint32_t index,
			       const struct pool_work_kind *kind,
			       uint32_t n_ranges);
void pool_work_queue(struct pool_work *work);
/* Closes the fds of a chunk that was removed. Ends the work. */
void pool_work_close(struct pool_work *work);

/* --- pool_trim.c --------------------------------------------------------- */

/* Lets the trimmer visit the chunk after warm_ms, because memory in it was
 * freed or made. */
void pool_touch(struct pools *pools, struct chunk *chunk);
/* Marks an empty chunk, which is then retired soon, but not in this
 * transaction. */
void pool_mark_dying(struct pools *pools, uint32_t index);
