/*
 * Grants: the broker's half of a session's count of holds on a slot.
 *
 * A record is linked in three places: the hash of (session, slot); the
 * session's list, until the session ends; and the slot's list, while the
 * generation is that of the slot. Reclaiming a slot therefore visits only the
 * sessions that may hold this very tensor.
 */
#include "broker/tensor/grant.h"
#include "broker/tensor/store.h"
#include "broker/tensor/timeline_file.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <stddef.h>

#define SLOT_LINK    offsetof(struct grant_record, slot_link)
#define SESSION_LINK offsetof(struct grant_record, session_link)

static uint32_t *bucket(const struct store *store, uint32_t session,
			uint32_t slot)
{
	/* Neighbouring slots of a session have neighbouring buckets: a bundle
	 * of 1,000 members touches 63 cache lines and one or two pages instead
	 * of 1,000. The multiplier (2^64 divided by the golden ratio) separates
	 * the sessions. */
	uint64_t base = (uint64_t)session * UINT64_C(0x9e3779b97f4a7c15) >> 32;

	return catalog_bucket(&store->catalog, HASH_GRANT, base + slot);
}

/* Finds a grant of (session, slot), also a record that is kept for the slot's
 * next generation. */
static uint32_t find_any(const struct store *store, uint32_t session,
			 uint32_t slot)
{
	const struct grant_record *record;
	uint32_t grant = *bucket(store, session, slot);

	while (grant) {
		record = catalog_grant(&store->catalog, grant);
		if (record->session == session && record->slot == slot)
			return grant;
		grant = record->hash_next;
	}
	return 0;
}

static bool is_linked(const struct store *store,
		      const struct grant_record *record)
{
	const struct slot_record *slot =
		catalog_slot(&store->catalog, record->slot);

	return slot->block && record->generation == slot->generation;
}

uint32_t grant_find(const struct store *store, uint32_t session, uint32_t slot)
{
	uint32_t grant = find_any(store, session, slot);

	if (!grant || !is_linked(store, catalog_grant(&store->catalog, grant)))
		return 0;
	return grant;
}

/* Charges the page of the session's ref-counter file that has the slot's entry,
 * with the first grant in it. Client and broker will touch the entry, and the
 * page lives as long as the file. */
static void charge_page(struct holdings *holdings, uint32_t slot)
{
	uint32_t page = refs_page(slot);
	uint64_t bit = UINT64_C(1) << page % 64;

	if (holdings->ref_pages[page / 64] & bit)
		return;
	holdings->ref_pages[page / 64] |= bit;
	holdings->n_ref_pages++;
	account_charge_adopted(holdings->account, ACCOUNT_REFS,
			       refs_page_size());
}

void grant_adopt_all(struct store *store)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_GRANT);
	const struct grant_record *record;

	for (uint32_t i = 1; i <= n; i++) {
		record = catalog_grant(catalog, i);
		if (record->session)
			charge_page(store->holdings[record->session],
				    record->slot);
	}
}

static uint32_t make(struct store *store, uint32_t session, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	uint32_t *head = bucket(store, session, slot);
	uint32_t grant = catalog_alloc(catalog, SECTION_GRANT);
	struct grant_record *record;

	if (!grant)
		return 0;
	account_charge_adopted(store->holdings[session]->account,
			       ACCOUNT_GRANTS, 1);
	charge_page(store->holdings[session], slot);
	record = catalog_grant(catalog, grant);
	record->session = session;
	record->slot = slot;
	record->hash_next = *head;
	catalog_set(catalog, *head, grant);
	catalog_list_append(catalog, &catalog_session(catalog, session)->grants,
			    SECTION_GRANT, SESSION_LINK, grant);
	return grant;
}

static void link_to_slot(struct store *store, uint32_t grant)
{
	struct catalog *catalog = &store->catalog;
	struct grant_record *record = catalog_grant(catalog, grant);
	struct slot_record *slot = catalog_slot(catalog, record->slot);

	catalog_set(catalog, record->generation, slot->generation);
	catalog_list_append(catalog, &slot->grants, SECTION_GRANT, SLOT_LINK,
			    grant);
}

bool grant_add(struct store *store, uint32_t session, uint32_t slot, int32_t n)
{
	struct catalog *catalog = &store->catalog;
	uint32_t grant = find_any(store, session, slot);
	struct grant_record *record;

	if (!grant)
		grant = make(store, session, slot);
	if (!grant)
		return false;
	record = catalog_grant(catalog, grant);
	if (!is_linked(store, record))
		link_to_slot(store, grant);
	/* Both halves of a count grow without bound and may wrap; only their
	 * sum has a meaning, and it is small. */
	catalog_set(catalog, record->granted,
		    (int32_t)((uint32_t)record->granted + (uint32_t)n));
	failpoint("grant.added");
	return true;
}

/* Checks the quota for new pages: each grant may need one, up to the number of
 * all pages. */
