/*
 * Room: the memory and the charges that new tensors need, taken together or not
 * at all; or only charges, for memory that is made elsewhere (boards). This is
 * the one policy of trying: a request that can never fit is refused; then
 * tensors are collected whose last use has ended, then evictable ones are
 * dropped, and after that the caller may wait.
 */
#pragma once
#include "broker/memory/pool.h"
#include <stdint.h>

struct store;
struct error;
struct holdings;

struct room {
	struct store *store;
	struct account *account; /* charged for the bytes and the slots */
	/* The session whose budget pays for the bytes, too; NULL: none. */
	struct holdings *holdings;
	/* What blocks.sizes come to (pool_block_size()), and how many slots. */
	uint64_t charge;
	uint32_t n_slots;
	struct pool_request blocks; /* n is 0: none are to be made */
};

/*
 * POOL_OK: all is charged, the catalog has places for the slots, and the blocks
 * are in `ret_blocks`. POOL_WAIT: memory is being made or freed for it; try
 * again after wake_room(). POOL_FULL: there is no room now, for the reason in
 * `err`; trying again after wake_room() may help. Negative: it can never fit.
 * Commits: call it before the request changes anything.
 */
int room_take(const struct room *room, uint32_t *ret_blocks, struct error *err);

/* Refund all charges. The caller releases the blocks. */
void room_refund(const struct room *room);
