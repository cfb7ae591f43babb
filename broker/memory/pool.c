/*
 * Pools: their chunks, and the placement of blocks in them.
 */
#include "broker/memory/pool.h"
#include "broker/memory/pool_impl.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/arena.h"
#include "shm/chunk.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint32_t block_align(const struct device_uuid *device)
{
	return device_uuid_is_host(device) ? BLOCK_ALIGN : DEVICE_BLOCK_ALIGN;
}

uint64_t pool_block_size(uint64_t size, const struct device_uuid *device)
{
	uint64_t align = block_align(device);

	if (size == 0)
		size = 1;
	return (size + align - 1) & ~(align - 1);
}

enum account_kind pool_account(const struct device_uuid *device)
{
	return device_uuid_is_host(device) ? ACCOUNT_BYTES
					   : ACCOUNT_DEVICE_BYTES;
}

const struct device_uuid *pool_block_device(const struct pools *pools,
					    const struct block_record *block)
{
	return &pool_record(pools, block->chunk)->device;
}

uint64_t pool_block_charge(const struct pools *pools,
			   const struct block_record *block)
{
	const struct chunk_record *chunk = pool_record(pools, block->chunk);

	return chunk->shared ? 0 : pool_block_size(block->size, &chunk->device);
}

/* --- pools --------------------------------------------------------------- */

static bool is_same_class(const struct access_class *a,
			  const struct access_class *b)
{
	return a->uid == b->uid && a->gid == b->gid && a->mode == b->mode;
}

struct pool *pool_find_bundle(const struct pools *pools, uint32_t bundle)
{
	struct pool *pool = pools->first;

	while (pool && (pool->is_forgotten || pool->bundle != bundle))
		pool = pool->next;
	return pool;
}

static struct pool *find_pool(const struct pools *pools,
			      const struct access_class *access,
			      const struct device_uuid *device)
{
	struct pool *pool;

	for (pool = pools->first; pool; pool = pool->next) {
		if (!pool->is_forgotten && !pool->bundle &&
		    is_same_class(&pool->access, access) &&
		    memcmp(&pool->source->device, device, sizeof(*device)) == 0)
			break;
	}
	return pool;
}

struct pool *pool_new(struct pools *pools, const struct access_class *access,
		      const struct device_uuid *device, uint32_t bundle)
{
	struct pool_source *source = pool_source_get(pools, device);
	struct pool *pool = NULL;

	if (source && failpoint_fail("pool.malloc") == 0)
		pool = calloc(1, sizeof(*pool));
	if (!pool)
		return NULL;
	pool->pools = pools;
	pool->source = source;
	pool->access = *access;
	pool->bundle = bundle;
	if (!bundle)
		pool->next_size = chunk_round(pools->base->config.chunk_min);
	pool->next = pools->first;
	pools->first = pool;
	return pool;
}

struct pool *pool_get(struct pools *pools, const struct access_class *access,
		      const struct device_uuid *device, uint32_t bundle)
{
	struct pool *pool = bundle ? pool_find_bundle(pools, bundle)
				   : find_pool(pools, access, device);

	return pool ? pool : pool_new(pools, access, device, bundle);
}

/* A pool lives as long as its chunks. A pool with an error is kept until the
 * error is reported, since otherwise every retry would cause it again. */
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

/* Chunk sizes double, so that there are few chunks: each needs a descriptor. */
void pool_note_size(struct pool *pool, uint64_t size)
{
	uint64_t max = pool->pools->base->config.chunk_max;
	uint64_t next = pool->next_size ? pool->next_size * 2 : size;

	pool->next_size = chunk_round(min_u64(next, max));
}

void pool_chunk_name(char ret[FDSTORE_NAME_SIZE], uint32_t id)
{
	snprintf(ret, FDSTORE_NAME_SIZE, "c%" PRIu32, id);
}

void pool_show_chunk(struct pools *pools, uint32_t index, uint32_t id)
{
	struct table_header *header = pools->table->header;
	/* With release order, a reader of the count also sees the list. */
	uint64_t old = atomic_exchange_explicit(&header->chunks[index], id,
						memory_order_acq_rel);

	if (old && old != id)
		atomic_fetch_add_explicit(&header->chunks_retired, 1,
					  memory_order_release);
}

void pool_refund_chunk(struct pool_source *source, uint32_t uid, uint64_t size)
{
	struct accounts *accounts = &source->pools->base->accounts;
	struct account *account = accounts_get(accounts, uid);
	bool is_device = !pool_source_is_host(source);

	/* It was charged, so the account exists. */
	assert(account && account->chunk_size[is_device] >= size);
	account_refund(account, ACCOUNT_CHUNKS, 1);
	account->chunk_size[is_device] -= size;
}

