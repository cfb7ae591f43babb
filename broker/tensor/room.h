/*
 * Room: the memory and the charges that new tensors need, which are taken
 * together or not at all; or only charges, for memory that is made elsewhere
 * (boards). All requests for memory follow the same policy: a request that can
 * never fit is refused; otherwise tensors are collected whose last use has
 * ended, then evictable ones are dropped, and after that the caller may wait.
 */
#pragma once
#include "broker/memory/pool.h"
#include <stdint.h>

struct store;
struct error;
struct holdings;

struct room {
	struct store *store;
	/* the account to charge for the bytes and the slots */
	struct account *account;
	/* The session whose budget is charged for the bytes, too; NULL: there
	 * is none. */
	struct holdings *holdings;
	/* The sum of pool_block_size() of blocks.sizes, and the number of
	 * slots. */
	uint64_t charge;
	uint32_t n_slots;
	struct pool_request blocks; /* n is 0: only charges are taken */
};

/*
 * Takes the memory and the charges. POOL_OK: everything is charged, the catalog
 * has free records for the slots, and the blocks are in `ret_blocks`.
 * POOL_WAIT: memory is being made or freed; call again after wake_room().
 * POOL_FULL: there is no room now, for the reason in `err`; a call after
 * wake_room() may succeed. Negative: the request can never fit, or an error
 * occurred. Commits: call it before the request changes anything.
 */
int room_take(const struct room *room, uint32_t *ret_blocks, struct error *err);

/* Refunds all charges. The caller releases the blocks. */
void room_refund(const struct room *room);
