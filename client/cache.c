/*
 * Hash tables with open addressing, one per stripe, that double when they are
 * three quarters full. An entry has the hash and the slot besides the
 * descriptor. So a look-up of a missing name does not read the descriptors of
 * other names, and the counters of a slot can be prefetched while the name is
 * compared.
 */
#include "client/cache.h"
#include "client/client.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FIRST_ENTRIES 64

struct cache_entry {
	struct desc *desc; /* NULL: free */
	uint32_t hash;     /* lower half; the upper half chooses the stripe */
	uint32_t slot;
};

struct cache_key cache_key(const char *name,
			   const struct fsdp_get_options *options)
{
	struct cache_key key = {.name = name};

	if (options && options->is_trust_set) {
		key.is_trust_set = true;
		key.trusted_uid = options->trusted_uid;
	}
	key.hash = XXH3_64bits(name, strlen(name));
	return key;
}

uint8_t cache_stripe(const struct cache_key *key)
{
	return (uint8_t)(key->hash >> 32) % STRIPES;
}

static bool is_match(const struct cache_entry *entry,
		     const struct cache_key *key)
{
	const struct desc *desc = entry->desc;

	return entry->hash == (uint32_t)key->hash &&
	       desc->is_trust_set == key->is_trust_set &&
	       desc->trusted_uid == key->trusted_uid &&
	       strcmp(desc->name, key->name) == 0;
}

static size_t home(const struct stripe *stripe, uint32_t hash)
{
	return hash & (stripe->n_entries - 1);
}

static size_t next(const struct stripe *stripe, size_t i)
{
	return (i + 1) & (stripe->n_entries - 1);
}

/* The number of steps from the home of the entry at `at` to place `i`. */
static size_t distance(const struct stripe *stripe, size_t at, size_t i)
{
	return (i - home(stripe, stripe->entries[at].hash)) &
	       (stripe->n_entries - 1);
}

/* Find the entry, or the free place for it. There is always a free place. */
static size_t find(const struct stripe *stripe, const struct cache_key *key)
{
	size_t i = home(stripe, (uint32_t)key->hash);

	while (stripe->entries[i].desc && !is_match(&stripe->entries[i], key))
		i = next(stripe, i);
	return i;
}

static void drop(struct stripe *stripe, size_t i)
{
	struct cache_entry *entries = stripe->entries;
	struct desc *desc = entries[i].desc;
	size_t hole = i;

	/* Move up each later entry whose way from its home passes the hole. */
	for (i = next(stripe, i); entries[i].desc; i = next(stripe, i)) {
		if (distance(stripe, i, hole) > distance(stripe, i, i))
			continue;
		entries[hole] = entries[i];
		hole = i;
	}
	entries[hole].desc = NULL;
	stripe->n_cached--;
	desc_drop(stripe, desc);
}

void cache_drop_all(struct stripe *stripe)
{
	for (size_t i = 0; i < stripe->n_entries; i++)
		desc_drop(stripe, stripe->entries[i].desc);
	free(stripe->entries);
	stripe->entries = NULL;
	stripe->n_entries = stripe->n_cached = 0;
}

void cache_clear(struct fsdp_client *client)
{
	for (size_t i = 0; i < STRIPES; i++) {
		pthread_mutex_lock(&client->stripes[i].lock);
		cache_drop_all(&client->stripes[i]);
		pthread_mutex_unlock(&client->stripes[i].lock);
	}
}

/* An entry with this hash at its home is nearly always the right one. */
static void fetch_counters(const struct fsdp_client *client,
			   const struct stripe *stripe,
			   const struct cache_key *key)
{
	const struct cache_entry *entry =
		&stripe->entries[home(stripe, (uint32_t)key->hash)];

	if (!entry->desc || entry->hash != (uint32_t)key->hash)
		return;
	__builtin_prefetch(&client->refs.entries[entry->slot], 1);
	__builtin_prefetch((const void *)&client->table.words[entry->slot]);
}

