/*
 * The name index: hash chains of slots and of bundles, all in the catalog.
 * Visible names are counted for their first component (prefix.h); a bundle is
 * counted as one name, without its members.
 */
#include "broker/tensor/index.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/store.h"
#include <assert.h>
#include <xxhash.h>

static bool is_name(const struct store *store, uint64_t blob, size_t blob_size,
		    const char *name, size_t size)
{
	return blob_size == size &&
	       !memcmp(catalog_blob(&store->catalog, blob), name, size);
}

static uint32_t *bucket(const struct store *store, enum catalog_hash hash,
			const char *name, size_t size)
{
	uint64_t seed = store->catalog.header->hash_seed;

	return catalog_bucket(&store->catalog, hash,
			      XXH3_64bits_withSeed(name, size, seed));
}

bool index_shows(const struct store *store, uint32_t slot)
{
	const struct slot_record *record = catalog_slot(&store->catalog, slot);

	if (!record->block || !(record->flags & SLOT_FLAG_NAMED))
		return false;
	if (!record->bundle)
		return true;
	return catalog_bundle(&store->catalog, record->bundle)->state ==
	       BUNDLE_COMMITTED;
}

/* Returns the first slot of that name in the chain that starts at `slot`, or
 * 0. */
static uint32_t next_named(const struct store *store, uint32_t slot,
			   const char *name, size_t size)
{
	const struct slot_record *record;

	for (; slot; slot = record->name_next) {
		record = catalog_slot(&store->catalog, slot);
		if (is_name(store, record->blob, record->name_size, name, size))
			return slot;
	}
	return 0;
}

static uint32_t find_shown(const struct store *store, const char *name,
			   size_t size, uint32_t slot)
{
	for (;;) {
		slot = next_named(store, slot, name, size);
		if (!slot || index_shows(store, slot))
			return slot;
		slot = catalog_slot(&store->catalog, slot)->name_next;
	}
}

uint32_t index_find(const struct store *store, const char *name)
{
	size_t size = strlen(name);

	return find_shown(store, name, size,
			  *bucket(store, HASH_NAME, name, size));
}

/* Prefetches the parts of each chain's first slot that index_find_many() reads,
 * and those that granting and describing the slot read after it. */
static void prefetch_slots(const struct store *store, const uint32_t *slots,
			   uint32_t n)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record;
	uint32_t i;

	for (i = 0; i < n; i++) {
		if (!slots[i])
			continue;
		record = catalog_slot(catalog, slots[i]);
		__builtin_prefetch(record);
		__builtin_prefetch(&record->n_tickets);
		__builtin_prefetch(&record->limbo_link);
	}
	for (i = 0; i < n; i++) {
		if (!slots[i])
			continue;
		record = catalog_slot(catalog, slots[i]);
		__builtin_prefetch(catalog_blob(catalog, record->blob));
		__builtin_prefetch(catalog_block(catalog, record->block));
	}
}

void index_find_many(const struct store *store, const char *const *names,
		     uint32_t n, uint32_t *ret)
{
	uint32_t *heads[MESSAGE_MAX_ITEMS];
	uint32_t i;

	assert(n <= MESSAGE_MAX_ITEMS);
	for (i = 0; i < n; i++) {
		heads[i] = bucket(store, HASH_NAME, names[i], strlen(names[i]));
		__builtin_prefetch(heads[i]);
	}
	for (i = 0; i < n; i++)
		ret[i] = *heads[i];
	prefetch_slots(store, ret, n);
	for (i = 0; i < n; i++)
		ret[i] = find_shown(store, names[i], strlen(names[i]), ret[i]);
}

uint32_t index_find_member(const struct store *store, const char *name,
			   uint32_t bundle)
{
	const struct catalog *catalog = &store->catalog;
	size_t size = strlen(name);
	uint32_t slot = *bucket(store, HASH_NAME, name, size);

	for (;;) {
		slot = next_named(store, slot, name, size);
		if (!slot || catalog_slot(catalog, slot)->bundle == bundle)
			return slot;
		slot = catalog_slot(catalog, slot)->name_next;
	}
}

