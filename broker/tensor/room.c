/*
 * The policy by which requests get memory.
 */
#include "broker/tensor/room.h"
#include "broker/tensor/collect.h"
#include "broker/tensor/evict.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>

/* An outcome in addition to enum pool_outcome: the request is above budget or
 * quota. */
#define OVER_LIMIT 3

static uint64_t budget_of(const struct room *room)
{
	return room->holdings ? holdings_record(room->holdings)->budget : 0;
}

static enum account_kind kind_of(const struct room *room)
{
	return pool_account(&room->blocks.device);
}

/* --- charges ------------------------------------------------------------- */

/* Checks that the charges are possible if nothing else is charged. */
static int check_limits(const struct room *room, struct error *err)
{
	const struct accounts *accounts = &room->store->base->accounts;
	uint64_t budget = budget_of(room);
	uint64_t quota = account_limit(accounts, room->account, kind_of(room));
	uint64_t max_slots =
		account_limit(accounts, room->account, ACCOUNT_SLOTS);

	if (budget && room->charge > budget)
		return error_set(err, -EDQUOT,
				 "%" PRIu64 " bytes are more than the "
				 "session's whole budget of %" PRIu64
				 ": ask for less, or for a larger budget",
				 room->charge, budget);
	if (room->charge > quota)
		return error_set(err, -EDQUOT,
				 "%" PRIu64 " bytes are more than the whole "
				 "quota of uid %" PRIu32 ", %" PRIu64
				 ": ask for less, or have the quota raised",
				 room->charge, room->account->uid, quota);
	if (room->n_slots > max_slots)
		return error_set(err, -EDQUOT,
				 "%" PRIu32 " tensors are more than the whole "
				 "quota of uid %" PRIu32 ", %" PRIu64
				 ": ask for less, or have the quota raised",
				 room->n_slots, room->account->uid, max_slots);
	return 0;
}

static uint64_t used_of(const struct room *room)
{
	return room->holdings ? room->holdings->n_bytes : 0;
}

static bool is_over_budget(const struct room *room)
{
	uint64_t budget = budget_of(room), used = used_of(room);

	return budget && room->charge > 0 &&
	       (used > budget || room->charge > budget - used);
}

static int charge(const struct room *room, struct error *err)
{
	const struct accounts *accounts = &room->store->base->accounts;
	int r;

	if (is_over_budget(room))
		return error_set(err, -EDQUOT,
				 "the session has %" PRIu64 " of its budget of "
				 "%" PRIu64 " bytes in use; %" PRIu64
				 " more do not fit until some are released",
				 used_of(room), budget_of(room), room->charge);
	r = account_charge(accounts, room->account, kind_of(room), room->charge,
			   err);
	if (r < 0)
		return r;
	r = account_charge(accounts, room->account, ACCOUNT_SLOTS,
			   room->n_slots, err);
	if (r < 0) {
		account_refund(room->account, kind_of(room), room->charge);
		return r;
	}
	if (room->holdings)
		room->holdings->n_bytes += room->charge;
	return 0;
}

void room_refund(const struct room *room)
{
	account_refund(room->account, kind_of(room), room->charge);
	account_refund(room->account, ACCOUNT_SLOTS, room->n_slots);
	if (room->holdings)
		room->holdings->n_bytes -= room->charge;
}

/* --- trying -------------------------------------------------------------- */

static bool catalog_has_room(const struct room *room, struct error *err)
{
	const struct catalog *catalog = &room->store->catalog;

	return catalog_check_room(catalog, SECTION_SLOT, room->n_slots,
				  "tensors", err) == 0 &&
	       catalog_check_room(catalog, SECTION_BLOCK, room->blocks.n,
				  "blocks", err) == 0;
}

/* Charges and makes the blocks, or does neither. Returns as room_take(), or
 * OVER_LIMIT. */
static int try_once(const struct room *room, uint32_t *ret_blocks,
		    struct error *err)
{
	struct pools *pools = &room->store->pools;
	int r = 0;

	/* This check comes first, since a request that can never fit should not
	 * wait for a quota. */
	if (room->blocks.n)
		r = pool_could_fit(pools, &room->blocks, err);
	if (r != 0)
		return r;
	if (!catalog_has_room(room, err))
		return POOL_FULL;
	if (charge(room, err) < 0)
		return OVER_LIMIT;
	if (!room->blocks.n)
		return POOL_OK;
	r = pool_alloc(pools, &room->blocks, ret_blocks, err);
	if (r != POOL_OK)
		room_refund(room);
	/* The quota of chunks is exceeded: the caller waits as for other
	 * quotas. */
	return r == -EDQUOT ? OVER_LIMIT : r;
}

static bool is_short(int outcome)
{
	return outcome == POOL_FULL || outcome == OVER_LIMIT;
}

/* Returns the bytes above the quota; 0: another limit is exceeded. */
static uint64_t bytes_over_quota(const struct room *room)
{
	uint64_t left = account_left(&room->store->base->accounts,
				     room->account, kind_of(room));

	return room->charge > left ? room->charge - left : 0;
}

/* Evicts, and tries again if that has freed memory. */
static int try_evicting(const struct room *room, uint64_t bytes,
			const uint32_t *uid, int outcome, uint32_t *ret_blocks,
			struct error *err)
{
	switch (evict(room->store, bytes, &room->blocks.device, uid)) {
	case EVICT_SOME:
		return try_once(room, ret_blocks, err);
	case EVICT_MORE:
		return POOL_WAIT;
	default:
		return outcome;
	}
}

/* Asks collectives to release idle memory. All sessions may use that memory,
 * except one that has used up its own budget. */
static void ask_for_idle(const struct room *room, int outcome)
{
	const struct wake *wake = &room->store->base->wake;

	if (!device_uuid_is_host(&room->blocks.device) ||
	    (outcome == OVER_LIMIT && is_over_budget(room)))
		return;
	wake_short(wake, outcome == OVER_LIMIT ? &room->account->uid : NULL);
}

int room_take(const struct room *room, uint32_t *ret_blocks, struct error *err)
{
	int r = check_limits(room, err);

	if (r < 0)
		return r;
	r = try_once(room, ret_blocks, err);
	if (is_short(r) && collect_released(room->store))
		r = try_once(room, ret_blocks, err);
	/* Only tensors that are charged to the user relieve its quota. */
	if (r == OVER_LIMIT)
		r = try_evicting(room, bytes_over_quota(room),
				 &room->account->uid, r, ret_blocks, err);
	if (r == POOL_FULL)
		r = try_evicting(room, room->charge, NULL, r, ret_blocks, err);
	if (!is_short(r))
		return r;
	/* The memory of a large bundle of this user is still being freed. */
	if (room->account->n_going)
		return POOL_WAIT;
	ask_for_idle(room, r);
	return POOL_FULL;
}
