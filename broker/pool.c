/*
 * Pools: who has which chunks, and places for blocks in them.
 */
#include "broker/pool.h"
#include "broker/mapper.h"
#include "broker/pool_impl.h"
#include "proto/error.h"
#include "proto/point.h"
#include "shm/arena.h"
#include "shm/chunk.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t align(uint64_t size)
{
	if (size == 0)
		size = 1;
	return (size + BLOCK_ALIGN - 1) & ~(uint64_t)(BLOCK_ALIGN - 1);
}

/* --- pools -----------------------------------------------------------------
 */

static bool is_same_class(const struct access_class *a,
			  const struct access_class *b)
{
	return a->uid == b->uid && a->gid == b->gid && a->mode == b->mode;
}

static struct pool *find_pool(const struct pools *pools,
			      const struct access_class *access,
			      uint32_t bundle)
{
	struct pool *pool;

	for (pool = pools->first; pool; pool = pool->next) {
		if (pool->is_forgotten || pool->bundle != bundle)
			continue;
		if (bundle || is_same_class(&pool->access, access))
			return pool;
	}
	return NULL;
}

static struct pool *new_pool(struct pools *pools,
			     const struct access_class *access, uint32_t bundle)
{
	struct pool *pool = NULL;

	if (point_fail("pool.malloc") == 0)
		pool = calloc(1, sizeof(*pool));
	if (!pool)
		return NULL;
	pool->pools = pools;
	pool->access = *access;
	pool->bundle = bundle;
	if (!bundle)
		pool->next_size = chunk_round(pools->broker->config.chunk_min);
	pool->next = pools->first;
	pools->first = pool;
	return pool;
}

static struct pool *get_pool(struct pools *pools,
			     const struct access_class *access, uint32_t bundle)
{
	struct pool *pool = find_pool(pools, access, bundle);

	return pool ? pool : new_pool(pools, access, bundle);
}

/* Pools are no more than their chunks; but a failure is kept until it was
 * told, or who asks again would cause it again, for ever. */
void pool_maybe_free(struct pool *pool)
{
	struct pool **at = &pool->pools->first;

	if (pool->first || pool->n_growing > 0)
		return;
	if (pool->failed.code < 0 && !pool->is_forgotten)
		return;
	while (*at != pool)
		at = &(*at)->next;
	*at = pool->next;
	free(pool);
}

void pool_link_chunk(struct pool *pool, uint32_t index)
{
	struct chunk *chunk = &pool->pools->chunks[index];

	chunk->pool = pool;
	chunk->next = pool->first;
	pool->first = index;
}

void pool_unlink_chunk(struct pool *pool, uint32_t index)
{
	struct chunk *chunks = pool->pools->chunks;
	uint32_t *at = &pool->first;

	while (*at != index)
		at = &chunks[*at].next;
	*at = chunks[index].next;
	if (pool->last_used == index)
		pool->last_used = 0;
}

/* Chunks double, so that they stay few: each costs a descriptor. */
void pool_note_size(struct pool *pool, uint64_t size)
{
	uint64_t max = pool->pools->broker->config.chunk_max;
	uint64_t next = pool->next_size ? pool->next_size * 2 : size;

	pool->next_size = chunk_round(min_u64(next, max));
}

void pool_chunk_name(char ret[FDSTORE_NAME_SIZE], uint32_t id)
{
	snprintf(ret, FDSTORE_NAME_SIZE, "c%" PRIu32, id);
}

void pool_show_chunk(struct pools *pools, uint32_t index, uint32_t id)
{
	struct table_header *header = pools->broker->table.header;
	/* Release, so that who sees the count also sees the list. */
	uint64_t old = atomic_exchange_explicit(&header->chunks[index], id,
						memory_order_acq_rel);

	if (old && old != id)
		atomic_fetch_add_explicit(&header->chunks_retired, 1,
					  memory_order_release);
}

void pool_refund_chunk(struct pools *pools, uint32_t uid, uint64_t size)
{
	struct account *account = accounts_get(&pools->broker->accounts, uid);

	/* It was charged, so it is there. */
	assert(account && account->chunk_size >= size);
	account_refund(account, ACCOUNT_CHUNKS, 1);
	account->chunk_size -= size;
}

