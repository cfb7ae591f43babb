/*
 * Storage: the order of trying for room, as alloc has it (verbs/alloc.c), for
 * one block that no session makes.
 */
#include "broker/tensor/storage.h"
#include "broker/memory/pool.h"
#include "broker/tensor/limbo.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/point.h"
#include <errno.h>
#include <inttypes.h>

struct attempt {
	struct store *store;
	const struct storage_request *request;
	struct account *account;
	enum account_kind kind;
	uint64_t size, charge;
};

/* --- room ---------------------------------------------------------------- */

static int check_limits(const struct attempt *attempt, struct error *err)
{
	uint64_t quota = account_limit(&attempt->store->base->accounts,
				       attempt->account, attempt->kind);

	if (attempt->charge <= quota)
		return 0;
	return error_set(err, -EDQUOT,
			 "%" PRIu64 " bytes are more than the whole quota of "
			 "uid %" PRIu32 ", %" PRIu64,
			 attempt->charge, attempt->request->uid, quota);
}

static bool catalog_has_room(const struct attempt *attempt, struct error *err)
{
	const struct catalog *catalog = &attempt->store->catalog;

	if (catalog_n_live(catalog, SECTION_SLOT) <
		    catalog_capacity(SECTION_SLOT) &&
	    catalog_n_live(catalog, SECTION_BLOCK) <
		    catalog_capacity(SECTION_BLOCK))
		return true;
	error_set(err, -ENOSPC,
		  "this node has as many tensors as it can have; one more does "
		  "not fit until some are released");
	return false;
}

static bool charge(const struct attempt *attempt, struct error *err)
{
	const struct accounts *accounts = &attempt->store->base->accounts;

	if (account_charge(accounts, attempt->account, attempt->kind,
			   attempt->charge, err) < 0)
		return false;
	if (account_charge(accounts, attempt->account, ACCOUNT_SLOTS, 1, err) ==
	    0)
		return true;
	account_refund(attempt->account, attempt->kind, attempt->charge);
	return false;
}

static void refund(const struct attempt *attempt)
{
	account_refund(attempt->account, attempt->kind, attempt->charge);
	account_refund(attempt->account, ACCOUNT_SLOTS, 1);
}

/* Charged and with a block, or neither: as storage_make(). */
static int try_once(const struct attempt *attempt, uint32_t *ret_block,
		    struct error *err)
{
	struct pools *pools = &attempt->store->pools;
	struct pool_request request = {
		.access = attempt->request->access,
		.device = attempt->request->device,
		.n = 1,
		.sizes = &attempt->size,
		.uid = attempt->request->uid,
	};
	int r;

	/* First what no release will mend. */
	r = pool_could_fit(pools, &request, err);
	if (r != 0)
		return r;
	if (!catalog_has_room(attempt, err) || !charge(attempt, err))
		return POOL_FULL;
	r = pool_alloc(pools, &request, ret_block, err);
	if (r != POOL_OK)
		refund(attempt);
	return r;
}

/* What is charged to the user helps against his quota, and where it is memory
 * that is short, anybody's does. */
static enum evict_outcome make_room(const struct attempt *attempt)
{
	struct store *store = attempt->store;
	const struct storage_request *request = attempt->request;
	uint64_t left = account_left(&store->base->accounts, attempt->account,
				     attempt->kind);

	if (attempt->charge > left)
		return evict(store, attempt->charge - left, &request->device,
			     &request->uid);
	return evict(store, attempt->charge, &request->device, NULL);
}

static int try_hard(const struct attempt *attempt, uint32_t *ret_block,
		    struct error *err)
{
	int r = try_once(attempt, ret_block, err);

	if (r != POOL_FULL || !attempt->request->may_evict)
		return r;
	if (limbo_collect_released(attempt->store))
		r = try_once(attempt, ret_block, err);
	/* If there is more to evict, the caller is woken when it may go on. */
	if (r == POOL_FULL && make_room(attempt) == EVICT_SOME)
		r = try_once(attempt, ret_block, err);
	/* What a large bundle had is coming back. */
	if (r == POOL_FULL && attempt->account->n_going)
		return POOL_WAIT;
	return r;
}

/* --- making -------------------------------------------------------------- */

static int make_slot(const struct attempt *attempt, uint32_t block,
		     uint32_t *ret_slot, struct error *err)
{
	struct store *store = attempt->store;
	struct tensor_type type = {
		.dtype = DTYPE_U8,
		.n_dims = 1,
		.shape = {(int64_t)attempt->size},
	};
	uint32_t slot;

	tensor_type_contiguous(&type);
	slot = slot_new(store, block, 0, attempt->size, &type, "", 0,
			attempt->request->uid);
	if (!slot) {
		refund(attempt);
		pool_release(&store->pools, block);
		catalog_commit(&store->catalog);
		return error_set(err, -ENOSPC,
				 "the catalog has no room for one more tensor");
	}
	slot_pin(store, slot);
	(void)slot_settle(store, slot); /* pinned: it stays */
	point("storage.made");
	catalog_commit(&store->catalog);
	*ret_slot = slot;
	return POOL_OK;
}

int storage_make(struct store *store, const struct storage_request *request,
		 uint32_t *ret_slot, struct error *err)
{
	uint64_t size = request->size ? request->size : 1;
	struct attempt attempt = {
		.store = store,
		.request = request,
		.account = accounts_get(&store->base->accounts, request->uid),
		.kind = pool_account(&request->device),
		.size = size,
		.charge = pool_block_size(size, &request->device),
	};
	uint32_t block = 0;
	int r;

	if (!attempt.account)
		return error_nomem(err, "an account");
	r = check_limits(&attempt, err);
	if (r == 0)
		r = try_hard(&attempt, &block, err);
	if (r != POOL_OK)
		return r;
	return make_slot(&attempt, block, ret_slot, err);
}
