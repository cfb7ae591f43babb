/*
 * The cache of names: the tensor that each name showed when it was last
 * requested.
 *
 * An entry is valid as long as its tensor can be acquired: when a name shows
 * another tensor, its old slot is no longer PUBLISHED. An entry whose tensor
 * cannot be acquired is dropped. The trusted user is part of the key, since the
 * broker checked it for that request only.
 *
 * The entries are in the stripes (client/tensor.h), under their locks.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fsdp_client;
struct fsdp_get_options;
struct fsdp_tensor;
struct desc;
struct stripe;

/* The maximum number of names in a stripe. */
#define CACHE_MAX_NAMES 65536

struct cache_key {
	const char *name;
	uint64_t hash;
	bool is_trust_set;
	uint32_t trusted_uid;
};

/* `options` may be NULL. The key borrows the name. */
struct cache_key cache_key(const char *name,
			   const struct fsdp_get_options *options);

/* Return the stripe of a name's handles and cache entry. */
uint8_t cache_stripe(const struct cache_key *key);

/* Acquire the tensor of the entry and make a handle, without a system call.
 * Returns NULL if there is no valid entry, or no memory. */
struct fsdp_tensor *cache_get(struct fsdp_client *client,
			      const struct cache_key *key);

/* Prefetch the memory that cache_put() will read. For this function and the
 * next one, the caller holds the lock of the stripe of `key`. */
void cache_expect(const struct stripe *stripe, const struct cache_key *key);

/* Add or replace the entry. If memory is short or the stripe is full, another
 * entry is dropped, or the new one is not added. */
void cache_put(struct fsdp_client *client, const struct cache_key *key,
	       struct desc *desc);

/* Drop all entries of a stripe; the caller holds its lock. */
void cache_drop_all(struct stripe *stripe);

/* Drop all entries of all stripes. */
void cache_clear(struct fsdp_client *client);
