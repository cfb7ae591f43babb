/*
 * Chained hash tables, one per shelf, that double when they are full.
 */
#include "client/cache.h"
#include "client/client.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FIRST_BUCKETS 64

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

static bool is_match(const struct known *known, const struct cache_key *key)
{
	return known->hash == key->hash &&
	       known->is_trust_set == key->is_trust_set &&
	       known->trusted_uid == key->trusted_uid &&
	       strcmp(known->name, key->name) == 0;
}

/* The link that points to the entry, or to the NULL where it would be. */
static struct known **find(const struct shelf *shelf,
			   const struct cache_key *key)
{
	struct known **link =
		&shelf->buckets[key->hash & (shelf->n_buckets - 1)];

	while (*link && !is_match(*link, key))
		link = &(*link)->next;
	return link;
}

static void drop(struct shelf *shelf, struct known **link)
{
	struct known *known = *link;

	*link = known->next;
	known->next = NULL;
	shelf->n_cached--;
	known_drop(known);
}

struct fsdp_tensor *cache_get(struct fsdp_client *client,
			      const struct cache_key *key)
{
	uint8_t index = cache_shelf(key);
	struct shelf *shelf = &client->shelves[index];
	enum refs_outcome outcome = REFS_STALE;
	struct fsdp_tensor *tensor = NULL;
	struct known *known = NULL, **link;
	struct slot_ref ref = {0};

	pthread_mutex_lock(&shelf->lock);
	link = shelf->n_buckets ? find(shelf, key) : &known;
	if (*link) {
		known = *link;
		ref = known->ref;
		outcome = refs_acquire(&client->refs, &client->table, ref.slot,
				       ref.generation);
		if (outcome != REFS_HELD)
			drop(shelf, link);
		else
			tensor = tensor_new(client, index, known);
		if (tensor)
			known->n_users++;
	}
	pthread_mutex_unlock(&shelf->lock);
	if (outcome == REFS_STALE_RING)
		client_ring(client);
	else if (outcome == REFS_HELD && !tensor)
		tensor_give_back(client, ref.slot, 1);
	return tensor;
}

/* More buckets; without memory the chains grow instead. */
static void grow(struct shelf *shelf)
{
	size_t n = shelf->n_buckets ? 2 * shelf->n_buckets : FIRST_BUCKETS;
	struct known **buckets = calloc(n, sizeof(*buckets));

	if (!buckets)
		return;
	for (size_t i = 0; i < shelf->n_buckets; i++) {
		struct known *known = shelf->buckets[i];

		while (known) {
			struct known *next = known->next;
			struct known **link = &buckets[known->hash & (n - 1)];

			known->next = *link;
			*link = known;
			known = next;
		}
	}
	free(shelf->buckets);
	shelf->buckets = buckets;
	shelf->n_buckets = n;
}

void cache_put(struct fsdp_client *client, const struct cache_key *key,
	       struct known *known)
{
	struct shelf *shelf = &client->shelves[cache_shelf(key)];
	struct known **link;

	if (shelf->n_cached >= shelf->n_buckets)
		grow(shelf);
	if (!shelf->n_buckets)
		return;
	link = find(shelf, key);
	if (*link)
		drop(shelf, link);
	/* Full: one of the same bucket goes, if there is one. */
	link = &shelf->buckets[key->hash & (shelf->n_buckets - 1)];
	if (shelf->n_cached >= CACHE_MAX_NAMES) {
		if (!*link)
			return;
		drop(shelf, link);
	}
	known->hash = key->hash;
	known->is_trust_set = key->is_trust_set;
	known->trusted_uid = key->trusted_uid;
	known->n_users++;
	known->next = *link;
	*link = known;
	shelf->n_cached++;
}