static const char *name_of(const struct store *store,
			   const struct slot_record *record)
{
	return catalog_blob(&store->catalog, record->blob);
}

static uint32_t *bucket_of(const struct store *store,
			   const struct slot_record *record)
{
	return bucket(store, HASH_NAME, name_of(store, record),
		      record->name_size);
}

uint32_t index_next_alike(const struct store *store, uint32_t slot,
			  uint32_t after)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	const char *name = catalog_blob(catalog, record->blob);
	uint32_t at = after ? catalog_slot(catalog, after)->name_next
			    : *bucket_of(store, record);

	at = next_named(store, at, name, record->name_size);
	if (at == slot)
		at = next_named(store, record->name_next, name,
				record->name_size);
	return at;
}

void index_add(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t *head = bucket_of(store, record);

	catalog_set(catalog, record->name_next, *head);
	catalog_set(catalog, *head, slot);
	if (!record->bundle)
		prefix_use(store, name_of(store, record), record->name_size);
}

void index_remove(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	catalog_chain_remove(catalog, SECTION_SLOT, bucket_of(store, record),
			     slot);
	catalog_set(catalog, record->name_next, 0);
	if (!record->bundle)
		prefix_end_use(store, name_of(store, record),
			       record->name_size);
}

static uint32_t find_bundle(const struct store *store, const char *name,
			    size_t size)
{
	const struct bundle_record *record;
	uint32_t bundle = *bucket(store, HASH_BUNDLE, name, size);

	for (; bundle; bundle = record->hash_next) {
		record = catalog_bundle(&store->catalog, bundle);
		if (is_name(store, record->name_blob, record->name_size, name,
			    size))
			return bundle;
	}
	return 0;
}

uint32_t index_find_bundle(const struct store *store, const char *name)
{
	return find_bundle(store, name, strlen(name));
}

static uint32_t *bundle_bucket(const struct store *store,
			       const struct bundle_record *record)
{
	return bucket(store, HASH_BUNDLE,
		      catalog_blob(&store->catalog, record->name_blob),
		      record->name_size);
}

void index_add_bundle(struct store *store, uint32_t bundle)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);
	uint32_t *head = bundle_bucket(store, record);

	catalog_set(catalog, record->hash_next, *head);
	catalog_set(catalog, *head, bundle);
	prefix_use(store, catalog_blob(catalog, record->name_blob),
		   record->name_size);
}

void index_remove_bundle(struct store *store, uint32_t bundle)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	catalog_chain_remove(catalog, SECTION_BUNDLE,
			     bundle_bucket(store, record), bundle);
	catalog_set(catalog, record->hash_next, 0);
	prefix_end_use(store, catalog_blob(catalog, record->name_blob),
		       record->name_size);
}

uint32_t index_enclosing_bundle(const struct store *store, const char *name)
{
	const char *slash = strchr(name, '/');
	uint32_t bundle;

	if (!catalog_n_live(&store->catalog, SECTION_BUNDLE))
		return 0;
	for (; slash; slash = strchr(slash + 1, '/')) {
		bundle = find_bundle(store, name, (size_t)(slash + 1 - name));
		if (bundle)
			return bundle;
	}
	return 0;
}

uint32_t index_bundle_below(const struct store *store, const char *name)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BUNDLE);
	size_t size = strlen(name);
	const struct bundle_record *record;
	uint32_t i;

	for (i = 1; i <= n; i++) {
		record = catalog_bundle(catalog, i);
		if (record->state == BUNDLE_COMMITTED &&
		    record->name_size > size &&
		    !memcmp(catalog_blob(catalog, record->name_blob), name,
			    size))
			return i;
	}
	return 0;
}