struct fsdp_tensor *cache_get(struct fsdp_client *client,
			      const struct cache_key *key)
{
	uint8_t index = cache_stripe(key);
	struct stripe *stripe = &client->stripes[index];
	enum refs_outcome outcome = REFS_STALE;
	struct fsdp_tensor *tensor = NULL;
	struct desc *desc = NULL;
	uint32_t slot = 0;
	size_t i = 0;

	pthread_mutex_lock(&stripe->lock);
	if (stripe->n_entries) {
		fetch_counters(client, stripe, key);
		i = find(stripe, key);
		desc = stripe->entries[i].desc;
	}
	if (desc) {
		slot = desc->slot;
		outcome = refs_acquire(&client->refs, &client->table, slot,
				       desc->generation);
		if (outcome != REFS_HELD)
			drop(stripe, i);
		else
			tensor = tensor_new(client, index, desc);
		if (tensor)
			desc->n_users++;
	}
	pthread_mutex_unlock(&stripe->lock);
	if (outcome == REFS_STALE_RING)
		connection_ring_anew(&client->connection);
	else if (outcome == REFS_HELD && !tensor)
		tensor_give_back(client, slot, 1);
	return tensor;
}

static void insert(struct stripe *stripe, const struct cache_entry *entry)
{
	size_t i = home(stripe, entry->hash);

	while (stripe->entries[i].desc)
		i = next(stripe, i);
	stripe->entries[i] = *entry;
}

/* Drop entries whose tensors are no longer published. Without this they would
 * stay if their names were never requested again. */
static void drop_stale(const struct fsdp_client *client, struct stripe *stripe)
{
	for (size_t i = 0; i < stripe->n_entries;) {
		const struct cache_entry *entry = &stripe->entries[i];

		if (!entry->desc ||
		    table_load(&client->table, entry->slot) ==
			    table_word(entry->desc->generation, SLOT_PUBLISHED))
			i++;
		else
			drop(stripe, i); /* `i` may be another entry now */
	}
}

/* If there is no memory, the table stays as it is. */
static void grow(struct stripe *stripe)
{
	size_t n = stripe->n_entries;
	struct cache_entry *old = stripe->entries;
	struct cache_entry *entries =
		calloc(n ? 2 * n : FIRST_ENTRIES, sizeof(*entries));

	if (!entries)
		return;
	stripe->entries = entries;
	stripe->n_entries = n ? 2 * n : FIRST_ENTRIES;
	for (size_t i = 0; i < n; i++)
		if (old[i].desc)
			insert(stripe, &old[i]);
	free(old);
}

static bool is_crowded(const struct stripe *stripe)
{
	return stripe->n_cached >= stripe->n_entries / 4 * 3;
}

/* Make room for one more entry. If the table is less than half full after
 * stale entries were dropped, it does not grow, so that its size depends on the
 * number of names that are used at a time. */
static void make_room(const struct fsdp_client *client, struct stripe *stripe)
{
	if (!is_crowded(stripe) && stripe->n_cached < CACHE_MAX_NAMES)
		return;
	drop_stale(client, stripe);
	if (stripe->n_cached >= stripe->n_entries / 2 &&
	    stripe->n_cached < CACHE_MAX_NAMES)
		grow(stripe);
}

void cache_expect(const struct stripe *stripe, const struct cache_key *key)
{
	if (stripe->n_entries)
		__builtin_prefetch(
			&stripe->entries[home(stripe, (uint32_t)key->hash)], 1);
}

void cache_put(struct fsdp_client *client, const struct cache_key *key,
	       struct desc *desc)
{
	struct stripe *stripe = &client->stripes[cache_stripe(key)];
	struct cache_entry entry = {
		.desc = desc, .hash = (uint32_t)key->hash, .slot = desc->slot};
	size_t i;

	make_room(client, stripe);
	if (!stripe->n_entries)
		return;
	i = find(stripe, key);
	if (stripe->entries[i].desc)
		drop(stripe, i);
	/* In a full table the new entry replaces the one at its home, if there
	 * is one. */
	i = home(stripe, entry.hash);
	if (is_crowded(stripe) || stripe->n_cached >= CACHE_MAX_NAMES) {
		if (!stripe->entries[i].desc)
			return;
		drop(stripe, i);
	}
	desc->is_trust_set = key->is_trust_set;
	desc->trusted_uid = key->trusted_uid;
	desc->n_users++;
	insert(stripe, &entry);
	stripe->n_cached++;
}
