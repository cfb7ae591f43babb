/*
 * Growing: is there room for more memory, and making it.
 *
 * A chunk is stored before it is recorded and recorded before anybody is told:
 * a crash in between leaves a stray in the fd store, which the next start
 * drops.
 */
#include "broker/pool_impl.h"
#include "proto/error.h"
#include "proto/point.h"
#include "shm/arena.h"
#include "shm/chunk.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define STRETCH (64 * MIB) /* populated at a time */
/* The rest of the fd store is for catalog and table. */
#define MAX_CHUNKS (FDSTORE_MAX - 8)

_Static_assert(MAX_CHUNKS < TABLE_CHUNKS, "every chunk has a table entry");

/* --- admission -------------------------------------------------------------
 */

static bool read_available(uint64_t *ret)
{
	FILE *file = fopen("/proc/meminfo", "re");
	bool is_found = false;
	char line[128];

	if (!file)
		return false;
	while (!is_found && fgets(line, sizeof(line), file))
		is_found = sscanf(line, "MemAvailable: %" SCNu64, ret) == 1;
	fclose(file);
	*ret *= 1024;
	return is_found;
}

/* Bytes of chunks that have no pages yet but may get them without asking. */
static uint64_t promised_size(const struct pools *pools)
{
	uint64_t resident = 0;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		struct stat status;

		if (pools->chunks[i].fd >= 0 &&
		    fstat(pools->chunks[i].fd, &status) == 0)
			resident += (uint64_t)status.st_blocks * 512;
	}
	return pools->total_size - min_u64(resident, pools->total_size);
}

struct room {
	int64_t size; /* what may still be made; negative: more is there than
			 should be */
	uint64_t available, promised;
};

static struct room measure_room(const struct pools *pools)
{
	const struct config *config = &pools->broker->config;
	struct room room = {
		.size = (int64_t)(config->memory_max - pools->total_size),
		.promised = promised_size(pools),
	};
	int64_t by_available;

	/* A kernel that does not say leaves us the other limit. */
	if (!read_available(&room.available))
		return room;
	by_available = (int64_t)(room.available - config->memory_reserve -
				 room.promised);
	if (by_available < room.size)
		room.size = by_available;
	return room;
}

static int explain_full(const struct pools *pools, const struct room *room,
			uint64_t need, struct error *err)
{
	const struct config *config = &pools->broker->config;

	error_set(err, -ENOMEM,
		  "out of memory: %" PRIu64 " MiB more are needed; chunks have "
		  "%" PRIu64 " of memory_max's %" PRIu64 " MiB, and of %" PRIu64
		  " MiB available %" PRIu64 " are promised and %" PRIu64
		  " reserved: release tensors, or raise memory_max",
		  need / MIB, pools->total_size / MIB, config->memory_max / MIB,
		  room->available / MIB, room->promised / MIB,
		  config->memory_reserve / MIB);
	return POOL_FULL;
}

static bool is_idle_empty(const struct pools *pools, uint32_t index)
{
	const struct chunk *chunk = &pools->chunks[index];

	return chunk->fd >= 0 && !chunk->is_busy && !chunk->is_dying &&
	       pool_is_empty(pools, index);
}

static uint64_t empty_size(const struct pools *pools)
{
	uint64_t size = 0;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		if (is_idle_empty(pools, i))
			size += pool_record(pools, i)->size;
	}
	return size;
}

/* Retire empty chunks until `size` bytes are on their way. */
static void retire_empty(struct pools *pools, const struct pool *spare,
			 uint64_t size)
{
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS && pools->going_size < size; i++) {
		if (is_idle_empty(pools, i) && pools->chunks[i].pool != spare)
			pool_mark_dying(pools, i);
	}
}

/*
 * May a chunk of `need` bytes be made, and if there is room one of `want`?
 * POOL_WAIT: when empty chunks have gone. Others' go first, then ours, which
 * have no place for what is asked either.
 */
static int admit(struct pools *pools, const struct pool *pool, uint64_t need,
		 uint64_t want, uint64_t *ret_size, struct error *err)
{
	struct room room = measure_room(pools);
	uint64_t missing;

	if ((int64_t)need <= room.size) {
		*ret_size = (int64_t)want <= room.size ? want : need;
		return POOL_OK;
	}
	missing = (uint64_t)((int64_t)need - room.size);
	/* What is being made or given back counts twice meanwhile. */
	if (missing > pools->going_size + empty_size(pools) &&
	    pools->n_works > 0)
		return POOL_WAIT;
	if (missing > pools->going_size + empty_size(pools))
		return explain_full(pools, &room, need, err);
	retire_empty(pools, pool, missing);
	retire_empty(pools, NULL, missing);
	return POOL_WAIT;
}

