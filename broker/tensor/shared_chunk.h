/*
 * Shared chunks: device memory that a process had allocated and then shared.
 *
 * Such a chunk is one allocation of that process, its sharer. It has no arena:
 * the sharer chooses its blocks, which may overlap. It is freed with its last
 * block. The broker neither opens nor maps it.
 *
 * - Donated memory is a descriptor that the broker holds like that of any chunk
 *   of a device, so it outlives its sharer. Its bytes are charged as a whole.
 * - Memory of legacy IPC (cuda/ipc.h) is a handle in the catalog. It lives as
 *   long as the sharer does, and is charged to no account. When the sharer's
 *   session ends, its tensors lose their names and tickets and are tainted:
 *   their holders see that in the state table, and no other session can get
 *   them any more.
 *
 * If the same session shares the same allocation again for the same class, it
 * gets the same chunk. Donated memory is only recognised by its open file, so
 * libfsdp keeps its descriptor and sends it again (cuda/vmm.h).
 */
#pragma once
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct store;
struct device;
struct error;
struct pools;
struct holdings;

/* The memory to be shared. */
struct share {
	struct holdings *holdings; /* of the session that shares the memory */
	const struct device *device;
	struct access_class access; /* with the real uid */
	uint64_t size;
	const uint8_t *handle; /* MESSAGE_HANDLE_SIZE; NULL: donated */
	int fd;                /* borrowed; only for donated memory */
};

/*
 * Returns the chunk of the memory, and makes it if there is none. The results
 * are those of pool_alloc(), with POOL_WAIT and POOL_FULL, and -EDQUOT. A new
 * chunk has no block; if the caller does not make one, it must call
 * shared_chunk_give_up().
 */
int shared_chunk_get(struct pools *pools, const struct share *share,
		     uint32_t *ret_index, struct error *err);
/* Frees the chunk if it has no block, after a failure. */
void shared_chunk_give_up(struct pools *pools, uint32_t index);

/* Makes a block of the chunk, inside of it and without slots. The caller
 * ensured a free record. */
uint32_t shared_chunk_block(struct pools *pools, uint32_t index,
			    uint64_t offset, uint64_t size, uint32_t uid);

/* Copies the handle of a chunk of legacy IPC, for a peer. -EOWNERDEAD: the
 * session that shared it has ended. */
int shared_chunk_handle(const struct pools *pools, uint32_t index,
			uint8_t ret[MESSAGE_HANDLE_SIZE], struct error *err);

/* Checks that the slot may still be given to sessions. -EOWNERDEAD: the session
 * that shared its memory has ended. */
int shared_chunk_check(const struct store *store, uint32_t slot,
		       struct error *err);

/* Ends the sharing of all memory that an ended session shared. Commits in
 * steps. `left` is the number of tensors that it may end; records that it looks
 * at count, too. If it is 0 afterwards, there may be more: call it again. */
void shared_chunk_end_session(struct holdings *holdings, uint32_t *left);
