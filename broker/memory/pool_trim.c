/*
 * Trimming: returning memory to the kernel.
 *
 * A chunk is retired in the order punch, forget, close. If the broker dies
 * before the record is gone, the next one finds the empty chunk again; if it
 * dies later, no pages are left. Chunks are never retired inside the
 * transaction of a request, which might be undone: there a chunk is only marked
 * as dying, and the trim deadline retires it.
 */
#include "broker/memory/pool_impl.h"
#include "proto/failpoint.h"
#include "shm/arena.h"
#include "shm/chunk.h"
#include "shm/memfd.h"
#include <assert.h>
#include <stdlib.h>

#define RETRY_MS 1000

static void on_trim(void *data, uint32_t index);

/* Schedules a visit of the chunks at that time, or earlier. */
static void schedule_trim(struct pools *pools, uint64_t at_ms)
{
	struct deadlines *deadlines = &pools->base->deadlines;
	struct deadline deadline = {
		.at_ms = at_ms,
		.fn = on_trim,
		.data = pools,
		.position = &pools->trim_position,
	};

	/* When the broker stops, chunks of works that end later are not
	 * trimmed. */
	if (pools->base->loop.is_stopping ||
	    (pools->trim_position && pools->trim_ms <= at_ms))
		return;
	deadlines_remove(deadlines, &pools->trim_position);
	pools->trim_ms = at_ms;
	/* If memory runs out, the next release tries again. */
	(void)deadlines_add(deadlines, &deadline, NULL);
}

void pool_touch(struct pools *pools, struct chunk *chunk)
{
	chunk->used_ms = now_ms();
	chunk->is_warm = true;
	schedule_trim(pools, chunk->used_ms + pools->base->config.warm_ms);
}

void pools_look_again(struct pools *pools)
{
	schedule_trim(pools, now_ms());
}

void pool_mark_dying(struct pools *pools, uint32_t index)
{
	struct chunk *chunk = &pools->chunks[index];

	assert(pool_is_empty(pools, index));
	if (chunk->is_dying)
		return;
	chunk->is_dying = true;
	if (pool_is_going(chunk))
		chunk->pool->source->going_size +=
			pool_chunk_size(pools, index);
	schedule_trim(pools, now_ms());
}

/* Removes the record of a chunk whose pages are freed. */
static void forget_chunk(struct pools *pools, uint32_t index)
{
	struct chunk *chunk = &pools->chunks[index];
	struct chunk_record *record = pool_record(pools, index);
	struct pool *pool = chunk->pool;
	char name[FDSTORE_NAME_SIZE];
	struct chunk_record was = *record;

	assert(pool_is_empty(pools, index) && chunk->is_dying);
	pool_chunk_name(name, was.id);
	if (was.handle)
		catalog_blob_release(pools->catalog, was.handle,
				     MESSAGE_HANDLE_SIZE);
	catalog_release(pools->catalog, SECTION_CHUNK, index);
	catalog_commit(pools->catalog);
	failpoint("pool.forgotten");
	pools->hooks.on_chunk_gone(pools->hooks.data, index);
	pool_show_chunk(pools, index, 0);
	if (chunk->fd >= 0)
		fdstore_remove(&pools->base->fdstore, name);
	if (was.shared)
		pool_refund_shared(pool->source, was.access.uid, was.shared,
				   was.size);
	else
		pool_refund_chunk(pool->source, was.access.uid, was.size);
	arena_free(chunk->arena);
	pool_unlink_chunk(pool, index);
	*chunk = (struct chunk){.fd = -1, .readonly_fd = -1};
	pools->n_chunks--;
	pools->n_retired++;
	pool_maybe_free(pool);
}

/* Frees the pages of a chunk, even while clients still have it mapped. A
 * failure only leaves pages to those mappings. Memory of a device has no
 * holes. */
static void run_empty(struct pool_work *work)
{
	if (pool_source_is_host(work->source))
		(void)chunk_punch(work->fd, 0, work->size, NULL);
}

static void done_empty(struct pool_work *work)
{
	struct chunk *chunk = &work->pools->chunks[work->chunk];

	work->readonly_fd = chunk->readonly_fd;
	forget_chunk(work->pools, work->chunk);
	pool_work_close(work);
}

static const struct pool_work_kind work_empty = {run_empty, done_empty};

static void retire(struct pools *pools, uint32_t index)
{
	struct chunk *chunk = &pools->chunks[index];
	struct pool_work *work = pool_work_on(pools, index, &work_empty, 0);

	if (!work) {
		schedule_trim(pools, now_ms() + RETRY_MS);
		return;
	}
	work->size = pool_chunk_size(pools, index);
	work->is_going = true;
	chunk->is_busy = true;
	pool_work_queue(work);
}

struct collection {
	struct range *ranges; /* NULL: count only */
	uint32_t n, max;
};

