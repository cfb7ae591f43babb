/*
 * The cache of names: which tensor a name showed when we last asked.
 *
 * It is right as long as that tensor can still be acquired: a name that shows
 * something else has let its old slot go, which is then not PUBLISHED. What
 * cannot be acquired any more is dropped. Whom the caller trusted is part of
 * the key, since the broker checked it for that question only.
 *
 * Its entries lie on the shelves (client/tensor.h), under their locks.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fsdp_client;
struct fsdp_get_options;
struct fsdp_tensor;
struct known;
struct shelf;

/* Names kept per shelf, at most. */
#define CACHE_MAX_NAMES 65536

struct cache_key {
	const char *name;
	uint64_t hash;
	bool is_trust_set;
	uint32_t trusted_uid;
};

/* `options` may be NULL. */
struct cache_key cache_key(const char *name,
			   const struct fsdp_get_options *options);

/* Which shelf a name's handles and cache entry are on. */
uint8_t cache_shelf(const struct cache_key *key);

/* Acquire what the name showed and make a handle: no system call. NULL: not
 * known, or not so any more. */
struct fsdp_tensor *cache_get(struct fsdp_client *client,
			      const struct cache_key *key);

/* Soon cache_put() will be called: have what it looks at in the CPU's cache.
 * With the lock of the shelf of `key` held, as the next. */
void cache_expect(const struct shelf *shelf, const struct cache_key *key);

/* Remember; replaces what was there. Without memory, or when full, it
 * remembers less. */
void cache_put(struct fsdp_client *client, const struct cache_key *key,
	       struct known *known);

/* Forget all of a shelf. */
void cache_drop_all(struct shelf *shelf);
