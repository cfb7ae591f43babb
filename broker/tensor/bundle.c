/*
 * Bundles: begin, commit, and the end of a version.
 *
 * The states of the old and the new version change together in the journal. The
 * words in the state table change in an order that never shows a mixture: all
 * old members become LIMBO, then all new ones PUBLISHED. Only then are the old
 * members checked for holders, since that may free them.
 *
 * Words of new members may change late, since a client that finds WRITING asks
 * the broker, and old members may be freed late. If the members are many, both
 * are left to the sweep: a chore that updates the states of all members of a
 * version, a few at a time. After a restart slot_adopt_all() updates all states
 * anyway.
 */
#include "broker/tensor/bundle.h"
#include "broker/tensor/index.h"
#include "broker/tensor/manifest.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/name.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define MEMBER_LINK offsetof(struct slot_record, bundle_link)

/* Members whose state is updated within a request, and in a step of a sweep. */
#define SETTLED_AT_ONCE MESSAGE_MAX_ITEMS
#define SETTLED_A_STEP  64

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
			"this session stages no bundle %llu (any more)",
			(unsigned long long)id);
	return 0;
}

/* --- checks -------------------------------------------------------------- */

/* Does the version `old` prevent one with these flags? */
static int check_old(const struct store *store, const struct holdings *holdings,
		     uint32_t old, uint32_t flags, const char *name,
		     struct error *err)
{
	const struct bundle_record *record;

	if (!old) {
		if (!(flags & PUBLISH_MUST_EXIST))
			return 0;
		return error_set(err, -ENOENT,
				 "there is no bundle \"%s\" to replace", name);
	}
	record = catalog_bundle(&store->catalog, old);
	if (!(flags & PUBLISH_REPLACE))
		return error_set(err, -EEXIST,
				 "bundle \"%s\" exists; ask to replace it",
				 name);
	if (!access_is_owner(&holdings->credentials, record->owner_uid))
		return error_set(err, -EPERM, "bundle \"%s\" belongs to uid %u",
				 name, record->owner_uid);
	return 0;
}

/* Bundles do not nest, so that a name tells which bundle it belongs to. */
static int check_nesting(const struct store *store, uint32_t old,
			 const char *name, struct error *err)
{
	char other_name[NAME_MAX_SIZE + 1];
	uint32_t other = index_enclosing_bundle(store, name);

	if (!other || other == old)
		other = index_bundle_below(store, name);
	if (!other)
		return 0;
	bundle_name(store, other, other_name);
	return error_set(err, -EEXIST,
			 "bundle \"%s\" and the existing \"%s\" would lie in "
			 "each other",
			 name, other_name);
}

static int check_place(struct store *store, const struct holdings *holdings,
		       const char *name, uint32_t flags, struct error *err)
{
	uint32_t old = index_find_bundle(store, name);
	int r;

	r = check_old(store, holdings, old, flags, name, err);
	if (r < 0)
		return r;
	r = check_nesting(store, old, name, err);
	if (r < 0)
		return r;
	return prefix_check(store, name, holdings_record(holdings)->uid, err);
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
			 "\"%s\" is the name of a tensor outside of the "
			 "bundle; remove it first",
			 name);
}

/* --- staging ------------------------------------------------------------- */

static int charge(struct store *store, uint32_t uid, struct error *err)
{
	struct account *account = accounts_get(&store->base->accounts, uid);

	if (!account)
		return error_nomem(err, "uid %u", uid);
	return account_charge(&store->base->accounts, account, ACCOUNT_BUNDLES,
			      1, err);
}

static void refund(struct store *store, uint32_t uid)
{
	struct account *account = accounts_get(&store->base->accounts, uid);

	assert(account); /* it was charged, so it exists */
	account_refund(account, ACCOUNT_BUNDLES, 1);
}

/* Make a record with its name; 0 if the catalog is full. */
static uint32_t make_record(struct store *store, const char *name)
{
	struct catalog *catalog = &store->catalog;
	size_t size = strlen(name);
	uint64_t blob = catalog_blob_alloc(catalog, size);
	struct bundle_record *record;
	uint32_t bundle;

	if (!blob)
		return 0;
	bundle = catalog_alloc(catalog, SECTION_BUNDLE);
	if (!bundle) {
		catalog_blob_release(catalog, blob, size);
		return 0;
	}
	memcpy(catalog_blob(catalog, blob), name, size);
	record = catalog_bundle(catalog, bundle);
	record->name_blob = blob;
	record->name_size = (uint32_t)size;
	record->state = BUNDLE_STAGED;
	record->manifest_fd = -1;
	return bundle;
}

