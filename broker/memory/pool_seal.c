/*
 * Sealing: making a bundle's memory permanently read-only.
 *
 * F_ADD_SEALS visits every page, and waits some 150 ms for pages that the
 * kernel itself uses (in a pipe, or for I/O in progress). If it refuses, the
 * search for the process that maps the memory reads files in /proc. All of this
 * happens on a thread, one chunk of the bundle at a time.
 *
 * The chunk is busy meanwhile: it is neither freed nor allocated from, whatever
 * happens to the bundle and the session. The record is marked as sealed only
 * after the chunk is sealed; if the broker dies in between, the request is sent
 * again and finds the seal.
 */
#include "broker/base/mapper.h"
#include "broker/memory/pool_impl.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

/* --- on a thread --------------------------------------------------------- */

static void explain(struct pool_work *work)
{
	char mapper[64];

	if (mapper_find(work->fd, &work->suspect, mapper, sizeof(mapper)))
		work->result = error_set(
			&work->err, -EBUSY,
			"%s still has memory of the bundle mapped writable: "
			"unmap it there and commit again",
			mapper);
	else
		work->result = error_set(
			&work->err, -EBUSY,
			"memory of the bundle can still be written: a process "
			"that the broker cannot inspect has it mapped "
			"writable, or the kernel uses pages of it (in a pipe, "
			"or for I/O); end that and commit again");
}

static void run_seal(struct pool_work *work)
{
	int seals = fcntl(work->fd, F_GET_SEALS);

	/* The chunk may be sealed already, by an earlier commit that failed
	 * later. */
	if (seals >= 0 && seals & F_SEAL_WRITE)
		return;
	work->result = memfd_seal_write(work->fd, &work->err);
	if (work->result == -EBUSY)
		explain(work);
}

/* --- in the loop --------------------------------------------------------- */

static void record_seal(struct pools *pools, uint32_t index)
{
	struct catalog *catalog = pools->catalog;
	struct chunk_record *record = pool_record(pools, index);

	if (record->is_sealed)
		return;
	catalog_set(catalog, record->is_sealed, 1);
	catalog_commit(catalog);
}

static void done_seal(struct pool_work *work)
{
	struct pools *pools = work->pools;
	struct chunk *chunk = &pools->chunks[work->chunk];

	failpoint("pool.sealed");
	chunk->is_busy = chunk->is_sealing = false;
	if (work->result < 0)
		chunk->pool->unsealed = work->err;
	else
		record_seal(pools, work->chunk);
	/* The bundle may be gone by now, and the trimmer has skipped the busy
	 * chunk. */
	if (chunk->is_dying)
		pools_look_again(pools);
	wake_uid(&pools->base->wake, work->suspect.uid); /* the owner */
	wake_room(&pools->base->wake);
	free(work);
}

static const struct pool_work_kind work_seal = {run_seal, done_seal};

static pid_t loader_of(const struct pools *pools, uint32_t bundle)
{
	const struct catalog *catalog = pools->catalog;
	uint32_t session = catalog_bundle(catalog, bundle)->loader;

	return session ? (pid_t)catalog_session(catalog, session)->pid : 0;
}

static int begin_seal(struct pools *pools, uint32_t index, struct error *err)
{
	uint32_t bundle = pool_record(pools, index)->bundle;
	struct chunk *chunk = &pools->chunks[index];
	struct pool_work *work = pool_work_on(pools, index, &work_seal, 0);

	if (!work)
		return error_nomem(err, "a sealed chunk");
	work->suspect = (struct mapper_suspect){
		loader_of(pools, bundle),
		catalog_bundle(pools->catalog, bundle)->owner_uid,
	};
	chunk->is_busy = chunk->is_sealing = true;
	pool_work_queue(work);
	return POOL_WAIT;
}

static int seal_chunk(struct pools *pools, uint32_t index, struct error *err)
{
	const struct chunk *chunk = &pools->chunks[index];

	if (chunk->is_dying || pool_record(pools, index)->is_sealed)
		return POOL_OK;
	/* Memory of a device cannot be sealed, so only the record says so. */
	if (!pool_source_is_host(chunk->pool->source)) {
		record_seal(pools, index);
		return POOL_OK;
	}
	if (chunk->is_busy)
		return POOL_WAIT;
	return begin_seal(pools, index, err);
}

int pool_seal_bundle(struct pools *pools, uint32_t bundle, struct error *err)
{
	struct pool *pool = pool_find_bundle(pools, bundle);
	int r = POOL_OK;
	uint32_t i;

	if (pool && pool->unsealed.code < 0) {
		error_set(err, pool->unsealed.code, "%s", pool->unsealed.msg);
		pool->unsealed = ERROR_NULL;
		return err->code;
	}
	for (i = pool ? pool->first : 0; i && r == POOL_OK;
	     i = pools->chunks[i].next)
		r = seal_chunk(pools, i, err);
	return r;
}

void pool_forget_unsealed(struct pools *pools, uint32_t bundle)
{
	struct pool *pool = pool_find_bundle(pools, bundle);

	if (pool)
		pool->unsealed = ERROR_NULL;
}