static void collect_range(uint64_t offset, uint64_t size, void *data)
{
	struct collection *collection = data;
	uint64_t start = chunk_round(offset);
	uint64_t end = (offset + size) & ~(HUGE_PAGE_SIZE - 1);

	if (end <= start)
		return;
	if (collection->n < collection->max)
		collection->ranges[collection->n] =
			(struct range){start, end - start};
	collection->n++;
}

static void run_punch(struct pool_work *work)
{
	uint32_t i;

	for (i = 0; i < work->n_ranges; i++)
		(void)chunk_punch(work->fd, work->ranges[i].offset,
				  work->ranges[i].size, NULL);
}

static void done_punch(struct pool_work *work)
{
	struct pools *pools = work->pools;
	struct chunk *chunk = &pools->chunks[work->chunk];
	uint32_t i;

	chunk->is_busy = false;
	chunk->punched = 0;
	for (i = 0; i < work->n_ranges; i++) {
		arena_release(chunk->arena, work->ranges[i].offset);
		chunk->punched += work->ranges[i].size;
	}
	pools->n_trims++;
	if (chunk->is_warm)
		schedule_trim(pools,
			      chunk->used_ms + pools->base->config.warm_ms);
	wake_room(&pools->base->wake);
	free(work);
}

static const struct pool_work_kind work_punch = {run_punch, done_punch};

/* Reserves the ranges in the arena while a thread punches them. Ranges that
 * cannot be reserved are left out. */
static void reserve_ranges(struct arena *arena, struct pool_work *work)
{
	uint32_t i, n = 0;

	for (i = 0; i < work->n_ranges; i++) {
		struct range range = work->ranges[i];

		if (arena_reserve(arena, range.offset, range.size, NULL) == 0)
			work->ranges[n++] = range;
	}
	work->n_ranges = n;
}

/* Returns the free huge pages of a chunk in use to the kernel. */
static void trim(struct pools *pools, uint32_t index)
{
	struct chunk *chunk = &pools->chunks[index];
	struct collection collection = {0};
	struct pool_work *work;

	chunk->is_warm = false;
	/* A bundle's free ranges were never touched, or are freed with the
	 * bundle. */
	if (chunk->pool->bundle || !pool_source_is_host(chunk->pool->source))
		return;
	arena_visit_free(chunk->arena, collect_range, &collection);
	if (collection.n == 0)
		return;
	work = pool_work_on(pools, index, &work_punch, collection.n);
	if (!work)
		return;
	collection = (struct collection){work->ranges, 0, collection.n};
	arena_visit_free(chunk->arena, collect_range, &collection);
	reserve_ranges(chunk->arena, work);
	chunk->is_busy = true;
	pool_work_queue(work);
}

static uint64_t due_of(const struct pools *pools, const struct chunk *chunk)
{
	if (chunk->used_ms < pools->trim_asked_ms)
		return 0;
	return chunk->used_ms + pools->base->config.warm_ms;
}

/* Does what is due for a chunk. Returns when to visit it again; 0: never. */
static uint64_t look_at(struct pools *pools, uint32_t index, uint64_t now)
{
	struct chunk *chunk = &pools->chunks[index];
	uint64_t due = due_of(pools, chunk);

	if (!pool_has_chunk(pools, index) || chunk->is_busy)
		return 0;
	if (!chunk->is_dying) {
		if (pool_is_spared(pools, index)) {
			wake_room(&pools->base->wake);
			return now + 1;
		}
		if (!chunk->is_warm)
			return 0;
		if (due > now)
			return due;
		if (!pool_is_empty(pools, index)) {
			trim(pools, index);
			return 0;
		}
		pool_mark_dying(pools, index);
	}
	retire(pools, index);
	return 0;
}

static void on_trim(void *data, uint32_t unused)
{
	struct pools *pools = data;
	uint64_t now = now_ms();
	uint64_t next = 0;
	uint32_t i;

	(void)unused;
	for (i = 1; i < TABLE_CHUNKS; i++) {
		uint64_t due = look_at(pools, i, now);

		if (due && (!next || due < next))
			next = due;
	}
	if (next)
		schedule_trim(pools, next);
}

void pools_trim(struct pools *pools, uint64_t *ret_n, uint64_t *ret_bytes)
{
	uint64_t n = 0, bytes = 0;

	for (uint32_t i = 1; i < TABLE_CHUNKS; i++) {
		if (!pool_has_chunk(pools, i) || !pools->chunks[i].is_warm)
			continue;
		n++;
		bytes += pool_warm_bytes(pools, i);
	}
	/* A chunk that was used in this millisecond is due as well. */
	pools->trim_asked_ms = now_ms() + 1;
	schedule_trim(pools, now_ms());
	*ret_n = n;
	*ret_bytes = bytes;
}
