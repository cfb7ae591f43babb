/*
 * What each user makes the broker keep, and how much it may.
 *
 * Whoever causes something to be kept is charged before it is; freeing
 * refunds. Accounts live on the heap; a restart charges again what it adopts.
 */
#pragma once
#include "broker/evict.h"
#include <stdbool.h>
#include <stdint.h>

struct config;
struct error;

enum account_kind {
	ACCOUNT_BYTES,        /* of live blocks of host memory */
	ACCOUNT_DEVICE_BYTES, /* the same on all devices */
	ACCOUNT_SLOTS,
	ACCOUNT_SESSIONS,
	ACCOUNT_WAITING, /* parked requests */
	ACCOUNT_QUEUE,   /* bytes of queued and remembered replies */
	ACCOUNT_PREFIXES,
	ACCOUNT_CHUNKS, /* of pools of this uid: each costs a descriptor */
	ACCOUNT_GRANTS,
	ACCOUNT_REFS, /* bytes of ref-counter files */
	ACCOUNT_TICKETS,
	ACCOUNT_BUNDLES,   /* versions of them */
	ACCOUNT_GROUPS,    /* of communicators, kept */
	ACCOUNT_TIMELINES, /* files: each costs a descriptor */
	ACCOUNT_N
};

struct account {
	uint32_t uid;
	uint64_t used[ACCOUNT_N];
	uint64_t chunk_size[2]; /* bytes of the chunks of its pools: in
				   host memory, on devices */
	bool is_sealing;        /* a thread seals a chunk of its */
	struct evict_ring evictable[2]; /* the same; charged to it */
	bool is_listing;        /* a manifest of its is being made */
	uint32_t n_going;       /* versions of it that are given up by and by */
	struct account *next;   /* chain of accounts.buckets */
};

struct accounts {
	const struct config *config;
	struct account *buckets[256];
};

void accounts_init(struct accounts *accounts, const struct config *config);
void accounts_deinit(struct accounts *accounts);

/* The account of a uid, made when it is first asked for; NULL: no heap. It
 * stays valid as long as `accounts`. */
struct account *accounts_get(struct accounts *accounts, uint32_t uid);

uint64_t account_limit(const struct accounts *accounts,
		       const struct account *account, enum account_kind kind);

/* How much more may be charged. */
uint64_t account_left(const struct accounts *accounts,
		      const struct account *account, enum account_kind kind);

/* -EDQUOT with a sentence of what is used, asked and allowed. */
int account_charge(const struct accounts *accounts, struct account *account,
		   enum account_kind kind, uint64_t amount, struct error *err);
/* Charge what exists already, whatever the limit: adoption. */
void account_charge_adopted(struct account *account, enum account_kind kind,
			    uint64_t amount);
void account_refund(struct account *account, enum account_kind kind,
		    uint64_t amount);