int pool_charge_shared(struct pool_source *source, struct account *account,
		       enum share_kind kind, uint64_t size, struct error *err)
{
	struct accounts *accounts = &source->pools->base->accounts;
	int r = account_charge(accounts, account, ACCOUNT_CHUNKS, 1, err);

	if (r < 0 || kind == SHARE_LEGACY)
		return r;
	r = account_charge(accounts, account, ACCOUNT_DEVICE_BYTES, size, err);
	if (r < 0) {
		account_refund(account, ACCOUNT_CHUNKS, 1);
		return r;
	}
	account->chunk_size[1] += size;
	return 0;
}

void pool_refund_shared(struct pool_source *source, uint32_t uid,
			enum share_kind kind, uint64_t size)
{
	struct accounts *accounts = &source->pools->base->accounts;

	if (kind == SHARE_DONATED)
		accounts_refund(accounts, uid, ACCOUNT_DEVICE_BYTES, size);
	pool_refund_chunk(source, uid, kind == SHARE_DONATED ? size : 0);
}

int pool_make_arena(const struct pool_source *source, uint64_t size,
		    uint64_t populated, struct arena **ret, struct error *err)
{
	struct arena *arena;
	int r;

	r = arena_new(size, block_align(&source->device), &arena, err);
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

/* --- allocating ---------------------------------------------------------- */

/* The location of a new block. */
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

	if (chunk->is_dying || chunk->is_sealing ||
	    pool_record(pools, index)->is_sealed)
		return ARENA_FULL;
	r = arena_alloc(chunk->arena, size, &offset, err);
	if (r != ARENA_OK)
		return r;
	*ret = (struct place){index, offset};
	chunk->pool->last_used = index;
	return ARENA_OK;
}

/* Finds a location in the pool. ARENA_FULL: the block fits into no chunk of
 * it. */
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
 * Finds locations for all sizes. POOL_FULL: `ret_missing` is the sum of the
 * sizes that did not fit, and no location is taken.
 */
static int find_places(struct pool *pool, const struct pool_request *request,
		       struct place *ret, uint64_t *ret_missing,
		       struct error *err)
{
	uint64_t missing = 0;
	uint32_t i;
	int r = 0;

