/*
 * Growing: making memory for pools.
 *
 * A chunk is stored before it is recorded, and recorded before a client learns
 * of it: a crash in between leaves a stray descriptor in the fd store, which
 * the next start drops.
 */
#include "broker/memory/pool_impl.h"
#include "cuda/vmm.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/arena.h"
#include "shm/chunk.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define POPULATED_AT_ONCE (64 * MIB) /* bytes populated at a time */

/* --- making chunks ------------------------------------------------------- */

/* Makes a chunk of a device. A larger size than the needed one may fail, since
 * other processes use the device, too; then the needed size is tried. */
static void run_create_device(struct pool_work *work)
{
	work->result = device_check_shareable(work->device, &work->err);
	if (work->result < 0)
		return;
	work->result =
		vmm_create(work->device, work->size, &work->fd, &work->err);
	if (work->result != -ENOMEM || work->size == work->need)
		return;
	work->size = work->need;
	work->result =
		vmm_create(work->device, work->size, &work->fd, &work->err);
}

static void run_create(struct pool_work *work)
{
	bool is_bundle = work->pool->bundle != 0;

	work->result =
		chunk_create(work->size, is_bundle, &work->fd, &work->err);
	if (work->result < 0)
		return;
	/* The chunk of a bundle is not populated: the loader's page faults are
	 * the cheapest way to fill it. */
	if (is_bundle)
		return;
	work->result =
		chunk_populate(work->fd, work->range.offset, work->range.size,
			       huge_pages_state(), &work->err);
}

/* Makes and commits the record of a new chunk. The caller ensured a free
 * record. */
static uint32_t record_chunk(struct pools *pools, const struct pool_work *work)
{
	struct catalog *catalog = pools->catalog;
	uint32_t index = catalog_alloc(catalog, SECTION_CHUNK);

	assert(index > 0 && index < TABLE_CHUNKS);
	*catalog_chunk(catalog, index) = (struct chunk_record){
		.id = catalog->header->next_chunk_id,
		.size = work->size,
		.populated = work->range.size,
		.access = work->pool->access,
		.bundle = work->pool->bundle,
		.device = work->source->device,
	};
	catalog_set(catalog, catalog->header->next_chunk_id,
		    catalog->header->next_chunk_id + 1);
	catalog_commit(catalog);
	return index;
}

/* Adds the memory that the worker made to its pool, as a chunk. FDSTORE_WAIT:
 * the fd store is busy. */
static int add_chunk(struct pool_work *work, struct error *err)
{
	struct pools *pools = work->pools;
	uint32_t id = pools->catalog->header->next_chunk_id;
	char name[FDSTORE_NAME_SIZE];
	struct arena *arena = NULL;
	struct chunk *chunk;
	uint32_t index;
	int r;

	r = pool_make_arena(work->source, work->size, work->range.size, &arena,
			    err);
	if (r < 0)
		return r;
	/* The fd is stored before a record refers to it; a stored chunk without
	 * a record is dropped at the next start. */
	pool_chunk_name(name, id);
	r = fdstore_put(&pools->base->fdstore, work->fd, name, err);
	if (r != FDSTORE_OK) {
		arena_free(arena);
		return r;
	}
	failpoint("pool.stored");
	index = record_chunk(pools, work);
	chunk = &pools->chunks[index];
	*chunk = (struct chunk){
		.fd = work->fd,
		.readonly_fd = -1,
		.arena = arena,
		.tail_size = work->size - work->range.size,
	};
	pool_link_chunk(work->pool, index);
	pool_show_chunk(pools, index, id);
	pools->n_created++;
	pool_spare(pools, chunk);
	pool_touch(pools, chunk);
	return 0;
}

/* Drops the memory of a work that failed, if it made any. */
static void discard(struct pool_work *work)
{
	struct pools *pools = work->pools;

	pools->n_chunks--;
	pool_refund_chunk(work->source, work->pool->access.uid, work->size);
	pool_maybe_free(work->pool);
	if (work->fd >= 0) {
		pool_work_close(work);
		return;
	}
	work->source->total_size -= work->size;
	wake_room(&pools->base->wake);
	free(work);
}

