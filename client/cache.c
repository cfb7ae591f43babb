/*
 * Hash tables with open addressing, one per shelf, that double when they are
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
	struct known *known; /* NULL: free */
	uint32_t hash;       /* low half; the high one chooses the shelf */
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

uint8_t cache_shelf(const struct cache_key *key)
{
	return (uint8_t)(key->hash >> 32) % SHELVES;
}

static bool is_match(const struct cache_entry *entry,
		     const struct cache_key *key)
{
	const struct known *known = entry->known;

	return entry->hash == (uint32_t)key->hash &&
	       known->is_trust_set == key->is_trust_set &&
	       known->trusted_uid == key->trusted_uid &&
	       strcmp(known->name, key->name) == 0;
}

static size_t home(const struct shelf *shelf, uint32_t hash)
{
	return hash & (shelf->n_entries - 1);
}

static size_t next(const struct shelf *shelf, size_t i)
{
	return (i + 1) & (shelf->n_entries - 1);
}

/* How far `i` is behind the home of what lies at `at`. */
static size_t distance(const struct shelf *shelf, size_t at, size_t i)
{
	return (i - home(shelf, shelf->entries[at].hash)) &
	       (shelf->n_entries - 1);
}

/* The entry, or the free one where it would be: there is always one. */
static size_t find(const struct shelf *shelf, const struct cache_key *key)
{
	size_t i = home(shelf, (uint32_t)key->hash);

	while (shelf->entries[i].known && !is_match(&shelf->entries[i], key))
		i = next(shelf, i);
	return i;
}

static void drop(struct shelf *shelf, size_t i)
{
	struct cache_entry *entries = shelf->entries;
	struct known *known = entries[i].known;
	size_t hole = i;

	/* What was pushed past the hole from a home before it moves up. */
	for (i = next(shelf, i); entries[i].known; i = next(shelf, i)) {
		if (distance(shelf, i, hole) > distance(shelf, i, i))
			continue;
		entries[hole] = entries[i];
		hole = i;
	}
	entries[hole].known = NULL;
	shelf->n_cached--;
	known_drop(shelf, known);
}

void cache_drop_all(struct shelf *shelf)
{
	for (size_t i = 0; i < shelf->n_entries; i++)
		known_drop(shelf, shelf->entries[i].known);
	free(shelf->entries);
	shelf->entries = NULL;
	shelf->n_entries = shelf->n_cached = 0;
}

/* If the home has that hash it is the one, nearly always. */
static void fetch_counters(const struct fsdp_client *client,
			   const struct shelf *shelf,
			   const struct cache_key *key)
{
	const struct cache_entry *entry =
		&shelf->entries[home(shelf, (uint32_t)key->hash)];

	if (!entry->known || entry->hash != (uint32_t)key->hash)
		return;
	__builtin_prefetch(&client->refs.entries[entry->slot], 1);
	__builtin_prefetch((const void *)&client->table.words[entry->slot]);
}

struct fsdp_tensor *cache_get(struct fsdp_client *client,
			      const struct cache_key *key)
{
	uint8_t index = cache_shelf(key);
	struct shelf *shelf = &client->shelves[index];
	enum refs_outcome outcome = REFS_STALE;
	struct fsdp_tensor *tensor = NULL;
	struct known *known = NULL;
	uint32_t slot = 0;
	size_t i = 0;

	pthread_mutex_lock(&shelf->lock);
	if (shelf->n_entries) {
		fetch_counters(client, shelf, key);
		i = find(shelf, key);
		known = shelf->entries[i].known;
	}
	if (known) {
		slot = known->slot;
		outcome = refs_acquire(&client->refs, &client->table, slot,
				       known->generation);
		if (outcome != REFS_HELD)
			drop(shelf, i);
		else
			tensor = tensor_new(client, index, known);
		if (tensor)
			known->n_users++;
	}
	pthread_mutex_unlock(&shelf->lock);
	if (outcome == REFS_STALE_RING)
		client_ring(client);
	else if (outcome == REFS_HELD && !tensor)
		tensor_give_back(client, slot, 1);
	return tensor;
}

static void insert(struct shelf *shelf, const struct cache_entry *entry)
{
	size_t i = home(shelf, entry->hash);

	while (shelf->entries[i].known)
		i = next(shelf, i);
	shelf->entries[i] = *entry;
}

/* What was let go in the meantime, whose names may never be asked for again. */
static void drop_stale(const struct fsdp_client *client, struct shelf *shelf)
{
	for (size_t i = 0; i < shelf->n_entries;) {
		const struct cache_entry *entry = &shelf->entries[i];

		if (!entry->known ||
		    table_load(&client->table, entry->slot) ==
			    table_word(entry->known->generation,
				       SLOT_PUBLISHED))
			i++;
		else
			drop(shelf, i); /* another may be here now */
	}
}

/* Without memory it stays as it is. */
static void grow(struct shelf *shelf)
{
	size_t n = shelf->n_entries;
	struct cache_entry *old = shelf->entries;
	struct cache_entry *entries =
		calloc(n ? 2 * n : FIRST_ENTRIES, sizeof(*entries));

	if (!entries)
		return;
	shelf->entries = entries;
	shelf->n_entries = n ? 2 * n : FIRST_ENTRIES;
	for (size_t i = 0; i < n; i++)
		if (old[i].known)
			insert(shelf, &old[i]);
	free(old);
}

static bool is_crowded(const struct shelf *shelf)
{
	return shelf->n_cached >= shelf->n_entries / 4 * 3;
}

/* Room for one more. A half empty table is large enough: so one that is never
 * needed for more names at a time does not grow. */
static void make_room(const struct fsdp_client *client, struct shelf *shelf)
{
	if (!is_crowded(shelf) && shelf->n_cached < CACHE_MAX_NAMES)
		return;
	drop_stale(client, shelf);
	if (shelf->n_cached >= shelf->n_entries / 2 &&
	    shelf->n_cached < CACHE_MAX_NAMES)
		grow(shelf);
}

void cache_expect(const struct shelf *shelf, const struct cache_key *key)
{
	if (shelf->n_entries)
		__builtin_prefetch(
			&shelf->entries[home(shelf, (uint32_t)key->hash)], 1);
}

void cache_put(struct fsdp_client *client, const struct cache_key *key,
	       struct known *known)
{
	struct shelf *shelf = &client->shelves[cache_shelf(key)];
	struct cache_entry entry = {.known = known,
				    .hash = (uint32_t)key->hash,
				    .slot = known->slot};
	size_t i;

	make_room(client, shelf);
	if (!shelf->n_entries)
		return;
	i = find(shelf, key);
	if (shelf->entries[i].known)
		drop(shelf, i);
	/* Full: what is where it would be goes, if there is something. */
	i = home(shelf, entry.hash);
	if (is_crowded(shelf) || shelf->n_cached >= CACHE_MAX_NAMES) {
		if (!shelf->entries[i].known)
			return;
		drop(shelf, i);
	}
	known->is_trust_set = key->is_trust_set;
	known->trusted_uid = key->trusted_uid;
	known->n_users++;
	insert(shelf, &entry);
	shelf->n_cached++;
}