/* An arena without what lies behind `populated`. */
int pool_make_arena(uint64_t size, uint64_t populated, struct arena **ret,
		    struct error *err)
{
	struct arena *arena;
	int r;

	r = arena_new(size, BLOCK_ALIGN, &arena, err);
	if (r < 0)
		return r;
	if (populated < size)
		r = arena_reserve(arena, populated, size - populated, err);
	if (r < 0) {
		arena_free(arena);
		return r;
	}
	*ret = arena;
	return 0;
}

/* --- allocating ------------------------------------------------------------
 */

/* Where a block will be. */
struct place {
	uint32_t chunk;
	uint64_t offset;
};

static int try_chunk(struct pools *pools, uint32_t index, uint64_t size,
		     struct place *ret, struct error *err)
{
	struct chunk *chunk = &pools->chunks[index];
	uint64_t offset;
	int r;

	if (chunk->is_dying || pool_record(pools, index)->is_sealed)
		return ARENA_FULL;
	r = arena_alloc(chunk->arena, size, &offset, err);
	if (r != ARENA_OK)
		return r;
	*ret = (struct place){index, offset};
	chunk->pool->last_used = index;
	return ARENA_OK;
}

/* ARENA_FULL: no chunk of the pool has room for it. */
static int try_pool(struct pool *pool, uint64_t size, struct place *ret,
		    struct error *err)
{
	struct pools *pools = pool->pools;
	uint32_t last = pool->last_used;
	uint32_t i;
	int r = ARENA_FULL;

	if (last)
		r = try_chunk(pools, last, size, ret, err);
	for (i = pool->first; i && r == ARENA_FULL; i = pools->chunks[i].next) {
		if (i != last)
			r = try_chunk(pools, i, size, ret, err);
	}
	return r;
}

static void give_up_places(struct pools *pools, const struct place *places,
			   uint32_t n)
{
	while (n-- > 0) {
		if (places[n].chunk)
			arena_release(pools->chunks[places[n].chunk].arena,
				      places[n].offset);
	}
}

/*
 * Places for all sizes. POOL_FULL: `ret_missing` has the bytes of those that
 * found none, and nothing is taken.
 */
static int find_places(struct pool *pool, const struct pool_request *request,
		       struct place *ret, uint64_t *ret_missing,
		       struct error *err)
{
	uint64_t missing = 0;
	uint32_t i;
	int r = 0;

	for (i = 0; i < request->n && r >= 0; i++) {
		uint64_t size = align(request->sizes[i]);

		ret[i].chunk = 0;
		r = try_pool(pool, size, &ret[i], err);
		if (r == ARENA_FULL)
			missing += size;
	}
	if (r >= 0 && missing == 0)
		return POOL_OK;
	give_up_places(pool->pools, ret, i);
	*ret_missing = missing;
	return r < 0 ? r : POOL_FULL;
}

static uint64_t free_size(const struct pools *pools, uint32_t index)
{
	const struct arena *arena = pools->chunks[index].arena;

	return arena_size(arena) - arena_used(arena);
}

static void make_block(struct pools *pools, const struct pool_request *request,
		       uint32_t i, const struct place *place,
		       uint32_t *ret_block)
{
	struct catalog *catalog = &pools->broker->catalog;
	struct chunk *chunk = &pools->chunks[place->chunk];
	struct chunk_record *record = pool_record(pools, place->chunk);
	uint32_t block = catalog_alloc(catalog, SECTION_BLOCK);

	/* find_places() comes after a check that there is room. */
	assert(block > 0);
	*catalog_block(catalog, block) = (struct block_record){
		.chunk = place->chunk,
		.maker = request->maker,
		.offset = place->offset,
		.size = request->sizes[i],
		.uid = request->uid,
	};
	catalog_set(catalog, record->n_blocks, record->n_blocks + 1);
	chunk->used_ms = now_ms();
	chunk->punched =
		min_u64(chunk->punched, free_size(pools, place->chunk));
	*ret_block = block;
}