	for (i = 0; i < request->n && r >= 0; i++) {
		uint64_t size =
			pool_block_size(request->sizes[i], &request->device);

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

uint64_t pool_chunk_used(const struct pools *pools, uint32_t chunk_index)
{
	const struct chunk *chunk = &pools->chunks[chunk_index];

	if (!chunk->arena)
		return pool_record(pools, chunk_index)->size;
	return arena_used(chunk->arena) - chunk->tail_size;
}

static void make_block(struct pools *pools, const struct pool_request *request,
		       uint32_t i, const struct place *place,
		       uint32_t *ret_block)
{
	struct catalog *catalog = pools->catalog;
	struct chunk *chunk = &pools->chunks[place->chunk];
	struct chunk_record *record = pool_record(pools, place->chunk);
	uint32_t block = catalog_alloc(catalog, SECTION_BLOCK);

	/* The caller has checked that there are free records. */
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
	chunk->spared_until = 0;
	chunk->punched =
		min_u64(chunk->punched, free_size(pools, place->chunk));
	*ret_block = block;
}

/* Returns in `ret` the largest total size that the request's source allows, in
 * whole chunks. */
static int find_limit(const struct pools *pools,
		      const struct pool_request *request, uint64_t *ret,
		      struct error *err)
{
	struct devices *devices = pools->devices;
	uint64_t max = pools->base->config.memory_max;
	const struct device *device;
	int r;

	if (device_uuid_is_host(&request->device)) {
		*ret = max & ~(HUGE_PAGE_SIZE - 1);
		return 0;
	}
	r = devices_find(devices, &request->device, &device, err);
	if (r != DEVICES_OK)
		return r < 0 ? r : POOL_WAIT;
	max = devices_memory_max(devices, device);
	*ret = max - max % device->granularity;
	return 0;
}

int pool_could_fit(const struct pools *pools,
		   const struct pool_request *request, struct error *err)
{
	uint64_t left = 0, max;
	uint32_t i;
	int r;

	r = find_limit(pools, request, &left, err);
	if (r != 0)
		return r;
	max = left;
	for (i = 0; i < request->n; i++) {
		uint64_t size =
			pool_block_size(request->sizes[i], &request->device);

		if (request->sizes[i] > left || size > left)
			return error_set(err, -ENOMEM,
					 "%" PRIu32
					 " tensors that have more than %" PRIu64
					 " MiB together can never fit: ask for "
					 "less, or raise %s",
					 request->n, max / MIB,
					 device_uuid_is_host(&request->device)
						 ? "memory_max"
						 : "device_memory_max");
		left -= size;
	}
	return 0;
}

/* Checks that the catalog has free records, and that the request can ever
 * fit. */
static int check_request(const struct pools *pools,
			 const struct pool_request *request, struct error *err)
{
	int r = catalog_check_room(pools->catalog, SECTION_BLOCK, request->n,
				   "blocks of memory", err);

	return r < 0 ? r : pool_could_fit(pools, request, err);
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
	if (r != 0)
		return r;
	pool = pool_get(pools, &request->access, &request->device,
			request->bundle);
	if (!pool)
		return error_nomem(err, "a pool");
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
	struct catalog *catalog = pools->catalog;
	struct block_record *record = catalog_block(catalog, block);
	uint32_t index = record->chunk;
	struct chunk *chunk = &pools->chunks[index];
	struct chunk_record *owner = pool_record(pools, index);

	assert(owner->n_blocks > 0);
	if (!owner->shared)
		arena_release(chunk->arena, record->offset);
	catalog_set(catalog, owner->n_blocks, owner->n_blocks - 1);
	catalog_release(catalog, SECTION_BLOCK, block);
	pool_touch(pools, chunk);
	if (owner->n_blocks == 0 && (chunk->pool->bundle || owner->shared))
		pool_mark_dying(pools, index);
	wake_room(&pools->base->wake);
}

/* --- chunks for peers ---------------------------------------------------- */

int pool_chunk_fd(struct pools *pools, uint32_t chunk_index, bool is_writable,
		  int *ret_fd, struct error *err)
{
	struct chunk *chunk = &pools->chunks[chunk_index];
	int r;

	if (!pool_source_is_host(chunk->pool->source) ||
	    (is_writable && !pool_record(pools, chunk_index)->is_sealed)) {
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

uint32_t pool_next_of_bundle(const struct pools *pools, uint32_t bundle,
			     uint32_t after)
{
	const struct pool *pool;

	if (after)
		return pools->chunks[after].next;
	pool = pool_find_bundle(pools, bundle);
	return pool ? pool->first : 0;
}

uint32_t pool_find_chunk(const struct pools *pools, uint32_t chunk_id)
{
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		if (pool_has_chunk(pools, i) &&
		    pool_record(pools, i)->id == chunk_id)
			return i;
	}
	return 0;
}

/* --- bundles ------------------------------------------------------------- */

void pool_forget_bundle(struct pools *pools, uint32_t bundle)
{
	struct pool *pool = pool_find_bundle(pools, bundle);
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

/* --- all pools ----------------------------------------------------------- */

void pools_init(struct pools *pools)
{
	pools->host.pools = pools;
	for (uint32_t i = 0; i < TABLE_CHUNKS; i++) {
		pools->chunks[i].fd = -1;
		pools->chunks[i].readonly_fd = -1;
	}
}

void pools_deinit(struct pools *pools)
{
	uint32_t i;

	struct pool_work *work;

	if (!pools->host.pools)
		return; /* the pools were not initialised */
	assert(pools->n_works == 0);
	while ((work = pools->unstored)) {
		pools->unstored = work->next;
		close(work->fd);
		free(work);
	}
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
	pool_sources_free(pools);
	pools->n_chunks = 0;
	pools->host.total_size = 0;
}

uint64_t pool_warm_bytes(const struct pools *pools, uint32_t index)
{
	uint64_t size = free_size(pools, index);

	return size - min_u64(size, pools->chunks[index].punched);
}

void pools_free_bytes(const struct pools *pools, uint64_t *ret_warm,
		      uint64_t *ret_free)
{
	uint64_t warm = 0, all = 0;
	uint32_t i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		if (!pool_has_chunk(pools, i) ||
		    !pool_source_is_host(pools->chunks[i].pool->source))
			continue;
		all += free_size(pools, i);
		warm += pool_warm_bytes(pools, i);
	}
	*ret_warm = warm;
	*ret_free = all;
}

void pools_shared(const struct pools *pools, uint32_t *ret_n,
		  uint64_t *ret_size)
{
	uint64_t size = 0;
	uint32_t n = 0, i;

	for (i = 1; i < TABLE_CHUNKS; i++) {
		if (!pool_has_chunk(pools, i) || !pool_record(pools, i)->shared)
			continue;
		size += pool_record(pools, i)->size;
		n++;
	}
	*ret_n = n;
	*ret_size = size;
}