static void done_create(struct pool_work *work)
{
	struct pool *pool = work->pool;

	if (work->result == 0 && !pool->is_forgotten) {
		work->result = add_chunk(work, &work->err);
		if (work->result == FDSTORE_WAIT) {
			work->result = 0;
			work->next = work->pools->unstored;
			work->pools->unstored = work;
			return;
		}
	}
	pool->n_growing--;
	if (work->result < 0 || pool->is_forgotten) {
		pool->failed = work->err;
		wake_room(&work->pools->base->wake);
		discard(work);
		return;
	}
	pool_note_size(pool, work->size);
	wake_room(&work->pools->base->wake);
	free(work);
}

void pools_on_store(struct pools *pools)
{
	struct pool_work *work = pools->unstored, *next;

	pools->unstored = NULL;
	for (; work; work = next) {
		next = work->next;
		done_create(work);
	}
}

static const struct pool_work_kind work_create = {run_create, done_create};

/* Corrects the charges for a chunk that is smaller than requested. */
static void note_made(struct pool_work *work, uint64_t asked)
{
	struct pool_source *source = work->source;
	struct accounts *accounts = &work->pools->base->accounts;
	struct account *account =
		accounts_get(accounts, work->pool->access.uid);

	assert(account); /* it was charged, so it exists */
	source->total_size -= asked - work->size;
	account->chunk_size[1] -= asked - work->size;
	work->range.size = work->size;
}

/* The driver's result concerns all pools of the device, so it is recorded for
 * the source. */
static void done_create_device(struct pool_work *work)
{
	struct devices *devices = work->pools->devices;

	note_made(work, work->range.size);
	if (work->result == 0)
		pool_forget_refusals(work->source);
	if (work->result == -EIO)
		devices_note_lost(devices, work->device, &work->err);
	if (work->result != -ENOMEM) {
		done_create(work);
		return;
	}
	pool_note_refusal(work->source, &work->err);
	work->pool->n_growing--;
	wake_room(&work->pools->base->wake);
	discard(work);
}

static const struct pool_work_kind work_create_device = {run_create_device,
							 done_create_device};

/* Returns the size of a new chunk: as requested, or larger so that there are
 * few chunks. The excess stays within the requester's quota, since a size hint
 * costs nothing. */
static uint64_t wanted_size(const struct pool *pool,
			    const struct account *account, uint64_t need,
			    uint64_t size_hint)
{
	struct pools *pools = pool->pools;
	const struct pool_source *source = pool->source;
	uint64_t quota = account_limit(&pools->base->accounts, account,
				       pool_account(&source->device));
	uint64_t used = account->chunk_size[!pool_source_is_host(source)];
	uint64_t left = quota - min_u64(quota, used);
	uint64_t want = pool->next_size;

	if (pool->bundle && size_hint > 0)
		want = chunk_round(
			min_u64(size_hint, pools->base->config.memory_max));
	want = min_u64(want, left & ~(HUGE_PAGE_SIZE - 1));
	return max_u64(want, need);
}

/* Starts the work that makes a chunk, with everything charged. */
static int begin_chunk(struct pool *pool, const struct device *device,
		       uint64_t need, uint64_t size, struct account *account,
		       struct error *err)
{
	struct pool_source *source = pool->source;
	struct pool_work *work;
	int r;

	r = pool_charge_chunk(pool->pools, account, err);
	if (r != POOL_OK)
		return r;
	work = pool_work_new(source,
			     device ? &work_create_device : &work_create, 0);
	if (!work) {
		account_refund(account, ACCOUNT_CHUNKS, 1);
		return error_nomem(err, "a new chunk");
	}
	work->pool = pool;
	work->device = device;
	work->size = size;
	work->need = need;
	work->range.size =
		pool->bundle || device
			? size
			: min_u64(size, max_u64(need, POPULATED_AT_ONCE));
	account->chunk_size[!pool_source_is_host(source)] += size;
	source->total_size += size;
	pool->pools->n_chunks++;
	pool->n_growing++;
	pool_work_queue(work);
	return POOL_WAIT;
}