int pool_could_fit(const struct pools *pools,
		   const struct pool_request *request, struct error *err)
{
	uint64_t max = pools->broker->config.memory_max;
	uint64_t left = max & ~(HUGE_PAGE_SIZE - 1);
	uint32_t i;

	for (i = 0; i < request->n; i++) {
		if (request->sizes[i] > left || align(request->sizes[i]) > left)
			return error_set(err, -ENOMEM,
					 "%" PRIu32 " tensors of together more "
					 "than %" PRIu64 " MiB can never fit: "
					 "ask for less, or raise memory_max",
					 request->n, max / MIB);
		left -= align(request->sizes[i]);
	}
	return 0;
}

/* Both limits of what a request can ask. */
static int check_request(const struct pools *pools,
			 const struct pool_request *request, struct error *err)
{
	uint32_t n_live =
		catalog_n_live(&pools->broker->catalog, SECTION_BLOCK);

	if (request->n > catalog_capacity(SECTION_BLOCK) - n_live)
		return error_set(err, -ENOSPC,
				 "the catalog has %" PRIu32
				 " blocks of memory, "
				 "and no room for %" PRIu32 " more: release "
				 "tensors",
				 n_live, request->n);
	return pool_could_fit(pools, request, err);
}

int pool_alloc(struct pools *pools, const struct pool_request *request,
	       uint32_t *ret_blocks, struct error *err)
{
	struct place places[MESSAGE_MAX_ITEMS];
	uint64_t missing = 0;
	struct pool *pool;
	uint32_t i;
	int r;

	assert(request->n <= MESSAGE_MAX_ITEMS);
	r = check_request(pools, request, err);
	if (r < 0)
		return r;
	pool = get_pool(pools, &request->access, request->bundle);
	if (!pool)
		return error_set(err, -ENOMEM, "no memory for a pool");
	r = find_places(pool, request, places, &missing, err);
	if (r == POOL_FULL) {
		r = pool_grow(pool, request, missing, err);
		pool_maybe_free(pool);
		return r;
	}
	if (r < 0)
		return r;
	for (i = 0; i < request->n; i++)
		make_block(pools, request, i, &places[i], &ret_blocks[i]);
	return POOL_OK;
}

void pool_release(struct pools *pools, uint32_t block)
{
	struct catalog *catalog = &pools->broker->catalog;
	struct block_record *record = catalog_block(catalog, block);
	uint32_t index = record->chunk;
	struct chunk *chunk = &pools->chunks[index];
	struct chunk_record *owner = pool_record(pools, index);

	assert(owner->n_blocks > 0);
	arena_release(chunk->arena, record->offset);
	catalog_set(catalog, owner->n_blocks, owner->n_blocks - 1);
	catalog_release(catalog, SECTION_BLOCK, block);
	pool_touch(pools, chunk);
	if (owner->n_blocks == 0 && chunk->pool->bundle)
		pool_mark_dying(pools, index);
	waiters_wake_room(pools->broker);
}

/* --- chunks for peers ------------------------------------------------------
 */

int pool_chunk_fd(struct pools *pools, uint32_t chunk_index, bool is_writable,
		  int *ret_fd, struct error *err)
{
	struct chunk *chunk = &pools->chunks[chunk_index];
	int r;

	if (is_writable && !pool_record(pools, chunk_index)->is_sealed) {
		*ret_fd = chunk->fd;
		return 0;
	}
	if (chunk->readonly_fd < 0) {
		r = memfd_open_readonly(chunk->fd, &chunk->readonly_fd, err);
		if (r < 0)
			return r;
	}
	*ret_fd = chunk->readonly_fd;
	return 0;
}

uint32_t pool_find_chunk(const struct pools *pools, uint32_t chunk_id)
{
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		if (pools->chunks[i].fd >= 0 &&
		    pool_record(pools, i)->id == chunk_id)
			return i;
	}
	return 0;
}

/* --- bundles ---------------------------------------------------------------
 */

static pid_t loader_of(const struct pools *pools, uint32_t bundle)
{
	const struct catalog *catalog = &pools->broker->catalog;
	uint32_t session = catalog_bundle(catalog, bundle)->loader;

	return session ? (pid_t)catalog_session(catalog, session)->pid : 0;
}