/* A descriptor for one more chunk. */
static int admit_count(struct pools *pools, struct error *err)
{
	if (pools->n_chunks < MAX_CHUNKS)
		return POOL_OK;
	retire_empty(pools, NULL, 1);
	if (pools->going_size > 0)
		return POOL_WAIT;
	return error_set(err, -ENFILE,
			 "there are %" PRIu32 " chunks of memory, and each "
			 "costs a descriptor that must survive a restart: "
			 "release tensors, or use fewer access classes and "
			 "bundles",
			 pools->n_chunks);
}

/* --- making chunks ---------------------------------------------------------
 */

static void run_create(struct pool_work *work)
{
	bool is_bundle = work->pool->bundle != 0;

	work->result =
		chunk_create(work->size, is_bundle, &work->fd, &work->err);
	if (work->result < 0)
		return;
	/* A loader's faults are the cheapest way to fill a bundle. */
	if (is_bundle)
		return;
	work->result = chunk_populate(work->fd, work->stretch.offset,
				      work->stretch.size, &work->err);
}

/* The record of a new chunk, committed. There is room for it. */
static uint32_t record_chunk(struct pools *pools, const struct pool_work *work)
{
	struct catalog *catalog = &pools->broker->catalog;
	uint32_t index = catalog_alloc(catalog, SECTION_CHUNK);

	assert(index > 0 && index < TABLE_CHUNKS);
	*catalog_chunk(catalog, index) = (struct chunk_record){
		.id = catalog->header->next_chunk_id,
		.size = work->size,
		.populated = work->stretch.size,
		.access = work->pool->access,
		.bundle = work->pool->bundle,
	};
	catalog_set(catalog, catalog->header->next_chunk_id,
		    catalog->header->next_chunk_id + 1);
	catalog_commit(catalog);
	return index;
}

/* The worker's new memory becomes a chunk of its pool. */
static int add_chunk(struct pool_work *work, struct error *err)
{
	struct pools *pools = work->pools;
	struct broker *broker = pools->broker;
	uint32_t id = broker->catalog.header->next_chunk_id;
	char name[FDSTORE_NAME_SIZE];
	struct arena *arena = NULL;
	struct chunk *chunk;
	uint32_t index;
	int r;

	r = pool_make_arena(work->size, work->stretch.size, &arena, err);
	if (r < 0)
		return r;
	/* In the store before any record names it; one that no record names
	 * is dropped at the next start. */
	pool_chunk_name(name, id);
	r = fdstore_put(&broker->fdstore, work->fd, name, err);
	if (r < 0) {
		arena_free(arena);
		return r;
	}
	point("pool.stored");
	index = record_chunk(pools, work);
	chunk = &pools->chunks[index];
	*chunk = (struct chunk){
		.fd = work->fd,
		.readonly_fd = -1,
		.arena = arena,
		.tail_size = work->size - work->stretch.size,
	};
	pool_link_chunk(work->pool, index);
	pool_show_chunk(pools, index, id);
	pools->n_created++;
	pool_touch(pools, chunk);
	return 0;
}

/* Nobody gets the memory that was made; it may not even have been. */
static void discard(struct pool_work *work)
{
	struct pools *pools = work->pools;

	pools->n_chunks--;
	pool_refund_chunk(pools, work->pool->access.uid, work->size);
	pool_maybe_free(work->pool);
	if (work->fd >= 0) {
		pool_work_close(work);
		return;
	}
	pools->total_size -= work->size;
	waiters_wake_room(pools->broker);
	free(work);
}

static void done_create(struct pool_work *work)
{
	struct pool *pool = work->pool;

	pool->n_growing--;
	if (work->result == 0 && !pool->is_forgotten)
		work->result = add_chunk(work, &work->err);
	if (work->result < 0 || pool->is_forgotten) {
		pool->failed = work->err;
		waiters_wake_room(work->pools->broker);
		discard(work);
		return;
	}
	pool_note_size(pool, work->size);
	waiters_wake_room(work->pools->broker);
	free(work);
}

static const struct pool_work_kind work_create = {run_create, done_create};

/* How large a chunk should be: as asked, or larger so that there are few. What
 * is larger stays within the quota of who asks: a hint is cheap. */
static uint64_t wanted_size(const struct pool *pool,
			    const struct account *account, uint64_t need,
			    uint64_t size_hint)
{
	struct broker *broker = pool->pools->broker;
	uint64_t quota =
		account_limit(&broker->accounts, account, ACCOUNT_BYTES);
	uint64_t left = quota - min_u64(quota, account->chunk_size);
	uint64_t want = pool->next_size;

	if (pool->bundle && size_hint > 0)
		want = chunk_round(
			min_u64(size_hint, broker->config.memory_max));
	want = min_u64(want, left & ~(HUGE_PAGE_SIZE - 1));
	return max_u64(want, need);
}

static int make_chunk(struct pool *pool, uint64_t need, uint64_t size_hint,
		      struct error *err)
{
	struct pools *pools = pool->pools;
	struct accounts *accounts = &pools->broker->accounts;
	struct account *account = accounts_get(accounts, pool->access.uid);
	struct pool_work *work;
	uint64_t size = 0;
	int r;

