/*
 * Leases: the fields in the session's record, and the chore that makes the
 * grants.
 */
#include "broker/tensor/lease.h"
#include "broker/base/account.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/bundle_end.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/holdings.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* The number of members granted in one step, and the maximum within the request
 * itself. */
#define LEASE_STEP 64
#define LEASE_MIN  MESSAGE_MAX_ITEMS

bool lease_is_open(const struct holdings *holdings)
{
	return holdings_record(holdings)->lease_bundle != 0;
}

void lease_key(const struct holdings *holdings, char ret[LEASE_KEY_SIZE])
{
	/* This cannot be a name, since no name begins with a slash. */
	snprintf(ret, LEASE_KEY_SIZE, "//lease/%" PRIu32, holdings->index);
}

/* Grants this member and returns the next one. */
static uint32_t grant_one(struct holdings *holdings, uint32_t slot)
{
	struct store *store = holdings->store;
	bool is_granted = grant_add(store, holdings->index, slot, 1);

	assert(is_granted); /* the caller reserved capacity for it */
	return catalog_slot(&store->catalog, slot)->bundle_link.next;
}

/* Reserves the capacity for grants that will be made later. */
static void reserve(struct holdings *holdings, uint32_t n)
{
	account_charge_adopted(holdings->account, ACCOUNT_GRANTS, n);
	holdings->store->n_leased += n;
}

static void unreserve(struct holdings *holdings, uint32_t n)
{
	account_refund(holdings->account, ACCOUNT_GRANTS, n);
	holdings->store->n_leased -= n;
}

static void grant_some(struct holdings *holdings, uint32_t n)
{
	struct catalog *catalog = &holdings->store->catalog;
	struct session_record *record = holdings_record(holdings);
	uint32_t slot = record->lease_slot;
	uint32_t i;

	unreserve(holdings, n);
	for (i = 0; i < n; i++)
		slot = grant_one(holdings, slot);
	catalog_set(catalog, record->lease_slot, slot);
	catalog_set(catalog, record->lease_left, record->lease_left - n);
}

/* Ends the lease, complete or not, and returns its version. */
static uint32_t close_lease(struct holdings *holdings)
{
	struct catalog *catalog = &holdings->store->catalog;
	struct session_record *record = holdings_record(holdings);
	uint32_t bundle = record->lease_bundle;

	unreserve(holdings, record->lease_left);
	catalog_set(catalog, record->lease_bundle, 0);
	catalog_set(catalog, record->lease_slot, 0);
	catalog_set(catalog, record->lease_left, 0);
	return bundle;
}

static void end(struct holdings *holdings)
{
	struct store *store = holdings->store;
	char key[LEASE_KEY_SIZE];

	chore_end(store, &holdings->lease);
	bundle_unlease(store, close_lease(holdings));
	failpoint("lease.ended");
	catalog_commit(&store->catalog);
	lease_key(holdings, key);
	wake_name(&store->base->wake, key);
	holdings->on_granted(holdings);
}

static bool step(void *data, uint32_t unused)
{
	struct holdings *holdings = data;
	uint32_t left = holdings_record(holdings)->lease_left;

	(void)unused;
	grant_some(holdings, left < LEASE_STEP ? left : LEASE_STEP);
	failpoint("lease.step");
	catalog_commit(&holdings->store->catalog);
	if (left > LEASE_STEP)
		return true;
	end(holdings);
	return false;
}

void lease_begin(struct holdings *holdings, uint32_t bundle)
{
	struct store *store = holdings->store;
	struct catalog *catalog = &store->catalog;
	const struct list *members = &catalog_bundle(catalog, bundle)->members;
	struct session_record *record = holdings_record(holdings);
	uint32_t slot = members->first;

	assert(!lease_is_open(holdings));
	if (members->n <= LEASE_MIN) {
		while (slot)
			slot = grant_one(holdings, slot);
		return;
	}
	catalog_set(catalog, record->lease_bundle, bundle);
	catalog_set(catalog, record->lease_slot, slot);
	catalog_set(catalog, record->lease_left, members->n);
	reserve(holdings, members->n);
	bundle_lease(store, bundle);
	holdings->lease.step = step;
	holdings->lease.data = holdings;
	chore_begin(store, &holdings->lease);
	failpoint("lease.begun");
}

void lease_end_session(struct holdings *holdings)
{
	if (lease_is_open(holdings))
		end(holdings);
}

static void finish(struct holdings *holdings)
{
	const struct session_record *record = holdings_record(holdings);

	reserve(holdings, record->lease_left);
	while (record->lease_left > 0) {
		grant_some(holdings, 1);
		catalog_commit(&holdings->store->catalog);
	}
	(void)close_lease(holdings);
	failpoint("lease.adopted");
	catalog_commit(&holdings->store->catalog);
}

void lease_adopt_all(struct store *store)
{
	for (uint32_t i = 1; i <= CATALOG_MAX_SESSIONS; i++) {
		if (store->holdings[i] && lease_is_open(store->holdings[i]))
			finish(store->holdings[i]);
	}
}