static int seal_chunk(struct pools *pools, uint32_t index, struct error *err)
{
	struct catalog *catalog = &pools->broker->catalog;
	struct chunk_record *record = pool_record(pools, index);
	int fd = pools->chunks[index].fd;
	int seals = fcntl(fd, F_GET_SEALS);
	char mapper[64];
	int r = 0;

	/* A seal outlives a commit that went no further. */
	if (seals < 0 || !(seals & F_SEAL_WRITE))
		r = memfd_seal_write(fd, err);
	if (r == -EBUSY) {
		mapper_describe(fd, loader_of(pools, record->bundle), mapper,
				sizeof(mapper));
		return error_set(err, r,
				 "%s still has memory of the bundle mapped "
				 "writable: unmap it there and commit again",
				 mapper);
	}
	if (r < 0)
		return r;
	if (!record->is_sealed)
		catalog_set(catalog, record->is_sealed, 1);
	return 0;
}

int pool_seal_bundle(struct pools *pools, uint32_t bundle, struct error *err)
{
	struct pool *pool = find_pool(pools, NULL, bundle);
	uint32_t i;
	int r;

	for (i = pool ? pool->first : 0; i; i = pools->chunks[i].next) {
		if (pools->chunks[i].is_dying)
			continue;
		r = seal_chunk(pools, i, err);
		if (r < 0)
			return r;
	}
	return 0;
}

void pool_forget_bundle(struct pools *pools, uint32_t bundle)
{
	struct pool *pool = find_pool(pools, NULL, bundle);
	uint32_t i;

	if (!pool)
		return;
	pool->is_forgotten = true;
	for (i = pool->first; i; i = pools->chunks[i].next) {
		if (pool_is_empty(pools, i))
			pool_mark_dying(pools, i);
	}
	pool_maybe_free(pool);
}

/* --- adoption --------------------------------------------------------------
 */

int pools_init(struct pools *pools, struct broker *broker, struct error *err)
{
	uint32_t i;

	(void)err;
	*pools = (struct pools){.broker = broker};
	for (i = 0; i < TABLE_CHUNKS; i++) {
		pools->chunks[i].fd = -1;
		pools->chunks[i].readonly_fd = -1;
	}
	return 0;
}

static int check_adopted(const struct chunk_record *record, int fd,
			 struct error *err)
{
	if (record->populated > record->size)
		return error_set(err, -EUCLEAN,
				 "more of it is populated than there is");
	if (record->bundle > catalog_capacity(SECTION_BUNDLE))
		return error_set(err, -EUCLEAN, "there is no such bundle");
	if (fd < 0)
		return error_set(err, -EUCLEAN,
				 "its descriptor was not kept for us");
	return memfd_check(fd, record->size, NULL, err);
}

/*
 * The pool of an adopted chunk. One of a bundle that goes, or has gone (then
 * its record may be another bundle's by now), stands alone, so that nothing is
 * allocated in it.
 */
static struct pool *adopt_pool(struct pools *pools,
			       const struct chunk_record *record)
{
	const struct bundle_record *bundle;
	struct pool *pool;

	if (!record->bundle)
		return get_pool(pools, &record->access, 0);
	bundle = catalog_bundle(&pools->broker->catalog, record->bundle);
	if (record->n_blocks > 0 && (bundle->state == BUNDLE_STAGED ||
				     bundle->state == BUNDLE_COMMITTED))
		return get_pool(pools, &record->access, record->bundle);
	pool = new_pool(pools, &record->access, record->bundle);
	if (pool)
		pool->is_forgotten = true;
	return pool;
}

/* Consumes `fd` on success. */
static int adopt_fd(struct pools *pools, uint32_t index, int fd,
		    struct error *err)
{
	struct chunk_record *record = pool_record(pools, index);
	struct chunk *chunk = &pools->chunks[index];
	struct account *account;
	struct pool *pool;
	int r;

	r = check_adopted(record, fd, err);
	if (r < 0)
		return r;
	account = accounts_get(&pools->broker->accounts, record->access.uid);
	pool = adopt_pool(pools, record);
	if (!account || !pool)
		return error_set(err, -ENOMEM, "no memory to adopt it");
	r = pool_make_arena(record->size, record->populated, &chunk->arena,
			    err);
	if (r < 0) {
		pool_maybe_free(pool);
		return r;
	}
	account_charge_adopted(account, ACCOUNT_CHUNKS, 1);
	account->chunk_size += record->size;
	chunk->fd = fd;
	chunk->tail_size = record->size - record->populated;
	pool_link_chunk(pool, index);
	pool_note_size(pool, record->size);
	pools->total_size += record->size;
	pools->n_chunks++;
	return 0;
}