static int check_pages(const struct holdings *holdings, uint32_t n,
		       struct error *err)
{
	const struct accounts *accounts = &holdings->store->base->accounts;
	const struct account *account = holdings->account;
	uint64_t missing = refs_n_pages() - holdings->n_ref_pages;
	uint64_t size = (n < missing ? n : missing) * refs_page_size();

	if (size <= account_left(accounts, account, ACCOUNT_REFS))
		return 0;
	return error_set(
		err, -EDQUOT,
		"the ref-counter files of uid %u have %llu bytes, and %llu "
		"more would exceed quota_refs (%llu): end sessions that have "
		"held many tensors, or have it raised",
		account->uid, (unsigned long long)account->used[ACCOUNT_REFS],
		(unsigned long long)size,
		(unsigned long long)account_limit(accounts, account,
						  ACCOUNT_REFS));
}

int grant_check_room(const struct holdings *holdings, uint32_t n,
		     struct error *err)
{
	const struct store *store = holdings->store;
	uint32_t capacity = catalog_capacity(SECTION_GRANT);
	uint32_t used = catalog_n_live(&store->catalog, SECTION_GRANT);
	int r;

	/* The grants that leases have still to make may all need new
	 * records. */
	if (used + store->n_leased > capacity ||
	    n > capacity - used - store->n_leased)
		return error_set(err, -ENOSPC,
				 "this node has %u of at most %u grants "
				 "(tensors times sessions that have had them); "
				 "end idle sessions",
				 used, capacity);
	r = account_charge(&store->base->accounts, holdings->account,
			   ACCOUNT_GRANTS, n, err);
	if (r < 0)
		return r;
	account_refund(holdings->account, ACCOUNT_GRANTS, n);
	return check_pages(holdings, n, err);
}

int64_t grant_holds(const struct store *store, uint32_t grant)
{
	const struct grant_record *record =
		catalog_grant(&store->catalog, grant);
	const struct holdings *holdings = store->holdings[record->session];
	int32_t sum;

	if (!holdings || !holdings->refs.entries)
		return INT64_MAX;
	sum = (int32_t)((uint32_t)record->granted +
			(uint32_t)refs_delta(&holdings->refs, record->slot));
	return sum > 0 ? sum : 0;
}

bool grant_peek_is_held(const struct store *store, uint32_t grant,
			struct refs_peek *peek)
{
	const struct grant_record *record =
		catalog_grant(&store->catalog, grant);
	const struct holdings *holdings = store->holdings[record->session];
	uint32_t delta;

	if (!holdings || !holdings->refs.entries)
		return true;
	delta = (uint32_t)refs_peek_delta(&holdings->refs, record->slot, peek);
	return (int32_t)((uint32_t)record->granted + delta) > 0;
}

bool grant_is_fenced(const struct store *store, uint32_t grant)
{
	const struct grant_record *record =
		catalog_grant(&store->catalog, grant);
	const struct holdings *holdings = store->holdings[record->session];
	uint32_t timeline;
	uint64_t value;

	if (!holdings || !holdings->refs.entries)
		return false;
	timeline = refs_fence(&holdings->refs, record->slot, &value);
	return timeline &&
	       !timeline_file_has_reached(holdings, timeline, value);
}

/* Releases a record that is no longer in its slot's list. */
static void destroy(struct store *store, uint32_t grant)
{
	struct catalog *catalog = &store->catalog;
	const struct grant_record *record = catalog_grant(catalog, grant);
	uint32_t session = record->session;
	uint32_t *hand = &store->holdings[session]->grant_hand;

	if (*hand == grant)
		*hand = record->session_link.next;
	catalog_chain_remove(catalog, SECTION_GRANT,
			     bucket(store, session, record->slot), grant);
	catalog_list_remove(catalog, &catalog_session(catalog, session)->grants,
			    SECTION_GRANT, SESSION_LINK, grant);
	catalog_release(catalog, SECTION_GRANT, grant);
	account_refund(store->holdings[session]->account, ACCOUNT_GRANTS, 1);
}

bool grant_drop(struct store *store, uint32_t grant)
{
	struct catalog *catalog = &store->catalog;
	struct grant_record *record = catalog_grant(catalog, grant);
	bool was_linked = is_linked(store, record);

	if (was_linked)
		catalog_list_remove(
			catalog, &catalog_slot(catalog, record->slot)->grants,
			SECTION_GRANT, SLOT_LINK, grant);
	destroy(store, grant);
	return was_linked;
}

void grant_drop_slot(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct list *grants = &catalog_slot(catalog, slot)->grants;
	struct grant_record *record;
	uint32_t grant;

	while (grants->first) {
		grant = grants->first;
		record = catalog_grant(catalog, grant);
		catalog_list_remove(catalog, grants, SECTION_GRANT, SLOT_LINK,
				    grant);
		if (!record->granted)
			destroy(store, grant);
		else
			catalog_set(catalog, record->generation, 0);
	}
}
