/*
 * Hash tables with open addressing, one per stripe, that double when they are
 * three quarters full. An entry has the hash and the slot, so that a name that
 * is not there costs no look at those that are, and the counters of one that
 * is there can be fetched while its name is compared.
 */
#include "client/cache.h"
#include "client/client.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FIRST_ENTRIES 64

struct cache_entry {
	struct desc *desc; /* NULL: free */
	uint32_t hash;     /* low half; the high one chooses the stripe */
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

/* How far `i` is behind the home of what lies at `at`. */
static size_t distance(const struct stripe *stripe, size_t at, size_t i)
{
	return (i - home(stripe, stripe->entries[at].hash)) &
	       (stripe->n_entries - 1);
}

/* The entry, or the free one where it would be: there is always one. */
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

	/* What was pushed past the hole from a home before it moves up. */
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

/* If the home has that hash it is the one, nearly always. */
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

/* What was let go in the meantime, whose names may never be asked for again. */
static void drop_stale(const struct fsdp_client *client, struct stripe *stripe)
{
	for (size_t i = 0; i < stripe->n_entries;) {
		const struct cache_entry *entry = &stripe->entries[i];

		if (!entry->desc ||
		    table_load(&client->table, entry->slot) ==
			    table_word(entry->desc->generation, SLOT_PUBLISHED))
			i++;
		else
			drop(stripe, i); /* another may be here now */
	}
}

/* Without memory it stays as it is. */
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

/* Room for one more. A half empty table is large enough: so one that is never
 * needed for more names at a time does not grow. */
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
	/* Full: what is where it would be goes, if there is something. */
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
