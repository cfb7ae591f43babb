/*
 * Shared chunks: their records, and the end of their sharer.
 *
 * A donated descriptor is stored before it is recorded, as the descriptors of
 * all chunks are: a crash in between leaves a stray descriptor, which the next
 * start drops.
 */
#include "broker/tensor/shared_chunk.h"
#include "broker/memory/pool_impl.h"
#include "broker/tensor/holdings.h"
#include "broker/tensor/name.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "broker/tensor/ticket.h"
#include "cuda/handle.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(MESSAGE_HANDLE_SIZE == HANDLE_SIZE, "handles travel whole");

/* --- finding ------------------------------------------------------------- */

/* Returns whether both descriptors have the same open file. Descriptors of one
 * driver all lead to the same inode, so the inode cannot tell. If the kernel
 * does not support the comparison, they count as different. */
static bool is_same_file(int a, int b)
{
	pid_t pid = getpid();

	return syscall(SYS_kcmp, pid, pid, KCMP_FILE, (unsigned long)a,
		       (unsigned long)b) == 0;
}

static bool is_same_memory(const struct pools *pools, uint32_t index,
			   const struct share *share)
{
	const struct chunk_record *record = pool_record(pools, index);
	const void *handle;

	if (!share->handle)
		return record->shared == SHARE_DONATED &&
		       is_same_file(pools->chunks[index].fd, share->fd);
	if (record->shared != SHARE_LEGACY)
		return false;
	handle = catalog_blob(pools->catalog, record->handle);
	return memcmp(handle, share->handle, MESSAGE_HANDLE_SIZE) == 0;
}

static uint32_t find(const struct pools *pools, const struct share *share)
{
	uint32_t n = catalog_n_touched(pools->catalog, SECTION_CHUNK);
	const struct access_class *access = &share->access;
	const struct chunk_record *record;

	for (uint32_t i = 1; i <= n; i++) {
		if (!pool_has_chunk(pools, i) || pools->chunks[i].is_dying)
			continue;
		record = pool_record(pools, i);
		if (record->shared &&
		    record->sharer == share->holdings->index &&
		    record->size == share->size &&
		    record->access.gid == access->gid &&
		    record->access.mode == access->mode &&
		    memcmp(&record->device, &share->device->uuid,
			   sizeof(record->device)) == 0 &&
		    is_same_memory(pools, i, share))
			return i;
	}
	return 0;
}

/* --- making -------------------------------------------------------------- */

/* Duplicates the descriptor of donated memory, and stores it before any record
 * names it. */
static int keep(struct pools *pools, const struct share *share, int *ret_fd,
		struct error *err)
{
	char name[FDSTORE_NAME_SIZE];
	int fd, r;

