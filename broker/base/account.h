/*
 * Accounts: what the broker keeps for each user, and the limits.
 *
 * A user is charged before the broker keeps something on its behalf, and
 * refunded when it is freed. Accounts are volatile; a restart charges again
 * what it adopts.
 */
#pragma once
#include "broker/base/evict_ring.h"
#include <stdbool.h>
#include <stdint.h>

struct config;
struct error;
struct peer;

enum account_kind {
	ACCOUNT_BYTES,        /* of live blocks of host memory, and of boards */
	ACCOUNT_DEVICE_BYTES, /* the same on all devices */
	ACCOUNT_SLOTS,
	ACCOUNT_SESSIONS,
	ACCOUNT_WAITING, /* parked requests */
	ACCOUNT_QUEUE,   /* bytes of queued and recorded replies */
	ACCOUNT_PREFIXES,
	ACCOUNT_CHUNKS, /* of pools of this uid; each costs a descriptor */
	ACCOUNT_GRANTS,
	ACCOUNT_REFS, /* bytes of ref-counter files */
	ACCOUNT_TICKETS,
	ACCOUNT_BUNDLES,   /* versions of bundles */
	ACCOUNT_GROUPS,    /* kept groups of communicators */
	ACCOUNT_TIMELINES, /* timeline files; each costs a descriptor */
	ACCOUNT_N
};

struct account {
	uint32_t uid;
	uint64_t used[ACCOUNT_N];
	/* Bytes of the chunks of its pools: in host memory, on devices. */
	uint64_t chunk_size[2];
	bool is_sealing; /* a thread seals a chunk of this user */
	/* Evictable tensors charged to it: in host memory, on devices. */
	struct evict_ring evictable[2];
	bool is_listing; /* a manifest of this user is being made */
	/* Retired versions of bundles that are still being swept. */
	uint32_t n_going;
	/* Connections that the broker does not read for now, see peer.c; the
	 * first is the next to be read. */
	struct peer *first_paused, *last_paused;
	uint32_t n_peers;
	/* The time that the loop has spent on its requests in this
	 * iteration. */
	uint64_t iteration, iteration_ns;
	/* It has used its share of this iteration, and is in
	 * sessions.postponed. */
	bool is_postponed;
	struct account *next_postponed;
	struct account *next; /* next in the chain of accounts.buckets */
};

#define ACCOUNT_BUCKETS 256

struct accounts {
	const struct config *config;
	struct account *buckets[ACCOUNT_BUCKETS]; /* by uid */
};

void accounts_init(struct accounts *accounts, const struct config *config);
void accounts_deinit(struct accounts *accounts);

/* Find the account of a uid; it is made on first use. NULL means that memory
 * ran out. The account stays valid as long as `accounts`. */
struct account *accounts_get(struct accounts *accounts, uint32_t uid);

/* Return what all users together are charged. */
uint64_t accounts_total(const struct accounts *accounts,
			enum account_kind kind);

uint64_t account_limit(const struct accounts *accounts,
		       const struct account *account, enum account_kind kind);

/* Return the amount that may still be charged. */
uint64_t account_left(const struct accounts *accounts,
		      const struct account *account, enum account_kind kind);

/* -EDQUOT with a message about the used, requested and allowed amounts. */
int account_charge(const struct accounts *accounts, struct account *account,
		   enum account_kind kind, uint64_t amount, struct error *err);
/* Charge what exists already, regardless of the limit, during adoption. */
void account_charge_adopted(struct account *account, enum account_kind kind,
			    uint64_t amount);
/* Do the same for the account of a uid. -ENOMEM. */
int accounts_charge_adopted(struct accounts *accounts, uint32_t uid,
			    enum account_kind kind, uint64_t amount,
			    struct error *err);
void account_refund(struct account *account, enum account_kind kind,
		    uint64_t amount);
