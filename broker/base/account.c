/*
 * Accounts are in a small hash table, since a node has few users.
 */
#include "broker/base/account.h"
#include "broker/base/config.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const struct {
	const char *what;
	const char *key; /* the key in the configuration */
	size_t offset;	 /* of the limit in struct config */
} kinds[ACCOUNT_N] = {
#define KIND(what, key) { what, #key, offsetof(struct config, key) }
	[ACCOUNT_BYTES] = KIND("bytes of tensors", quota_bytes),
	[ACCOUNT_DEVICE_BYTES] =
		KIND("bytes of tensors on devices", quota_device_bytes),
	[ACCOUNT_SLOTS] = KIND("tensors", quota_slots),
	[ACCOUNT_SESSIONS] = KIND("sessions", quota_sessions),
	[ACCOUNT_WAITING] = KIND("waiting requests", quota_waiting),
	[ACCOUNT_QUEUE] = KIND("bytes of replies", quota_queue),
	[ACCOUNT_PREFIXES] = KIND("first components of names", quota_prefixes),
	[ACCOUNT_CHUNKS] = KIND("chunks of memory", quota_chunks),
	[ACCOUNT_GRANTS] = KIND("grants (tensors times sessions)", quota_grants),
	[ACCOUNT_REFS] = KIND("bytes of ref-counter files", quota_refs),
	[ACCOUNT_TICKETS] = KIND("tickets", quota_tickets),
	[ACCOUNT_BUNDLES] = KIND("versions of bundles", quota_bundles),
	[ACCOUNT_GROUPS] = KIND("groups of communicators", quota_groups),
	[ACCOUNT_TIMELINES] = KIND("files of timelines", quota_timelines),
#undef KIND
};
/* clang-format on */

void accounts_init(struct accounts *accounts, const struct config *config)
{
	*accounts = (struct accounts){.config = config};
}

void accounts_deinit(struct accounts *accounts)
{
	size_t i;

	for (i = 0; i < ACCOUNT_BUCKETS; i++) {
		while (accounts->buckets[i]) {
			struct account *account = accounts->buckets[i];

			accounts->buckets[i] = account->next;
			free(account);
		}
	}
}

struct account *accounts_get(struct accounts *accounts, uint32_t uid)
{
	struct account **bucket = &accounts->buckets[uid % ACCOUNT_BUCKETS];
	struct account *account;

	for (account = *bucket; account; account = account->next) {
		if (account->uid == uid)
			return account;
	}
	if (failpoint_fail("account.malloc") < 0)
		return NULL;
	account = calloc(1, sizeof(*account));
	if (!account)
		return NULL;
	account->uid = uid;
	account->next = *bucket;
	*bucket = account;
	return account;
}

uint64_t accounts_total(const struct accounts *accounts, enum account_kind kind)
{
	uint64_t total = 0;

	for (size_t i = 0; i < ACCOUNT_BUCKETS; i++) {
		const struct account *account = accounts->buckets[i];

		for (; account; account = account->next)
			total += account->used[kind];
	}
	return total;
}

uint64_t account_limit(const struct accounts *accounts,
		       const struct account *account, enum account_kind kind)
{
	const uint8_t *config = (const void *)accounts->config;
	uint64_t limit;

	/* For root, only the memory of the whole broker is a limit. */
	if (account->uid == 0 && kind == ACCOUNT_BYTES)
		return accounts->config->memory_max;
	if (kind == ACCOUNT_DEVICE_BYTES &&
	    (account->uid == 0 ||
	     accounts->config->quota_device_bytes == CONFIG_MAX_SIZE))
		return UINT64_MAX;
	memcpy(&limit, config + kinds[kind].offset, sizeof(limit));
	return limit;
}

uint64_t account_left(const struct accounts *accounts,
		      const struct account *account, enum account_kind kind)
{
	uint64_t limit = account_limit(accounts, account, kind);
	uint64_t used = account->used[kind];

	return used < limit ? limit - used : 0;
}

/* Returns the key that an administrator must raise. A user without a
 * quota_bytes of its own is limited by memory_max. */
static const char *key_of(const struct accounts *accounts, uint64_t limit,
			  enum account_kind kind)
{
	if (kind == ACCOUNT_BYTES && limit == accounts->config->memory_max)
		return "memory_max";
	return kinds[kind].key;
}

int account_charge(const struct accounts *accounts, struct account *account,
		   enum account_kind kind, uint64_t amount, struct error *err)
{
	uint64_t limit = account_limit(accounts, account, kind);
	uint64_t used = account->used[kind];

	if (amount > account_left(accounts, account, kind))
		return error_set(err, -EDQUOT,
				 "uid %" PRIu32 " has %" PRIu64 " %s and asks "
				 "for %" PRIu64 " more, but may have %" PRIu64
				 ": release some, or have %s raised",
				 account->uid, used, kinds[kind].what, amount,
				 limit, key_of(accounts, limit, kind));
	account->used[kind] = used + amount;
	return 0;
}

void account_charge_adopted(struct account *account, enum account_kind kind,
			    uint64_t amount)
{
	account->used[kind] += amount;
}

int accounts_charge_adopted(struct accounts *accounts, uint32_t uid,
			    enum account_kind kind, uint64_t amount,
			    struct error *err)
{
	struct account *account = accounts_get(accounts, uid);

	if (!account)
		return error_nomem(err, "an account of uid %u", uid);
	account_charge_adopted(account, kind, amount);
	return 0;
}

void account_refund(struct account *account, enum account_kind kind,
		    uint64_t amount)
{
	assert(account->used[kind] >= amount);
	account->used[kind] -= amount;
}

void accounts_refund(struct accounts *accounts, uint32_t uid,
		     enum account_kind kind, uint64_t amount)
{
	struct account *account = accounts_get(accounts, uid);

	assert(account);
	account_refund(account, kind, amount);
}