	if (!account)
		return error_set(err, -ENOMEM,
				 "no memory for the account of uid %" PRIu32,
				 pool->access.uid);
	r = admit_count(pools, err);
	if (r != POOL_OK)
		return r;
	r = admit(pools, pool, need,
		  wanted_size(pool, account, need, size_hint), &size, err);
	if (r != POOL_OK)
		return r;
	r = account_charge(accounts, account, ACCOUNT_CHUNKS, 1, err);
	if (r < 0)
		return r;
	work = pool_work_new(pools, &work_create, 0);
	if (!work) {
		account_refund(account, ACCOUNT_CHUNKS, 1);
		return error_set(err, -ENOMEM, "no memory to make a chunk");
	}
	work->pool = pool;
	work->size = size;
	work->stretch.size =
		pool->bundle ? size : min_u64(size, max_u64(need, STRETCH));
	account->chunk_size += size;
	pools->total_size += size;
	pools->n_chunks++;
	pool->n_growing++;
	pool_work_queue(work);
	return POOL_WAIT;
}

/* --- populating ------------------------------------------------------------
 */

static void run_populate(struct pool_work *work)
{
	work->result = chunk_populate(work->fd, work->stretch.offset,
				      work->stretch.size, &work->err);
}

/* The stretch joins the arena; what is behind it stays reserved. */
static void open_stretch(struct pools *pools, uint32_t index,
			 const struct range *stretch)
{
	struct catalog *catalog = &pools->broker->catalog;
	struct chunk *chunk = &pools->chunks[index];
	struct chunk_record *record = pool_record(pools, index);
	uint64_t populated = stretch->offset + stretch->size;

	arena_release(chunk->arena, stretch->offset);
	/* Without heap for the reservation, the rest is allocated before it
	 * has pages: slower, not wrong. */
	if (populated < record->size &&
	    arena_reserve(chunk->arena, populated, record->size - populated,
			  NULL) < 0)
		populated = record->size;
	chunk->tail_size = record->size - populated;
	catalog_set(catalog, record->populated, populated);
	catalog_commit(catalog);
}

static void done_populate(struct pool_work *work)
{
	struct pools *pools = work->pools;
	struct chunk *chunk = &pools->chunks[work->chunk];
	struct pool *pool = chunk->pool;

	pool->n_growing--;
	chunk->is_busy = false;
	if (work->result < 0)
		pool->failed = work->err;
	else
		open_stretch(pools, work->chunk, &work->stretch);
	pool_touch(pools, chunk);
	waiters_wake_room(pools->broker);
	free(work);
}

static const struct pool_work_kind work_populate = {run_populate,
						    done_populate};

/* The next stretch of the pool's chunk whose tail has room for `need`. */
static int populate_more(struct pool *pool, uint64_t need, struct error *err)
{
	struct pools *pools = pool->pools;
	struct pool_work *work;
	struct chunk *chunk;
	uint32_t i;

	for (i = pool->first; i; i = pools->chunks[i].next) {
		chunk = &pools->chunks[i];
		if (!chunk->is_busy && !chunk->is_dying &&
		    chunk->tail_size >= need)
			break;
	}
	if (!i)
		return POOL_FULL;
	work = pool_work_new(pools, &work_populate, 0);
	if (!work)
		return error_set(err, -ENOMEM, "no memory to grow a chunk");
	work->chunk = i;
	work->fd = chunk->fd;
	work->stretch.offset = pool_record(pools, i)->size - chunk->tail_size;
	work->stretch.size = min_u64(chunk->tail_size, max_u64(need, STRETCH));
	chunk->is_busy = true;
	pool->n_growing++;
	pool_work_queue(work);
	return POOL_WAIT;
}

/* --- growing ---------------------------------------------------------------
 */

/* The last growth failed: who asks next is told, and then it may be tried
 * again. */
static int tell_failure(struct pool *pool, struct error *err)
{
	int code = pool->failed.code;

	error_set(err, code, "%s", pool->failed.msg);
	pool->failed = ERROR_NULL;
	return code == -ENOMEM ? POOL_FULL : code;
}

static bool has_busy_chunk(const struct pool *pool)
{
	const struct chunk *chunks = pool->pools->chunks;
	uint32_t i;

	for (i = pool->first; i; i = chunks[i].next) {
		if (chunks[i].is_busy && !chunks[i].is_dying)
			return true;
	}
	return false;
}

/* `missing` bytes found no place in the pool. */
int pool_grow(struct pool *pool, const struct pool_request *request,
	      uint64_t missing, struct error *err)
{
	uint64_t need = chunk_round(missing);
	int r;

	/* What is being made, or is out of the arena to be punched, may be
	 * enough. */
	if (pool->n_growing > 0 || has_busy_chunk(pool))
		return POOL_WAIT;
	if (pool->failed.code < 0)
		return tell_failure(pool, err);
	r = populate_more(pool, need, err);
	if (r != POOL_FULL)
		return r;
	return make_chunk(pool, need, request->size_hint, err);
}
