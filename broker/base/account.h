/*
 * Accounts: the data that the broker keeps for each user, and the limits.
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
struct pool_work;

enum account_kind {
	/* bytes of live blocks of host memory and of boards */
	ACCOUNT_BYTES,
	ACCOUNT_DEVICE_BYTES, /* bytes of live blocks on all devices */
	ACCOUNT_SLOTS,
	ACCOUNT_SESSIONS,
	ACCOUNT_WAITING, /* parked requests */
	ACCOUNT_QUEUE,   /* bytes of queued and recorded replies */
	ACCOUNT_PREFIXES,
	/* chunks of pools of this uid; each needs a descriptor */
	ACCOUNT_CHUNKS,
	ACCOUNT_GRANTS,
	ACCOUNT_REFS, /* bytes of ref-counter files */
	ACCOUNT_TICKETS,
	ACCOUNT_BUNDLES,   /* versions of bundles */
	ACCOUNT_GROUPS,    /* kept groups of communicators, and channels */
	ACCOUNT_TIMELINES, /* timeline files; each needs a descriptor */
	ACCOUNT_N
};

struct peer_list {
	struct peer *first, *last;
};

struct account {
	uint32_t uid;
	uint64_t used[ACCOUNT_N];
	/* The bytes of the chunks of its pools: in host memory, on devices. */
	uint64_t chunk_size[2];
	/* The number of works on its memory that are on threads, the bytes of
	 * the chunks of all works that are not late, and the works that wait
	 * (memory/pool_work.c). */
	uint32_t n_works;
	uint64_t work_size;
	struct pool_work *first_work, *last_work;
	/* The evictable tensors that are charged to it: in host memory, on
	 * devices. */
	struct evict_ring evictable[2];
	bool is_listing; /* a manifest of this user is being made */
	/* The number of retired versions of bundles that are still being
	 * swept. */
	uint32_t n_going;
	/* The connections that are not read until descriptors of the user are
	 * closed, and those that are not watched until other users have had
	 * their turn (session/peer.c); the first is the next to be read. */
	struct peer_list unread, late;
	uint32_t n_peers;
	/* The time that the loop has spent on its requests in this
	 * iteration. */
	uint64_t iteration, iteration_ns;
	/* The user has used its share of this iteration, and is in
	 * sessions.postponed. */
	bool is_postponed;
	struct account *next_postponed;
	struct account *next; /* next in the chain of accounts.buckets */
};

#define ACCOUNT_BUCKETS 256

struct accounts {
	const struct config *config;
	struct account *buckets[ACCOUNT_BUCKETS]; /* hashed by uid */
};

void accounts_init(struct accounts *accounts, const struct config *config);
void accounts_deinit(struct accounts *accounts);

/* Finds the account of a uid, and makes it on first use. NULL means that memory
 * ran out. The account stays valid as long as `accounts`. */
struct account *accounts_get(struct accounts *accounts, uint32_t uid);

/* Returns the amount that all users together are charged. */
uint64_t accounts_total(const struct accounts *accounts,
			enum account_kind kind);

/* Returns UINT64_MAX if there is no limit. */
uint64_t account_limit(const struct accounts *accounts,
		       const struct account *account, enum account_kind kind);

/* Returns the amount that may still be charged. */
uint64_t account_left(const struct accounts *accounts,
		      const struct account *account, enum account_kind kind);

/* Charges the account. -EDQUOT: the limit would be exceeded; the message has
 * the used, requested and allowed amounts. */
int account_charge(const struct accounts *accounts, struct account *account,
		   enum account_kind kind, uint64_t amount, struct error *err);
/* Charges an object that exists already, regardless of the limit, during
 * adoption. */
void account_charge_adopted(struct account *account, enum account_kind kind,
			    uint64_t amount);
/* Does the same for the account of a uid. -ENOMEM. */
int accounts_charge_adopted(struct accounts *accounts, uint32_t uid,
			    enum account_kind kind, uint64_t amount,
			    struct error *err);
void account_refund(struct account *account, enum account_kind kind,
		    uint64_t amount);
/* Does the same for the account of a uid, which was charged, so it exists. */
void accounts_refund(struct accounts *accounts, uint32_t uid,
		     enum account_kind kind, uint64_t amount);
