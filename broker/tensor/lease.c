/*
 * Leases: the fields in the session's record, and the chore that works them
 * off.
 */
#include "broker/tensor/lease.h"
#include "broker/base/account.h"
#include "broker/broker.h"
#include "broker/session/peer.h"
#include "broker/session/session.h"
#include "broker/session/waiter.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/grant.h"
#include "proto/point.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* Members granted in one step, and at most within the request itself. */
#define LEASE_STEP 64
#define LEASE_MIN  MESSAGE_MAX_ITEMS

bool lease_is_open(const struct session *session)
{
	return session_record(session)->lease_bundle != 0;
}

void lease_key(const struct session *session, char ret[LEASE_KEY_SIZE])
{
	/* No name begins with a slash. */
	snprintf(ret, LEASE_KEY_SIZE, "//lease/%" PRIu32, session->index);
}

/* Grant this member and return the next one. */
static uint32_t grant_one(struct session *session, uint32_t slot)
{
	struct broker *broker = session->broker;
	bool is_granted = grant_add(broker, session->index, slot, 1);

	assert(is_granted); /* the caller reserved capacity for it */
	return catalog_slot(&broker->catalog, slot)->bundle_link.next;
}

/* Reserve the capacity for grants that will be made later. */
static void reserve(struct session *session, uint32_t n)
{
	account_charge_adopted(session->account, ACCOUNT_GRANTS, n);
	session->broker->n_leased += n;
}

static void unreserve(struct session *session, uint32_t n)
{
	account_refund(session->account, ACCOUNT_GRANTS, n);
	session->broker->n_leased -= n;
}

static void grant_some(struct session *session, uint32_t n)
{
	struct catalog *catalog = &session->broker->catalog;
	struct session_record *record = session_record(session);
	uint32_t slot = record->lease_slot;
	uint32_t i;

	unreserve(session, n);
	for (i = 0; i < n; i++)
		slot = grant_one(session, slot);
	catalog_set(catalog, record->lease_slot, slot);
	catalog_set(catalog, record->lease_left, record->lease_left - n);
}

/* End the lease, complete or not, and return its version. */
static uint32_t close_lease(struct session *session)
{
	struct catalog *catalog = &session->broker->catalog;
	struct session_record *record = session_record(session);
	uint32_t bundle = record->lease_bundle;

	unreserve(session, record->lease_left);
	catalog_set(catalog, record->lease_bundle, 0);
	catalog_set(catalog, record->lease_slot, 0);
	catalog_set(catalog, record->lease_left, 0);
	return bundle;
}

static void end(struct session *session)
{
	struct broker *broker = session->broker;
	char key[LEASE_KEY_SIZE];

	chore_end(broker, &session->lease);
	bundle_unlease(broker, close_lease(session));
	point("lease.ended");
	catalog_commit(&broker->catalog);
	lease_key(session, key);
	wake_name(&broker->wake, key);
	if (session->peer)
		peer_on_granted(session->peer);
}

static bool step(void *data, uint32_t unused)
{
	struct session *session = data;
	uint32_t left = session_record(session)->lease_left;

	(void)unused;
	grant_some(session, left < LEASE_STEP ? left : LEASE_STEP);
	point("lease.step");
	catalog_commit(&session->broker->catalog);
	if (left > LEASE_STEP)
		return true;
	end(session);
	return false;
}

void lease_begin(struct session *session, uint32_t bundle)
{
	struct broker *broker = session->broker;
	struct catalog *catalog = &broker->catalog;
	const struct list *members = &catalog_bundle(catalog, bundle)->members;
	struct session_record *record = session_record(session);
	uint32_t slot = members->first;

	assert(!lease_is_open(session));
	if (members->n <= LEASE_MIN) {
		while (slot)
			slot = grant_one(session, slot);
		return;
	}
	catalog_set(catalog, record->lease_bundle, bundle);
	catalog_set(catalog, record->lease_slot, slot);
	catalog_set(catalog, record->lease_left, members->n);
	reserve(session, members->n);
	bundle_lease(broker, bundle);
	session->lease.step = step;
	session->lease.data = session;
	chore_begin(broker, &session->lease);
	point("lease.begun");
}

void lease_end_session(struct session *session)
{
	if (lease_is_open(session))
		end(session);
}

static void finish(struct session *session)
{
	const struct session_record *record = session_record(session);

	reserve(session, record->lease_left);
	while (record->lease_left > 0) {
		grant_some(session, 1);
		catalog_commit(&session->broker->catalog);
	}
	(void)close_lease(session);
	point("lease.adopted");
	catalog_commit(&session->broker->catalog);
}

void lease_adopt_all(struct broker *broker)
{
	for (uint32_t i = 1; i <= CATALOG_MAX_SESSIONS; i++) {
		if (broker->sessions[i] && lease_is_open(broker->sessions[i]))
			finish(broker->sessions[i]);
	}
}
