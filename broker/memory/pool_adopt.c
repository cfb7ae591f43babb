/*
 * Adoption: the chunks that an earlier broker left, their pools and arenas.
 *
 * A device's chunk is adopted like any other: its descriptor is the memory, so
 * no driver is needed.
 */
#include "broker/memory/pool_impl.h"
#include "proto/error.h"
#include "shm/arena.h"
#include "shm/memfd.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static int check_adopted(const struct chunk_record *record, int fd,
			 struct error *err)
{
	if (record->populated > record->size)
		return error_set(err, -EUCLEAN,
				 "its populated part is larger than the chunk");
	if (record->bundle > catalog_capacity(SECTION_BUNDLE))
		return error_set(err, -EUCLEAN, "there is no such bundle");
	if (record->shared > SHARE_MAX ||
	    record->sharer > CATALOG_MAX_SESSIONS ||
	    !record->handle != (record->shared != SHARE_LEGACY))
		return error_set(err, -EUCLEAN,
				 "no process can have shared it in this way");
	if (record->shared == SHARE_LEGACY)
		return 0;
	if (fd < 0)
		return error_set(err, -EUCLEAN, "its descriptor was not kept");
	/* Only the driver could verify a device's descriptor, and there may be
	 * no driver. The keeper that returned the descriptor is trusted. */
	if (!device_uuid_is_host(&record->device))
		return 0;
	return memfd_check(fd, record->size, NULL, err);
}

/*
 * Returns the pool of an adopted chunk. Chunks of shared memory, and those of a
 * bundle that is retired or freed (whose record may belong to another bundle by
 * now), get a pool of their own from which nothing is allocated.
 */
static struct pool *adopt_pool(struct pools *pools,
			       const struct chunk_record *record)
{
	const struct bundle_record *bundle;
	bool is_alone = record->shared != SHARE_NONE;
	struct pool *pool;

	if (record->bundle) {
		bundle = catalog_bundle(pools->catalog, record->bundle);
		is_alone = record->n_blocks == 0 ||
			   (bundle->state != BUNDLE_STAGED &&
			    bundle->state != BUNDLE_COMMITTED &&
			    bundle->state != BUNDLE_KEPT);
	}
	if (!is_alone)
		return pool_get(pools, &record->access, &record->device,
				record->bundle);
	pool = pool_new(pools, &record->access, &record->device,
			record->bundle);
	if (pool)
		pool->is_forgotten = true;
	return pool;
}

/* Adopts a chunk with its descriptor. Consumes `fd` only on success. */
static int adopt_fd(struct pools *pools, uint32_t index, int fd,
		    struct error *err)
{
	struct chunk_record *record = pool_record(pools, index);
	struct chunk *chunk = &pools->chunks[index];
	struct account *account;
	struct pool *pool;
	uint64_t size;
	int r;

	r = check_adopted(record, fd, err);
	if (r < 0)
		return r;
	account = accounts_get(&pools->base->accounts, record->access.uid);
	pool = adopt_pool(pools, record);
	if (!account || !pool)
		return error_nomem(err, "its pool");
	if (!record->shared)
		r = pool_make_arena(pool->source, record->size,
				    record->populated, &chunk->arena, err);
	if (r < 0) {
		pool_maybe_free(pool);
		return r;
	}
	account_charge_adopted(account, ACCOUNT_CHUNKS, 1);
	if (record->shared == SHARE_DONATED)
		account_charge_adopted(account, ACCOUNT_DEVICE_BYTES,
				       record->size);
	size = pool_chunk_size(pools, index);
	account->chunk_size[!pool_source_is_host(pool->source)] += size;
	chunk->fd = fd;
	chunk->tail_size = record->size - record->populated;
	pool_link_chunk(pool, index);
	pool_note_size(pool, record->size);
	pool->source->total_size += size;
	pools->n_chunks++;
	return 0;
}

static int adopt_chunk(struct pools *pools, uint32_t index, struct error *err)
{
	uint32_t id = pool_record(pools, index)->id;
	char name[FDSTORE_NAME_SIZE];
	int fd = -1, r;

	pool_chunk_name(name, id);
	if (pool_record(pools, index)->shared != SHARE_LEGACY)
		fd = fdstore_take(&pools->base->fdstore, name);
	r = adopt_fd(pools, index, fd, err);
	if (r == 0)
		return 0;
	if (fd >= 0)
		close(fd);
	return error_wrap(err, r, "cannot adopt chunk %" PRIu32, id);
}

static int adopt_block(struct pools *pools, uint32_t block, struct error *err)
{
	const struct block_record *record =
		catalog_block(pools->catalog, block);
	int r;

	if (!record->chunk)
		return 0;
	if (record->chunk >= TABLE_CHUNKS ||
	    !pool_has_chunk(pools, record->chunk))
		return error_set(err, -EUCLEAN,
				 "block %" PRIu32 " is in no chunk", block);
	if (pool_record(pools, record->chunk)->shared)
		return 0;
	r = arena_reserve(pools->chunks[record->chunk].arena, record->offset,
			  pool_block_charge(pools, record), err);
	if (r < 0)
		return error_wrap(err, r, "cannot adopt block %" PRIu32, block);
	return 0;
}

/* Drops chunks that were stored but not recorded, or whose record was removed
 * before their descriptor. */
static void drop_strays(struct pools *pools)
{
	struct fdstore *store = &pools->base->fdstore;
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

		if (!pool_has_chunk(pools, i)) {
			pool_show_chunk(pools, i, 0);
			continue;
		}
		pool_show_chunk(pools, i, pool_record(pools, i)->id);
		pool_touch(pools, chunk);
		if (chunk->pool->is_forgotten && pool_is_empty(pools, i))
			pool_mark_dying(pools, i);
	}
}

int pools_adopt(struct pools *pools, struct error *err)
{
	const struct catalog *catalog = pools->catalog;
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
