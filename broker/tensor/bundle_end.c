/*
 * The end of a version. If it has many members, a sweep updates their states: a
 * chore that updates a few at a time.
 */
#include "broker/tensor/bundle_end.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/events.h"
#include "broker/tensor/index.h"
#include "broker/tensor/manifest.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/slot_state.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include "proto/name.h"
#include <assert.h>

/* The number of members whose state is updated within a request, and in one
 * step of a sweep. */
#define UPDATED_AT_ONCE MESSAGE_MAX_ITEMS
#define UPDATED_A_STEP  64

/* --- members ------------------------------------------------------------- */

/* Visits the next members. A retired version is freed with its last member. */
static bool sweep(void *data, uint32_t index)
{
	struct store *store = data;
	struct bundle *bundle = &store->bundles[index];
	uint32_t slot;

	for (int i = 0; i < UPDATED_A_STEP && bundle->next_swept; i++) {
		slot = bundle->next_swept;
		bundle->next_swept =
			catalog_slot(&store->catalog, slot)->bundle_link.next;
		slot_update_state(store, slot);
		catalog_commit(&store->catalog);
	}
	if (bundle->next_swept)
		return true;
	bundle_end_sweep(store, index);
	return false;
}

/* Starts a sweep at the first member, even if one is in progress. While a
 * retired version is swept, the n_going of its owner's account counts it. */
static void begin_sweep(struct store *store, uint32_t index)
{
	const struct bundle_record *record =
		catalog_bundle(&store->catalog, index);
	struct bundle *bundle = &store->bundles[index];

	if (!bundle->account && record->state == BUNDLE_RETIRED) {
		bundle->account =
			accounts_get(&store->base->accounts, record->owner_uid);
		bundle->account->n_going++;
	}
	bundle->next_swept = record->members.first;
	bundle->sweep.step = sweep;
	bundle->sweep.data = store;
	bundle->sweep.index = index;
	chore_begin(store, &bundle->sweep);
}

void bundle_hide_members(struct store *store, uint32_t bundle)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t slot = catalog_bundle(catalog, bundle)->members.first;

	for (; slot; slot = catalog_slot(catalog, slot)->bundle_link.next)
		slot_set_word(store, slot, SLOT_LIMBO);
}

void bundle_update_members(struct store *store, uint32_t index)
{
	const struct catalog *catalog = &store->catalog;
	const struct bundle_record *record = catalog_bundle(catalog, index);
	uint32_t slot = record->members.first;
	uint32_t next;

	if (record->members.n > UPDATED_AT_ONCE) {
		begin_sweep(store, index);
		return;
	}
	for (; slot; slot = next) {
		next = catalog_slot(catalog, slot)->bundle_link.next;
		slot_update_state(store, slot);
	}
}

/* --- the version --------------------------------------------------------- */

/* Ends the references of a name, of a session and of a deadline to the
 * version. */
static void leave_name(struct store *store, uint32_t bundle,
		       enum bundle_state state)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	deadlines_remove(&store->base->deadlines, &record->heap_position);
	if (record->state == BUNDLE_COMMITTED)
		index_remove_bundle(store, bundle);
	bundle_leave_loader(store, bundle);
	catalog_set(catalog, record->deadline_ms, 0);
	catalog_set(catalog, record->state, (uint32_t)state);
}

void bundle_make_retired(struct store *store, uint32_t bundle)
{
	leave_name(store, bundle, BUNDLE_RETIRED);
	manifest_drop(store, bundle);
	pool_forget_bundle(&store->pools, bundle);
	failpoint("bundle.retired");
}

void bundle_make_kept(struct store *store, uint32_t bundle)
{
	leave_name(store, bundle, BUNDLE_KEPT);
	failpoint("bundle.kept");
}

/* Many versions together have too many members for one request. */
void bundle_trim_kept(struct store *store, const char *name, uint32_t n)
{
	uint32_t oldest, n_kept = bundle_count_kept(store, name, &oldest);
	bool are_many = n_kept > n + 1;

	for (; n_kept > n; n_kept = bundle_count_kept(store, name, &oldest)) {
		bundle_make_retired(store, oldest);
		if (are_many &&
		    catalog_bundle(&store->catalog, oldest)->members.n)
			begin_sweep(store, oldest);
		else
			bundle_drop_retired(store, oldest);
	}
}

void bundle_drop_retired(struct store *store, uint32_t bundle)
{
	if (catalog_bundle(&store->catalog, bundle)->members.n)
		bundle_update_members(store, bundle);
	else
		bundle_destroy(store, bundle);
}

void bundle_retire(struct store *store, uint32_t bundle)
{
	bool was_shown = catalog_bundle(&store->catalog, bundle)->state ==
			 BUNDLE_COMMITTED;
	char name[NAME_MAX_SIZE + 1];

	/* the record may be freed below, so the name is copied */
	bundle_name(store, bundle, name);
	bundle_make_retired(store, bundle);
	if (was_shown)
		bundle_hide_members(store, bundle);
	bundle_drop_retired(store, bundle);
	if (was_shown)
		bundle_trim_kept(store, name, 0);
}

void bundle_unlease(struct store *store, uint32_t bundle)
{
	assert(store->bundles[bundle].n_leases > 0);
	if (--store->bundles[bundle].n_leases > 0)
		return;
	if (catalog_bundle(&store->catalog, bundle)->state == BUNDLE_RETIRED)
		bundle_update_members(store, bundle);
}

void bundle_abort(struct store *store, uint32_t bundle)
{
	char name[NAME_MAX_SIZE + 1];

	/* a loader of the next version may wait for the end of this one */
	bundle_name(store, bundle, name);
	wake_name(&store->base->wake, name);
	events_note_bundle(store, bundle, EVENT_ENDED);
	bundle_retire(store, bundle);
}