/* Makes a chunk of the device, or of host memory if `device` is NULL. */
static int make_chunk(struct pool *pool, const struct device *device,
		      uint64_t need, uint64_t size_hint, struct error *err)
{
	struct pools *pools = pool->pools;
	struct accounts *accounts = &pools->base->accounts;
	struct account *account = accounts_get(accounts, pool->access.uid);
	uint64_t want, size = 0;
	int r;

	if (!account)
		return error_nomem(err, "the account of uid %" PRIu32,
				   pool->access.uid);
	r = pool_admit_count(pools, err);
	if (r != POOL_OK)
		return r;
	want = wanted_size(pool, account, need, size_hint);
	if (device)
		want = vmm_round(device, min_u64(want, device->memory));
	r = pool_admit(pool, device, need, want, &size, err);
	if (r != POOL_OK)
		return r;
	return begin_chunk(pool, device, need, size, account, err);
}

/* --- populating ---------------------------------------------------------- */

static void run_populate(struct pool_work *work)
{
	work->result =
		chunk_populate(work->fd, work->range.offset, work->range.size,
			       huge_pages_state(), &work->err);
}

/* Adds the range to the arena; the memory after it stays reserved. */
static void open_range(struct pools *pools, uint32_t index,
		       const struct range *range)
{
	struct catalog *catalog = pools->catalog;
	struct chunk *chunk = &pools->chunks[index];
	struct chunk_record *record = pool_record(pools, index);
	uint64_t populated = range->offset + range->size;

	arena_release(chunk->arena, range->offset);
	/* If there is no memory for the reservation, the rest is allocated
	 * before it has pages. That is slower but correct. */
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

	chunk->is_busy = false;
	if (work->result < 0)
		chunk->pool->failed = work->err;
	else
		open_range(pools, work->chunk, &work->range);
	pool_spare(pools, chunk);
	pool_touch(pools, chunk);
	wake_room(&pools->base->wake);
	free(work);
}

static const struct pool_work_kind work_populate = {run_populate,
						    done_populate};

/* Populates the next range of the first chunk whose tail can hold `need`. */
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
	work = pool_work_on(pools, i, &work_populate, 0);
	if (!work)
		return error_nomem(err, "a growing chunk");
	work->range.offset = pool_record(pools, i)->size - chunk->tail_size;
	work->range.size =
		min_u64(chunk->tail_size, max_u64(need, POPULATED_AT_ONCE));
	chunk->is_busy = true;
	pool_work_queue(work);
	return POOL_WAIT;
}

/* --- growing ------------------------------------------------------------- */

/* Reports the failure of the last growth once; after that, growth may be tried
 * again. */
static int report_failure(struct pool *pool, struct error *err)
{
	int code = pool->failed.code;

	error_set(err, code, "%s", pool->failed.msg);
	pool->failed = ERROR_NULL;
	return code == -ENOMEM ? POOL_FULL : code;
}

/* Returns whether a work on a chunk may soon end and give memory. */
static bool has_busy_chunk(const struct pool *pool)
{
	const struct chunk *chunk;
	uint32_t i;

	for (i = pool->first; i; i = chunk->next) {
		chunk = &pool->pools->chunks[i];
		if (chunk->is_busy && !chunk->is_late && !chunk->is_dying)
			return true;
	}
	return false;
}

int pool_grow(struct pool *pool, const struct pool_request *request,
	      uint64_t missing, struct error *err)
{
	struct devices *devices = pool->pools->devices;
	const struct device *device = NULL;
	uint64_t need;
	int r = DEVICES_OK;

	/* Memory that is being made or populated, or that is reserved while a
	 * thread punches it, may suffice. */
	if (pool->n_growing > 0 || has_busy_chunk(pool))
		return POOL_WAIT;
	if (pool->failed.code < 0)
		return report_failure(pool, err);
	if (!pool_source_is_host(pool->source))
		r = devices_find(devices, &request->device, &device, err);
	if (r != DEVICES_OK)
		return r < 0 ? r : POOL_WAIT;
	need = device ? vmm_round(device, missing) : chunk_round(missing);
	r = populate_more(pool, need, err);
	if (r != POOL_FULL)
		return r;
	return make_chunk(pool, device, need, request->size_hint, err);
}