int bundle_begin(struct store *store, struct holdings *holdings,
		 const struct bundle_begin_request *request, uint64_t *ret_id,
		 struct error *err)
{
	struct catalog *catalog = &store->catalog;
	struct session_record *owner = holdings_record(holdings);
	struct access_class access;
	struct bundle_record *record;
	uint32_t bundle;
	int r;

	r = check_place(store, holdings, request->name, request->flags, err);
	if (r < 0)
		return r;
	r = access_resolve(&holdings->credentials, &request->access, &access,
			   err);
	if (r < 0)
		return r;
	r = charge(store, owner->uid, err);
	if (r < 0)
		return r;
	bundle = make_record(store, request->name);
	if (!bundle) {
		refund(store, owner->uid);
		return error_set(err, -ENOSPC,
				 "the catalog has no room for one more bundle "
				 "(%u fit); remove some",
				 catalog_capacity(SECTION_BUNDLE));
	}
	/* An empty chunk of the record's last user may still be waiting to be
	 * freed; its pool may have another access class. */
	pool_forget_bundle(&store->pools, bundle);
	record = catalog_bundle(catalog, bundle);
	record->id = catalog->header->next_bundle_id;
	record->born_ms = now_ms();
	record->ttl_ms = request->ttl_ms;
	record->loader = holdings->index;
	record->flags = request->flags;
	record->access = access;
	record->device = request->device;
	record->owner_uid = owner->uid;
	record->size_hint = request->size_hint;
	record->next = owner->first_bundle;
	catalog_set(catalog, catalog->header->next_bundle_id, record->id + 1);
	catalog_set(catalog, owner->first_bundle, bundle);
	point("bundle.begun");
	*ret_id = record->id;
	return 0;
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

/* --- end of a version ---------------------------------------------------- */

/* Remove the version from its loader's chain, if it is in one. */
static void leave_loader(struct store *store, uint32_t bundle)
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

static bool sweep(void *data, uint32_t index);

/* Start at the first member, even if a sweep is in progress. While a retired
 * version is swept, its owner's account counts memory that will be returned. */
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

static void end_sweep(struct store *store, uint32_t index)
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

static void destroy(struct store *store, uint32_t bundle)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	assert(record->state == BUNDLE_RETIRED && !record->loader);
	end_sweep(store, bundle);
	manifest_drop(store, bundle);
	refund(store, record->owner_uid);
	catalog_blob_release(catalog, record->name_blob, record->name_size);
	catalog_release(catalog, SECTION_BUNDLE, bundle);
	wake_room(&store->base->wake);
}

/* From here on only members and their holders refer to the version. */
static void make_retired(struct store *store, uint32_t bundle)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	deadlines_remove(&store->base->deadlines, &record->heap_position);
	if (record->state == BUNDLE_COMMITTED)
		index_remove_bundle(store, bundle);
	leave_loader(store, bundle);
	catalog_set(catalog, record->deadline_ms, 0);
	catalog_set(catalog, record->state, (uint32_t)BUNDLE_RETIRED);
	manifest_drop(store, bundle);
	pool_forget_bundle(&store->pools, bundle);
	point("bundle.retired");
}

static void hide_members(struct store *store, uint32_t bundle)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t slot = catalog_bundle(catalog, bundle)->members.first;

	for (; slot; slot = catalog_slot(catalog, slot)->bundle_link.next)
		slot_hide(store, slot);
}

/* Visit the next members. A retired version is freed with its last member. */
static bool sweep(void *data, uint32_t index)
{
	struct store *store = data;
	struct bundle *bundle = &store->bundles[index];
	uint32_t slot;

	for (int i = 0; i < SETTLED_A_STEP && bundle->next_swept; i++) {
		slot = bundle->next_swept;
		bundle->next_swept =
			catalog_slot(&store->catalog, slot)->bundle_link.next;
		slot_settle(store, slot);
		catalog_commit(&store->catalog);
	}
	if (bundle->next_swept)
		return true;
	end_sweep(store, index);
	return false;
}

