/*
 * Bundles: the records of versions, and their members.
 */
#include "broker/tensor/bundle.h"
#include "broker/tensor/index.h"
#include "broker/tensor/manifest.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

#define MEMBER_LINK offsetof(struct slot_record, bundle_link)

void bundle_name(const struct store *store, uint32_t bundle, char *ret)
{
	const struct bundle_record *record =
		catalog_bundle(&store->catalog, bundle);

	memcpy(ret, catalog_blob(&store->catalog, record->name_blob),
	       record->name_size);
	ret[record->name_size] = '\0';
}

uint32_t bundle_find_staged(const struct store *store,
			    const struct holdings *holdings, uint64_t id,
			    struct error *err)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t bundle = holdings_record(holdings)->first_bundle;
	const struct bundle_record *record;

	for (; bundle; bundle = record->next) {
		record = catalog_bundle(catalog, bundle);
		if (record->id == id && record->state == BUNDLE_STAGED)
			return bundle;
	}
	(void)error_set(err, -ENOENT,
			"this session is not staging bundle %llu: it was "
			"committed or aborted, or belongs to another session",
			(unsigned long long)id);
	return 0;
}

int bundle_check_name(const struct store *store, uint32_t bundle,
		      const char *name, struct error *err)
{
	const struct catalog *catalog = &store->catalog;
	const struct bundle_record *ours = catalog_bundle(catalog, bundle);
	const struct bundle_record *theirs;
	uint32_t shown = index_find(store, name);
	uint32_t other;

	if (!shown)
		return 0;
	other = catalog_slot(catalog, shown)->bundle;
	theirs = other ? catalog_bundle(catalog, other) : NULL;
	if (theirs && theirs->name_size == ours->name_size &&
	    !memcmp(catalog_blob(catalog, theirs->name_blob),
		    catalog_blob(catalog, ours->name_blob), ours->name_size))
		return 0; /* the version that this one would replace */
	return error_set(err, -EEXIST,
			 "\"%s\" is the name of a tensor that is not in the "
			 "bundle; remove it first",
			 name);
}

void bundle_add_member(struct store *store, uint32_t bundle, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);
	struct slot_record *member = catalog_slot(catalog, slot);
	uint64_t size = pool_block_size(member->size, &record->device);

	catalog_set(catalog, member->bundle, bundle);
	catalog_set(catalog, member->flags, (uint16_t)SLOT_FLAG_NAMED);
	catalog_list_append(catalog, &record->members, SECTION_SLOT,
			    MEMBER_LINK, slot);
	index_add(store, slot);
	record->size_hint -=
		size < record->size_hint ? size : record->size_hint;
	manifest_drop(store, bundle);
}

uint64_t bundle_size_left(const struct store *store, uint32_t bundle)
{
	return catalog_bundle(&store->catalog, bundle)->size_hint;
}

/* --- the end ------------------------------------------------------------- */

void bundle_leave_loader(struct store *store, uint32_t bundle)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);
	uint32_t *at;

	if (!record->loader)
		return;
	at = &catalog_session(catalog, record->loader)->first_bundle;
	while (*at != bundle) {
		assert(*at);
		at = &catalog_bundle(catalog, *at)->next;
	}
	catalog_set(catalog, *at, record->next);
	catalog_set(catalog, record->next, 0);
	catalog_set(catalog, record->loader, 0);
}

void bundle_end_sweep(struct store *store, uint32_t index)
{
	struct bundle *bundle = &store->bundles[index];

	chore_end(store, &bundle->sweep);
	bundle->next_swept = 0;
	if (!bundle->account)
		return;
	bundle->account->n_going--;
	bundle->account = NULL;
	wake_room(&store->base->wake);
}

void bundle_destroy(struct store *store, uint32_t bundle)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	assert(record->state == BUNDLE_RETIRED && !record->loader);
	bundle_end_sweep(store, bundle);
	manifest_drop(store, bundle);
	accounts_refund(&store->base->accounts, record->owner_uid,
			ACCOUNT_BUNDLES, 1);
	catalog_blob_release(catalog, record->name_blob, record->name_size);
	catalog_release(catalog, SECTION_BUNDLE, bundle);
	wake_room(&store->base->wake);
}

void bundle_forget_member(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *member = catalog_slot(catalog, slot);
	uint32_t bundle = member->bundle;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	manifest_forget_member(store, slot);
	if (store->bundles[bundle].next_swept == slot)
		store->bundles[bundle].next_swept = member->bundle_link.next;
	if (store->bundles[bundle].last_clash == slot)
		store->bundles[bundle].last_clash = 0;
	catalog_list_remove(catalog, &record->members, SECTION_SLOT,
			    MEMBER_LINK, slot);
	catalog_set(catalog, member->bundle, 0);
	if (record->state == BUNDLE_RETIRED && !record->members.n)
		bundle_destroy(store, bundle);
}

bool bundle_keeps(const struct store *store, uint32_t bundle)
{
	return store->bundles[bundle].n_leases ||
	       catalog_bundle(&store->catalog, bundle)->state == BUNDLE_KEPT;
}

uint32_t bundle_next(const struct store *store, const char *name,
		     uint32_t state, uint32_t at)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BUNDLE);
	size_t size = strlen(name);

	while (++at <= n) {
		const struct bundle_record *record =
			catalog_bundle(catalog, at);

		if (record->state == state && record->name_size == size &&
		    !memcmp(catalog_blob(catalog, record->name_blob), name,
			    size))
			return at;
	}
	return 0;
}

uint32_t bundle_find_version(const struct store *store, const char *name,
			     uint64_t version)
{
	uint32_t bundle = index_find_bundle(store, name);

	if (!bundle ||
	    catalog_bundle(&store->catalog, bundle)->version == version)
		return bundle;
	bundle = 0;
	do
		bundle = bundle_next(store, name, BUNDLE_KEPT, bundle);
	while (bundle &&
	       catalog_bundle(&store->catalog, bundle)->version != version);
	return bundle;
}

uint32_t bundle_count_kept(const struct store *store, const char *name,
			   uint32_t *ret_oldest)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t bundle = 0, n = 0, oldest = 0;

	while ((bundle = bundle_next(store, name, BUNDLE_KEPT, bundle))) {
		if (!n++ || catalog_bundle(catalog, bundle)->version <
				    catalog_bundle(catalog, oldest)->version)
			oldest = bundle;
	}
	*ret_oldest = oldest;
	return n;
}

void bundle_lease(struct store *store, uint32_t bundle)
{
	store->bundles[bundle].n_leases++;
}

void bundle_drop_manifests(struct store *store)
{
	uint32_t n = catalog_n_touched(&store->catalog, SECTION_BUNDLE);

	for (uint32_t i = 1; i <= n; i++) {
		if (catalog_bundle(&store->catalog, i)->state != BUNDLE_FREE)
			manifest_drop(store, i);
	}
}
