/*
 * What the files of the pool share and nobody else sees.
 *
 * pool.c finds places for blocks, pool_admit.c says whether there may be more
 * memory, pool_grow.c makes it, pool_seal.c makes a bundle's read-only,
 * pool_trim.c gives it back, and pool_adopt.c takes over what an earlier broker
 * had. Work on chunks runs on libuv's threads
 * as `struct work`: a kind with two functions, one for the thread, which sees
 * nothing but the struct, and one for the loop. While a chunk is busy its fd
 * stays open; ranges that a thread populates or punches are reserved in the
 * arena, so that nobody is given them.
 */
#pragma once
#include "broker/broker.h"
#include "broker/mapper.h"
#include "broker/pool.h"
#include "proto/error.h"
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
	uint32_t bundle;       /* 0: of an access class */
	bool is_forgotten;     /* a bundle's, or of shared memory: nothing is
				  allocated (any more) */
	uint32_t first;        /* chunk record */
	uint32_t last_used;    /* chunk record; 0: none */
	uint32_t n_growing;    /* works that will give room here */
	uint64_t next_size;    /* of the next chunk, if there is room for it */
	struct error failed;   /* of the last growth; told to who asks next */
	struct error unsealed; /* the same of a bundle's last sealing */
};

struct range {
	uint64_t offset, size;
};

struct donation;
struct pool_work_kind;

struct pool_work {
	uv_work_t req;
	struct pool_work *next; /* pools.unstored */
	struct pools *pools;
	struct pool_source *source;
	const struct pool_work_kind *kind;
	const struct device *device;   /* create; NULL: on the host */
	struct pool *pool;             /* create */
	struct donation *donation;     /* check */
	struct account *account;       /* seal */
	struct mapper_suspect suspect; /* seal */
	uint32_t chunk;                /* record; create, close: 0 */
	int fd, readonly_fd;
	uint64_t size;        /* of the chunk */
	uint64_t need;        /* create: how much it may at least be */
	struct range stretch; /* create, populate */
	bool is_going;        /* close: the size counts as going */
	int result;
	struct error err;
	uint32_t n_ranges;
	struct range ranges[]; /* punch */
};

struct pool_work_kind {
	void (*run)(struct pool_work *work); /* on a thread */
	void (*done)(
		struct pool_work *work); /* in the loop; frees or passes on */
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
	return catalog_chunk(&pools->broker->catalog, index);
}

static inline bool pool_has_chunk(const struct pools *pools, uint32_t index)
{
	return pools->chunks[index].pool;
}

/* What the chunk takes of its source. Memory of legacy IPC is not ours. */
static inline uint64_t pool_chunk_size(const struct pools *pools,
				       uint32_t index)
{
	const struct chunk_record *record = pool_record(pools, index);

	return record->shared == SHARE_LEGACY ? 0 : record->size;
}

static inline bool pool_is_empty(const struct pools *pools, uint32_t index)
{
	return pool_record(pools, index)->n_blocks == 0;
}

static inline bool pool_source_is_host(const struct pool_source *source)
{
	return source == &source->pools->host;
}

/* --- pool.c ----------------------------------------------------------------
 */

/* The name of a chunk's fd in the store. */
void pool_chunk_name(char ret[FDSTORE_NAME_SIZE], uint32_t id);
/* Of the class, or of the bundle; NULL: no heap. */
struct pool *pool_get(struct pools *pools, const struct access_class *access,
		      const struct device_uuid *device, uint32_t bundle);
/* The pool of a bundle that may be allocated from; NULL if there is none. */
struct pool *pool_find_bundle(const struct pools *pools, uint32_t bundle);
struct pool *pool_new(struct pools *pools, const struct access_class *access,
		      const struct device_uuid *device, uint32_t bundle);
/* Free the pool if it is no more than its name. */
void pool_maybe_free(struct pool *pool);
void pool_link_chunk(struct pool *pool, uint32_t index);
void pool_unlink_chunk(struct pool *pool, uint32_t index);
/* A chunk of this size was made: the next one is larger. */
void pool_note_size(struct pool *pool, uint64_t size);
/* The entry of the chunk in the state table: its id, 0 when it is gone. */
void pool_show_chunk(struct pools *pools, uint32_t index, uint32_t id);
/* An arena for chunks of this source, without what lies behind `populated`. */
int pool_make_arena(const struct pool_source *source, uint64_t size,
		    uint64_t populated, struct arena **ret, struct error *err);
/* A chunk less of this uid, and in all. */
void pool_refund_chunk(struct pool_source *source, uint32_t uid, uint64_t size);
/* One that is shared: it and, if it is ours now, its bytes. */
int pool_charge_shared(struct pool_source *source, struct account *account,
		       enum share_kind kind, uint64_t size, struct error *err);
void pool_refund_shared(struct pool_source *source, uint32_t uid,
			enum share_kind kind, uint64_t size);

/* --- pool_admit.c ----------------------------------------------------------
 */

/* Of the host or of that device; NULL: no heap. */
struct pool_source *pool_source_get(struct pools *pools,
				    const struct device_uuid *device);
void pool_sources_free(struct pools *pools);

/*
 * May the pool have a chunk of `need` bytes, and if there is room one of
 * `want`? As pool_alloc(); POOL_WAIT also: when empty chunks have gone.
 */
int pool_admit(struct pool *pool, const struct device *device, uint64_t need,
	       uint64_t want, uint64_t *ret_size, struct error *err);
/* The same for memory that is there already. */
int pool_admit_donated(struct pool_source *source, const struct device *device,
		       uint64_t size, struct error *err);
/* Is there a thread for one more call of the driver? */
bool pool_has_thread(const struct pools *pools);
/* A descriptor and a number for one more chunk. */
int pool_admit_count(struct pools *pools, struct error *err);
/* Charge one chunk more. -EDQUOT; POOL_WAIT: chunks of that uid are on their
 * way out. */
int pool_charge_chunk(struct pools *pools, struct account *account,
		      struct error *err);

/* The driver had no memory for a chunk: it is asked again in a while. */
void pool_note_refusal(struct pool_source *source, const struct error *cause);
/* It had, or some came back: no need to wait. */
void pool_forget_refusals(struct pool_source *source);

/* --- pool_grow.c -----------------------------------------------------------
 */

/* `missing` bytes of the request found no place: as pool_alloc(). */
int pool_grow(struct pool *pool, const struct pool_request *request,
	      uint64_t missing, struct error *err);

/* --- pool_trim.c -----------------------------------------------------------
 */

/* A work of this kind with room for ranges; NULL: no heap. */
struct pool_work *pool_work_new(struct pool_source *source,
				const struct pool_work_kind *kind,
				uint32_t n_ranges);
void pool_work_queue(struct pool_work *work);
/* Close the fds of a chunk that is none any more; ends the work. */
void pool_work_close(struct pool_work *work);

/* Something was freed or made in the chunk: it is looked at when that is
 * warm_ms ago. */
void pool_touch(struct pools *pools, struct chunk *chunk);
/* A dying chunk is no longer busy. */
void pool_look_at_dying(struct pools *pools);
/* The chunk is empty and shall go; soon, but not in this transaction. */
void pool_mark_dying(struct pools *pools, uint32_t index);