	fd = fcntl(share->fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return error_errno(err, -errno, "cannot keep donated memory");
	pool_chunk_name(name, pools->catalog->header->next_chunk_id);
	r = fdstore_put(&pools->base->fdstore, fd, name, err);
	if (r != FDSTORE_OK) {
		close(fd);
		return r == FDSTORE_WAIT ? POOL_WAIT : r;
	}
	failpoint("share.stored");
	*ret_fd = fd;
	return 0;
}

/* Makes the record of the chunk. `handle` is the blob with the handle, or 0 for
 * donated memory. */
static uint32_t record_chunk(struct pools *pools, const struct share *share,
			     uint64_t handle)
{
	struct catalog *catalog = pools->catalog;
	uint32_t index = catalog_alloc(catalog, SECTION_CHUNK);
	uint32_t id = catalog->header->next_chunk_id;

	assert(index > 0 && index < TABLE_CHUNKS);
	*catalog_chunk(catalog, index) = (struct chunk_record){
		.id = id,
		.size = share->size,
		.populated = share->size,
		.access = share->access,
		.device = share->device->uuid,
		.shared = handle ? SHARE_LEGACY : SHARE_DONATED,
		.sharer = share->holdings->index,
		.handle = handle,
	};
	catalog_set(catalog, catalog->header->next_chunk_id, id + 1);
	failpoint("share.recorded");
	return index;
}

static void add_chunk(struct pool *pool, uint32_t index, int fd)
{
	struct pools *pools = pool->pools;

	pools->chunks[index] = (struct chunk){.fd = fd, .readonly_fd = -1};
	pool_link_chunk(pool, index);
	pool_show_chunk(pools, index, pool_record(pools, index)->id);
	pool->source->total_size += pool_chunk_size(pools, index);
	pools->n_chunks++;
	pools->n_created++;
}

/* Makes the chunk after everything is charged. */
static int make(struct pool *pool, const struct share *share,
		uint32_t *ret_index, struct error *err)
{
	struct pools *pools = pool->pools;
	struct catalog *catalog = pools->catalog;
	uint64_t handle = 0;
	int fd = -1, r;

	if (share->handle) {
		handle = catalog_blob_alloc(catalog, MESSAGE_HANDLE_SIZE);
		if (!handle)
			return error_set(err, -ENOSPC,
					 "the broker's catalog is full; remove "
					 "tensors or end sessions");
		memcpy(catalog_blob(catalog, handle), share->handle,
		       MESSAGE_HANDLE_SIZE);
	} else {
		r = keep(pools, share, &fd, err);
		if (r != POOL_OK)
			return r;
	}
	*ret_index = record_chunk(pools, share, handle);
	add_chunk(pool, *ret_index, fd);
	return 0;
}

static int admit(struct pool_source *source, const struct share *share,
		 struct error *err)
{
	int r = pool_admit_count(source->pools, err);

	if (r != POOL_OK || share->handle)
		return r;
	return pool_admit_donated(source, share->device, share->size, err);
}

int shared_chunk_get(struct pools *pools, const struct share *share,
		     uint32_t *ret_index, struct error *err)
{
	enum share_kind kind = share->handle ? SHARE_LEGACY : SHARE_DONATED;
	struct pool *pool;
	int r;

	*ret_index = find(pools, share);
	if (*ret_index)
		return POOL_OK;
	pool = pool_new(pools, &share->access, &share->device->uuid, 0);
	if (!pool)
		return error_nomem(err, "a pool");
	pool->is_forgotten = true;
	r = admit(pool->source, share, err);
	if (r != POOL_OK)
		goto out;
	r = pool_charge_shared(pool->source, share->holdings->account, kind,
			       share->size, err);
	if (r < 0)
		goto out;
	r = make(pool, share, ret_index, err);
	if (r != POOL_OK)
		pool_refund_shared(pool->source, share->access.uid, kind,
				   share->size);
out:
	pool_maybe_free(pool);
	return r;
}

void shared_chunk_give_up(struct pools *pools, uint32_t index)
{
	if (pool_is_empty(pools, index))
		pool_mark_dying(pools, index);
}

uint32_t shared_chunk_block(struct pools *pools, uint32_t index,
			    uint64_t offset, uint64_t size, uint32_t uid)
{
	struct catalog *catalog = pools->catalog;
	struct chunk_record *record = pool_record(pools, index);
	uint32_t block = catalog_alloc(catalog, SECTION_BLOCK);

	assert(block > 0 && offset <= record->size &&
	       size <= record->size - offset);
	/* Shared memory is not charged to a budget, so the block has no
	 * maker. */
	*catalog_block(catalog, block) = (struct block_record){
		.chunk = index,
		.offset = offset,
		.size = size,
		.uid = uid,
	};
	catalog_set(catalog, record->n_blocks, record->n_blocks + 1);
	return block;
}

/* --- the end of a sharer ------------------------------------------------- */

static int check_alive(const struct chunk_record *record, struct error *err)
{
	if (record->shared != SHARE_LEGACY || record->sharer)
		return 0;
	return error_set(err, -EOWNERDEAD,
			 "chunk %" PRIu32
			 " was memory of a process that has ended, so it "
			 "cannot be shared any more",
			 record->id);
}

int shared_chunk_handle(const struct pools *pools, uint32_t index,
			uint8_t ret[MESSAGE_HANDLE_SIZE], struct error *err)
{
	const struct chunk_record *record = pool_record(pools, index);
	int r = check_alive(record, err);

	if (r < 0)
		return r;
	memcpy(ret, catalog_blob(pools->catalog, record->handle),
	       MESSAGE_HANDLE_SIZE);
	return 0;
}

int shared_chunk_check(const struct store *store, uint32_t slot,
		       struct error *err)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t block = catalog_slot(catalog, slot)->block;