/* Update the states of all members. */
static void settle_members(struct store *store, uint32_t index)
{
	const struct catalog *catalog = &store->catalog;
	const struct bundle_record *record = catalog_bundle(catalog, index);
	uint32_t slot = record->members.first;
	uint32_t next;

	if (record->members.n > SETTLED_AT_ONCE) {
		begin_sweep(store, index);
		return;
	}
	for (; slot; slot = next) {
		next = catalog_slot(catalog, slot)->bundle_link.next;
		slot_settle(store, slot);
	}
}

/* Release the members of a retired version, or the version if it has none. */
static void let_go(struct store *store, uint32_t bundle)
{
	if (catalog_bundle(&store->catalog, bundle)->members.n)
		settle_members(store, bundle);
	else
		destroy(store, bundle);
}

void bundle_retire(struct store *store, uint32_t bundle)
{
	bool was_shown = catalog_bundle(&store->catalog, bundle)->state ==
			 BUNDLE_COMMITTED;

	make_retired(store, bundle);
	if (was_shown)
		hide_members(store, bundle);
	let_go(store, bundle);
}

void bundle_lease(struct store *store, uint32_t bundle)
{
	store->bundles[bundle].n_leases++;
}

void bundle_unlease(struct store *store, uint32_t bundle)
{
	assert(store->bundles[bundle].n_leases > 0);
	if (--store->bundles[bundle].n_leases > 0)
		return;
	if (catalog_bundle(&store->catalog, bundle)->state == BUNDLE_RETIRED)
		settle_members(store, bundle);
}

void bundle_abort(struct store *store, uint32_t bundle)
{
	events_note_bundle(store, bundle, EVENT_ENDED);
	bundle_retire(store, bundle);
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
		destroy(store, bundle);
}

/* --- commit -------------------------------------------------------------- */

static int check_members(const struct store *store, uint32_t bundle,
			 struct error *err)
{
	const struct bundle_record *record =
		catalog_bundle(&store->catalog, bundle);
	uint32_t last = store->bundles[bundle].last_clash;
	char name[NAME_MAX_SIZE + 1];

	if (!record->members.n)
		return error_set(err, -EINVAL,
				 "the bundle has no tensors; allocate some or "
				 "abort it");
	if (!record->n_clashes)
		return 0;
	if (last) {
		slot_describe(store, last, NULL, name);
		if (bundle_check_name(store, bundle, name, err) < 0)
			return -EEXIST;
	}
	return error_set(err, -EEXIST,
			 "tensors outside of the bundle have the names of %u "
			 "of its members; remove them first",
			 record->n_clashes);
}

/* The name has expired. */
static void on_deadline(void *data, uint32_t bundle)
{
	struct store *store = data;

	events_note_bundle(store, bundle, EVENT_EXPIRED);
	bundle_retire(store, bundle);
	catalog_commit(&store->catalog);
}

static int set_deadline(struct store *store, uint32_t bundle, uint64_t at_ms,
			struct error *err)
{
	struct bundle_record *record = catalog_bundle(&store->catalog, bundle);
	struct deadline deadline = {
		.at_ms = at_ms,
		.fn = on_deadline,
		.data = store,
		.index = bundle,
		.position = &record->heap_position,
	};

	if (!at_ms)
		return 0;
	return deadlines_add(&store->base->deadlines, &deadline, err);
}

/* Switch the names from the old version to the new one; the commit makes it
 * one change. */
static void flip(struct store *store, uint32_t old, uint32_t new,
		 uint64_t deadline_ms)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, new);

	if (old)
		make_retired(store, old);
	if (!(record->flags & PUBLISH_TIED))
		leave_loader(store, new);
	catalog_set(catalog, record->deadline_ms, deadline_ms);
	catalog_set(catalog, record->state, (uint32_t)BUNDLE_COMMITTED);
	index_add_bundle(store, new);
	store->n_published += record->members.n;
	point("bundle.flipped");
}

static void wake(struct store *store, uint32_t bundle)
{
	char name[NAME_MAX_SIZE + 1];

	events_note_bundle(store, bundle, EVENT_PUBLISHED);
	/* this wakes requests for a member, too */
	bundle_name(store, bundle, name);
	wake_name(&store->base->wake, name);
}

