/*
 * Names of slots. When a tensor outside bundles gets or loses a name, the name
 * is compared with the members of staged bundles at once, so that the commit of
 * a bundle need not look up each of its names.
 */
#include "broker/tensor/name.h"
#include "broker/tensor/events.h"
#include "broker/tensor/evictable.h"
#include "broker/tensor/index.h"
#include "broker/tensor/store.h"

#define OWN_LINK offsetof(struct slot_record, session_link)

static bool is_staged(const struct store *store, uint32_t slot)
{
	uint32_t bundle = catalog_slot(&store->catalog, slot)->bundle;

	return bundle &&
	       catalog_bundle(&store->catalog, bundle)->state == BUNDLE_STAGED;
}

/* Counts the clashes after a tensor outside bundles got this name (change 1),
 * or before it loses it (-1). The slot is in the index. */
static void count_clashes(struct store *store, uint32_t slot, int change)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record;
	uint32_t at = 0;
	uint32_t bundle;

	if (!catalog_n_live(catalog, SECTION_BUNDLE))
		return;
	while ((at = index_next_alike(store, slot, at))) {
		if (!is_staged(store, at))
			continue;
		bundle = catalog_slot(catalog, at)->bundle;
		record = catalog_bundle(catalog, bundle);
		catalog_set(catalog, record->n_clashes,
			    record->n_clashes + (uint32_t)change);
		store->bundles[bundle].last_clash = at;
	}
}

void slot_begin_name(struct store *store, uint32_t slot)
{
	if (catalog_slot(&store->catalog, slot)->flags & PUBLISH_EVICTABLE)
		evictable_add(store, slot);
	index_add(store, slot);
	count_clashes(store, slot, 1);
}

void slot_end_name(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	if (!(record->flags & SLOT_FLAG_NAMED))
		return;
	deadlines_remove(&store->base->deadlines, &record->heap_position);
	if (!record->bundle)
		count_clashes(store, slot, -1);
	index_remove(store, slot);
	if (record->tied) {
		catalog_list_remove(
			catalog, &catalog_session(catalog, record->tied)->own,
			SECTION_SLOT, OWN_LINK, slot);
		catalog_set(catalog, record->tied, 0);
	}
	evictable_remove(store, slot);
	catalog_set(catalog, record->deadline_ms, 0);
	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags & ~SLOT_FLAG_NAMED));
}

void slot_drop_name(struct store *store, uint32_t slot, enum name_event why)
{
	events_note_slot(store, slot, why);
	slot_end_name(store, slot);
}