static int adopt_chunk(struct pools *pools, uint32_t index, struct error *err)
{
	uint32_t id = pool_record(pools, index)->id;
	char name[FDSTORE_NAME_SIZE];
	int fd, r;

	pool_chunk_name(name, id);
	fd = fdstore_take(&pools->broker->fdstore, name);
	r = adopt_fd(pools, index, fd, err);
	if (r == 0)
		return 0;
	if (fd >= 0)
		close(fd);
	return error_wrap(err, r, "adopt chunk %" PRIu32, id);
}

static int adopt_block(struct pools *pools, uint32_t block, struct error *err)
{
	const struct block_record *record =
		catalog_block(&pools->broker->catalog, block);
	int r;

	if (!record->chunk)
		return 0;
	if (record->chunk >= TABLE_CHUNKS ||
	    pools->chunks[record->chunk].fd < 0)
		return error_set(err, -EUCLEAN,
				 "block %" PRIu32 " lies in no chunk", block);
	r = arena_reserve(pools->chunks[record->chunk].arena, record->offset,
			  align(record->size), err);
	if (r < 0)
		return error_wrap(err, r, "adopt block %" PRIu32, block);
	return 0;
}

/* Chunks that were stored but not recorded, or forgotten but not removed. */
static void drop_strays(struct pools *pools)
{
	struct fdstore *store = &pools->broker->fdstore;
	uint32_t i, id;

	for (i = 0; i < store->n_inherited; i++) {
		struct fdstore_entry *entry = &store->inherited[i];

		if (sscanf(entry->name, "c%" SCNu32, &id) != 1 ||
		    pool_find_chunk(pools, id) != 0)
			continue;
		fdstore_remove(store, entry->name);
		if (entry->fd >= 0)
			close(entry->fd);
		entry->fd = -1;
	}
}

static void show_adopted(struct pools *pools)
{
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		struct chunk *chunk = &pools->chunks[i];

		pool_show_chunk(pools, i,
				chunk->fd >= 0 ? pool_record(pools, i)->id : 0);
		if (chunk->fd < 0)
			continue;
		pool_touch(pools, chunk);
		if (chunk->pool->bundle && pool_is_empty(pools, i))
			pool_mark_dying(pools, i);
	}
}

int pools_adopt(struct pools *pools, struct error *err)
{
	const struct catalog *catalog = &pools->broker->catalog;
	uint32_t i;
	int r;

	for (i = 1; i <= catalog_n_touched(catalog, SECTION_CHUNK); i++) {
		if (!pool_record(pools, i)->id)
			continue;
		r = adopt_chunk(pools, i, err);
		if (r < 0)
			return r;
	}
	for (i = 1; i <= catalog_n_touched(catalog, SECTION_BLOCK); i++) {
		r = adopt_block(pools, i, err);
		if (r < 0)
			return r;
	}
	drop_strays(pools);
	show_adopted(pools);
	return 0;
}

void pools_deinit(struct pools *pools)
{
	uint32_t i;

	assert(pools->n_works == 0);
	for (i = 0; i < TABLE_CHUNKS; i++) {
		struct chunk *chunk = &pools->chunks[i];

		if (chunk->fd >= 0)
			close(chunk->fd);
		if (chunk->readonly_fd >= 0)
			close(chunk->readonly_fd);
		arena_free(chunk->arena);
		*chunk = (struct chunk){.fd = -1, .readonly_fd = -1};
	}
	while (pools->first) {
		struct pool *pool = pools->first;

		pools->first = pool->next;
		free(pool);
	}
	pools->n_chunks = 0;
	pools->total_size = 0;
}

void pools_free_bytes(const struct pools *pools, uint64_t *ret_warm,
		      uint64_t *ret_free)
{
	uint64_t warm = 0, all = 0;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		uint64_t size;

		if (pools->chunks[i].fd < 0)
			continue;
		size = free_size(pools, i);
		all += size;
		warm += size - min_u64(size, pools->chunks[i].punched);
	}
	*ret_warm = warm;
	*ret_free = all;
}