/* Set the version number that the manifest will contain. */
static void number(struct store *store, uint32_t bundle, uint32_t old)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);
	uint64_t version = old ? catalog_bundle(catalog, old)->version + 1 : 1;

	if (record->version == version)
		return;
	catalog_set(catalog, record->version, version);
	manifest_drop(store, bundle);
}

/* Do the long parts first. Returns as bundle_commit(). */
static int work_ahead(struct store *store, uint32_t bundle, struct error *err)
{
	int sealed = pool_seal_bundle(&store->pools, bundle, err);
	int made;

	if (sealed < 0)
		return sealed;
	made = manifest_make(store, bundle, err);
	if (made < 0)
		return made;
	return sealed == POOL_OK && made == MANIFEST_OK ? POOL_OK : POOL_WAIT;
}

/* Do everything that can fail, in an order that needs no undoing when it does.
 * Returns as bundle_commit(). */
static int prepare(struct store *store, struct holdings *holdings,
		   uint32_t bundle, uint64_t deadline_ms, struct error *err)
{
	struct bundle_record *record = catalog_bundle(&store->catalog, bundle);
	char name[NAME_MAX_SIZE + 1];
	int r;

	bundle_name(store, bundle, name);
	r = check_place(store, holdings, name, record->flags, err);
	if (r == 0)
		r = check_members(store, bundle, err);
	if (r < 0)
		return r;
	number(store, bundle, index_find_bundle(store, name));
	r = work_ahead(store, bundle, err);
	if (r != POOL_OK)
		return r;
	point("bundle.sealed");
	r = set_deadline(store, bundle, deadline_ms, err);
	if (r < 0)
		return r;
	if (prefix_claim(store, name, record->owner_uid))
		return POOL_OK;
	deadlines_remove(&store->base->deadlines, &record->heap_position);
	return error_set(err, -ENOSPC,
			 "no room in the catalog for the owner of \"%s\"",
			 name);
}

int bundle_commit(struct store *store, struct holdings *holdings,
		  uint32_t bundle, uint64_t *ret_version, struct error *err)
{
	struct bundle_record *record = catalog_bundle(&store->catalog, bundle);
	uint64_t deadline_ms = record->ttl_ms ? now_ms() + record->ttl_ms : 0;
	char name[NAME_MAX_SIZE + 1];
	uint32_t old;
	int r;

	r = prepare(store, holdings, bundle, deadline_ms, err);
	if (r < 0)
		pool_forget_unsealed(&store->pools, bundle);
	if (r != POOL_OK)
		return r;
	bundle_name(store, bundle, name);
	old = index_find_bundle(store, name);
	flip(store, old, bundle, deadline_ms);
	if (old)
		hide_members(store, old);
	settle_members(store, bundle);
	if (old)
		let_go(store, old);
	wake(store, bundle);
	*ret_version = record->version;
	return 0;
}

/* --- names of members ---------------------------------------------------- */

static bool is_staged(const struct store *store, uint32_t slot)
{
	uint32_t bundle = catalog_slot(&store->catalog, slot)->bundle;

	return bundle &&
	       catalog_bundle(&store->catalog, bundle)->state == BUNDLE_STAGED;
}

void bundle_note_name(struct store *store, uint32_t slot, int change)
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

int bundle_adopt_all(struct store *store, struct error *err)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BUNDLE);
	struct bundle_record *record;
	uint32_t i;
	int r;

	for (i = 1; i <= n; i++) {
		record = catalog_bundle(catalog, i);
		if (record->state == BUNDLE_FREE)
			continue;
		record->manifest_fd = -1;
		record->size_hint = 0;
		record->heap_position = 0;
		r = accounts_charge_adopted(&store->base->accounts,
					    record->owner_uid, ACCOUNT_BUNDLES,
					    1, err);
		if (r < 0)
			return r;
		if (record->state == BUNDLE_RETIRED)
			pool_forget_bundle(&store->pools, i);
		r = set_deadline(store, i, record->deadline_ms, err);
		if (r < 0)
			return r;
	}
	return 0;
}

void bundle_drop_manifests(struct store *store)
{
	uint32_t n = catalog_n_touched(&store->catalog, SECTION_BUNDLE);

	for (uint32_t i = 1; i <= n; i++) {
		if (catalog_bundle(&store->catalog, i)->state != BUNDLE_FREE)
			manifest_drop(store, i);
	}
}
