/*
 * Shared chunks: device memory that a process had already, and shared.
 *
 * Such a chunk is one allocation of that process, its sharer. It has no arena:
 * its blocks are what the sharer says, and may overlap. It goes with its last
 * block. The broker neither opens nor maps it.
 *
 * - Donated memory is a descriptor that the broker holds as that of any chunk
 *   of a device, so it outlives its sharer; its bytes are charged, as a whole.
 * - Memory of legacy IPC (cuda/ipc.h) is a handle in the catalog. It lives as
 *   long as the sharer does, is charged to nobody, and when the sharer's
 * session ends its tensors lose their names and tickets and are tainted: their
 *   holders see it in the state table, and nobody else gets them any more.
 *
 * The same allocation, shared again by the same session for the same class, is
 * the same chunk. Of donated memory only the same open file is known to be so,
 * so libfsdp keeps its descriptor and sends it again (cuda/vmm.h).
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

/* What is to be shared. */
struct share {
	struct holdings *holdings; /* of the session that shares it */
	const struct device *device;
	struct access_class access; /* with the real uid */
	uint64_t size;
	const uint8_t *handle; /* MESSAGE_HANDLE_SIZE; NULL: donated */
	int fd;                /* borrowed; of donated memory */
};

/*
 * The chunk of that memory, made if there is none. As pool_alloc(), also for
 * POOL_WAIT and POOL_FULL; -EDQUOT. A new one has no block and is the caller's
 * to give up.
 */
int shared_chunk_get(struct pools *pools, const struct share *share,
		     uint32_t *ret_index, struct error *err);
/* Nothing came of it: it goes if it has no block. */
void shared_chunk_give_up(struct pools *pools, uint32_t index);

/* A block of it (no slots yet), inside of it; there is a record for it. */
uint32_t shared_chunk_block(struct pools *pools, uint32_t index,
			    uint64_t offset, uint64_t size, uint32_t uid);

/* The handle of one of legacy IPC, for a peer. -EOWNERDEAD: its sharer's
 * session has ended. */
int shared_chunk_handle(const struct pools *pools, uint32_t index,
			uint8_t ret[MESSAGE_HANDLE_SIZE], struct error *err);

/* May the slot be handed on? -EOWNERDEAD likewise. */
int shared_chunk_check(const struct store *store, uint32_t slot,
		       struct error *err);

/* What the session shared is shared by nobody now. Commits in steps. `left`:
 * how many tensors it may end; 0 afterwards: there may be more, call it again.
 */
void shared_chunk_end_session(struct store *store, uint32_t session,
			      uint32_t *left);
