/*
 * Bundles: begin and commit.
 *
 * The states of the old and the new version change together in the journal. The
 * words in the state table change in an order that never shows a mixture: all
 * old members become LIMBO, then all new ones PUBLISHED. Only then are the old
 * members checked for holders, since that may free them.
 *
 * Words of new members may change late, since a client that finds WRITING asks
 * the broker, and old members may be freed late: both may be left to the sweep
 * (bundle_end.c). After a restart slot_adopt_all() updates all states anyway.
 */
#include "broker/tensor/bundle_commit.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/bundle_end.h"
#include "broker/tensor/events.h"
#include "broker/tensor/index.h"
#include "broker/tensor/manifest.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/name.h"
#include <errno.h>

/* --- checks -------------------------------------------------------------- */

/* Checks that the version `old` permits a new one with these flags. */
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
	if (!access_is_owner(&holdings->credentials, record->owner_uid))
		return error_set(err,
				 flags & PUBLISH_REPLACE ? -EPERM : -EEXIST,
				 "bundle \"%s\" exists and belongs to uid %u; "
				 "use another name",
				 name, record->owner_uid);
	if (flags & PUBLISH_REPLACE)
		return 0;
	return error_set(err, -EEXIST,
			 "bundle \"%s\" exists; to replace it, pass "
			 "FSDP_REPLACE (fsdpctl: --replace; "
			 "Python: replace=True)",
			 name);
}

/* Checks that no bundle contains another one, so that a name tells which bundle
 * it belongs to. */
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
			 "bundle \"%s\" would overlap with the existing bundle "
			 "\"%s\"; use another name, or remove that one",
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

/* --- staging ------------------------------------------------------------- */

/* Makes a record with its name. Returns 0 if the catalog is full. */
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

/* Returns whether a session stages this bundle with PUBLISH_ONCE. */
static bool is_loading(const struct store *store, const char *name)
{
	uint32_t at = 0;

	do
		at = bundle_next(store, name, BUNDLE_STAGED, at);
	while (at &&
	       !(catalog_bundle(&store->catalog, at)->flags & PUBLISH_ONCE));
	return at;
}

/* Charges the account for a bundle, and makes its record. */
static int take_record(struct store *store, struct holdings *holdings,
		       const char *name, uint32_t *ret, struct error *err)
{
	int r = account_charge(&store->base->accounts, holdings->account,
			       ACCOUNT_BUNDLES, 1, err);

	if (r < 0)
		return r;
	*ret = make_record(store, name);
	if (*ret)
		return 0;
	account_refund(holdings->account, ACCOUNT_BUNDLES, 1);
	return error_set(err, -ENOSPC,
			 "the catalog has no room for one more bundle (%u "
			 "fit); remove some",
			 catalog_capacity(SECTION_BUNDLE));
}

/* Fills the record of a bundle that the session stages. Returns its id. */
static uint64_t stage(struct store *store, struct holdings *holdings,
		      uint32_t bundle,
		      const struct bundle_begin_request *request,
		      const struct access_class *access)
{
	struct catalog *catalog = &store->catalog;
	struct session_record *owner = holdings_record(holdings);
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	record->id = catalog->header->next_bundle_id;
	record->born_ms = now_ms();
	record->ttl_ms = request->ttl_ms;
	record->loader = holdings->index;
	record->flags = request->flags;
	record->access = *access;
	record->device = request->device;
	record->owner_uid = owner->uid;
	record->size_hint = request->size_hint;
	record->n_kept = request->n_kept;
	record->next = owner->first_bundle;
	catalog_set(catalog, catalog->header->next_bundle_id, record->id + 1);
	catalog_set(catalog, owner->first_bundle, bundle);
	failpoint("bundle.begun");
	return record->id;
}

int bundle_begin(struct store *store, struct holdings *holdings,
		 const struct bundle_begin_request *request, uint64_t *ret_id,
		 struct error *err)
{
	struct access_class access;
	uint32_t bundle;
	int r = check_place(store, holdings, request->name, request->flags,
			    err);

	if (r < 0)
		return r;
	if ((request->flags & PUBLISH_ONCE) && is_loading(store, request->name))
		return BUNDLE_IS_LOADING;
	r = access_resolve(&holdings->credentials, &request->access, &access,
			   err);
	if (r == 0)
		r = take_record(store, holdings, request->name, &bundle, err);
	if (r < 0)
		return r;
	/* An empty chunk of the record's previous bundle may still be waiting
	 * to be freed; its pool may have another access class. */
	pool_forget_bundle(&store->pools, bundle);
	*ret_id = stage(store, holdings, bundle, request, &access);
	return BUNDLE_BEGUN;
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
			 "tensors that are not in the bundle have the names of "
			 "%u of its members; remove them first",
			 record->n_clashes);
}

/* Ends a name that has expired. */
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

/* Switches the names from the old version to the new one. The commit of the
 * transaction makes this one change. */
static void flip(struct store *store, uint32_t old, uint32_t new,
		 uint64_t deadline_ms)
{
	struct catalog *catalog = &store->catalog;
	struct bundle_record *record = catalog_bundle(catalog, new);

	if (old && record->n_kept > 1)
		bundle_make_kept(store, old);
	else if (old)
		bundle_make_retired(store, old);
	if (!(record->flags & PUBLISH_TIED))
		bundle_leave_loader(store, new);
	catalog_set(catalog, record->deadline_ms, deadline_ms);
	catalog_set(catalog, record->state, (uint32_t)BUNDLE_COMMITTED);
	index_add_bundle(store, new);
	store->n_published += record->members.n;
	failpoint("bundle.flipped");
}

static void wake(struct store *store, uint32_t bundle)
{
	char name[NAME_MAX_SIZE + 1];

	events_note_bundle(store, bundle, EVENT_PUBLISHED);
	/* this wakes the requests for members, too */
	bundle_name(store, bundle, name);
	wake_name(&store->base->wake, name);
}

/* Sets the version number that the manifest will contain. */
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

/* Does the long parts. Returns as bundle_commit(). */
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

/* Does everything that can fail, in an order in which no failure needs undoing.
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
	failpoint("bundle.sealed");
	r = set_deadline(store, bundle, deadline_ms, err);
	if (r < 0)
		return r;
	r = prefix_claim(store, name, record->owner_uid, err);
	if (r < 0)
		deadlines_remove(&store->base->deadlines,
				 &record->heap_position);
	return r < 0 ? r : POOL_OK;
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
		bundle_hide_members(store, old);
	bundle_update_members(store, bundle);
	if (old && record->n_kept <= 1)
		bundle_drop_retired(store, old);
	bundle_trim_kept(store, name, record->n_kept ? record->n_kept - 1 : 0);
	wake(store, bundle);
	*ret_version = record->version;
	return 0;
}

/* --- adoption ------------------------------------------------------------ */

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
