/*
 * The cache of names: the tensor that a name showed at the last request for it.
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

/* `options` may be NULL. */
struct cache_key cache_key(const char *name,
			   const struct fsdp_get_options *options);

/* The stripe of a name's handles and cache entry. */
uint8_t cache_stripe(const struct cache_key *key);

/* Acquire the tensor that the name showed and make a handle, without a system
 * call. NULL: it is not in the cache, or the entry is no longer valid. */
struct fsdp_tensor *cache_get(struct fsdp_client *client,
			      const struct cache_key *key);

/* cache_put() will be called soon: prefetch the memory that it reads. As for
 * the next function, the caller holds the lock of the stripe of `key`. */
void cache_expect(const struct stripe *stripe, const struct cache_key *key);

/* Add or replace the entry. Without memory, or when the stripe is full, the
 * cache keeps fewer entries. */
void cache_put(struct fsdp_client *client, const struct cache_key *key,
	       struct desc *desc);

/* Forget all entries of a stripe. */
void cache_drop_all(struct stripe *stripe);