	return check_alive(
		catalog_chunk(catalog, catalog_block(catalog, block)->chunk),
		err);
}

/* So many records are looked at for one tensor that is ended. */
#define LOOKED_PER_ENDED 64

/* Ends a tensor whose memory is freed with its sharer. */
static void end_slot(struct store *store, uint32_t slot)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);

	if (!(record->flags & SLOT_FLAG_TAINTED)) {
		slot_taint(store, slot);
		store->n_tainted++;
	}
	slot_drop_name(store, slot, EVENT_ENDED);
	ticket_end_slot(store, slot);
	slot_update_state(store, slot);
	failpoint("share.tainted");
	catalog_commit(&store->catalog);
}

static bool is_ended(const struct slot_record *record)
{
	return record->flags & SLOT_FLAG_TAINTED &&
	       !(record->flags & SLOT_FLAG_NAMED) && !record->n_tickets;
}

/* A slot with tickets costs a walk through all tickets. */
static uint32_t cost_of(const struct store *store,
			const struct slot_record *record)
{
	if (!record->n_tickets)
		return 1;
	return 1 + catalog_n_touched(&store->catalog, SECTION_TICKET) /
			   LOOKED_PER_ENDED;
}

static void end_block(struct store *store, const struct block_record *block,
		      uint32_t *left)
{
	uint32_t slot = block->slots.first, next, cost;

	for (; slot && *left > 0; slot = next) {
		const struct slot_record *record =
			catalog_slot(&store->catalog, slot);

		next = record->block_link.next;
		if (is_ended(record))
			continue;
		cost = cost_of(store, record);
		end_slot(store, slot);
		*left -= cost < *left ? cost : *left;
	}
}

static bool is_shared_by(const struct chunk_record *record, uint32_t session)
{
	return record->id && record->shared && record->sharer == session;
}

/* Returns whether the session shared the chunk, if it is one, by legacy IPC. */
static bool is_legacy_of(const struct holdings *holdings, uint32_t chunk)
{
	const struct chunk_record *record;

	if (!chunk)
		return false;
	record = catalog_chunk(&holdings->store->catalog, chunk);
	return is_shared_by(record, holdings->index) &&
	       record->shared == SHARE_LEGACY;
}

static bool has_legacy(const struct holdings *holdings)
{
	uint32_t chunk =
		catalog_n_touched(&holdings->store->catalog, SECTION_CHUNK);

	while (chunk > 0 && !is_legacy_of(holdings, chunk))
		chunk--;
	return chunk > 0;
}

/* Ends the tensors in the memory that the session shared by legacy IPC. If
 * `*left` becomes 0, the next call goes on at the same block. */
static void end_blocks(struct holdings *holdings, uint32_t *left)
{
	struct store *store = holdings->store;
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BLOCK);
	const struct block_record *block;

	while (*left > 0 && holdings->shared_hand < n) {
		block = catalog_block(catalog, holdings->shared_hand + 1);
		if (is_legacy_of(holdings, block->chunk))
			end_block(store, block, left);
		if (*left > 0 &&
		    ++holdings->shared_hand % LOOKED_PER_ENDED == 0)
			--*left;
	}
}

void shared_chunk_end_session(struct holdings *holdings, uint32_t *left)
{
	struct catalog *catalog = &holdings->store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_CHUNK);
	struct chunk_record *record;

	if (has_legacy(holdings))
		end_blocks(holdings, left);
	if (*left == 0)
		return;
	for (uint32_t i = 1; i <= n; i++) {
		record = catalog_chunk(catalog, i);
		if (!is_shared_by(record, holdings->index))
			continue;
		catalog_set(catalog, record->sharer, 0);
		failpoint("share.ended");
		catalog_commit(catalog);
	}
}
