/*
 * Bundles: begin, commit, and the end of a version.
 *
 * The states of old and new version change together in the journal; words of
 * the state table follow in an order that never shows a mixture: all old ones
 * LIMBO, then all new ones PUBLISHED. Only then are old members looked at for
 * holders, since that may free them.
 */
#include "broker/bundle.h"
#include "broker/broker.h"
#include "broker/index.h"
#include "broker/prefix.h"
#include "broker/slot.h"
#include "proto/error.h"
#include "proto/name.h"
#include "proto/point.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define MEMBER_LINK offsetof(struct slot_record, bundle_link)

/* Entering limbo notes this much per member at most. */
#define RETIRE_ROOM 112

void bundle_name(const struct broker *broker, uint32_t bundle, char *ret)
{
	const struct bundle_record *record =
		catalog_bundle(&broker->catalog, bundle);

	memcpy(ret, catalog_blob(&broker->catalog, record->name_blob),
	       record->name_size);
	ret[record->name_size] = '\0';
}

uint32_t bundle_find_staged(const struct broker *broker,
			    const struct session *session, uint64_t id,
			    struct error *err)
{
	const struct catalog *catalog = &broker->catalog;
	uint32_t bundle = session_record(session)->first_bundle;
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

/* --- checks
 * -------------------------------------------------------------------- */

/* Does the version `old` stand in the way of one with these flags? */
static int check_old(const struct broker *broker, const struct session *session,
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
	record = catalog_bundle(&broker->catalog, old);
	if (!(flags & PUBLISH_REPLACE))
		return error_set(err, -EEXIST,
				 "bundle \"%s\" exists; ask to replace it",
				 name);
	if (!session_is_owner(session, record->owner_uid))
		return error_set(err, -EPERM, "bundle \"%s\" belongs to uid %u",
				 name, record->owner_uid);
	return 0;
}

/* Bundles do not nest: whose name it is must be plain from the name. */
static int check_nesting(const struct broker *broker, uint32_t old,
			 const char *name, struct error *err)
{
	char other_name[NAME_MAX_SIZE + 1];
	uint32_t other = index_enclosing_bundle(broker, name);

	if (!other || other == old)
		other = index_bundle_below(broker, name);
	if (!other)
		return 0;
	bundle_name(broker, other, other_name);
	return error_set(err, -EEXIST,
			 "bundle \"%s\" and the existing \"%s\" would lie in "
			 "each other",
			 name, other_name);
}

static int check_place(struct broker *broker, const struct session *session,
		       const char *name, uint32_t flags, struct error *err)
{
	uint32_t old = index_find_bundle(broker, name);
	int r;

	r = check_old(broker, session, old, flags, name, err);
	if (r < 0)
		return r;
	r = check_nesting(broker, old, name, err);
	if (r < 0)
		return r;
	return prefix_check(broker, name, session_record(session)->uid, err);
}

int bundle_check_name(const struct broker *broker, uint32_t bundle,
		      const char *name, struct error *err)
{
	const struct catalog *catalog = &broker->catalog;
	const struct bundle_record *ours = catalog_bundle(catalog, bundle);
	const struct bundle_record *theirs;
	uint32_t shown = index_find(broker, name);
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

/* --- staging
 * --------------------------------------------------------------------- */

static int charge(struct broker *broker, uint32_t uid, struct error *err)
{
	struct account *account = accounts_get(&broker->accounts, uid);

	if (!account)
		return error_set(err, -ENOMEM, "no memory for uid %u", uid);
	return account_charge(&broker->accounts, account, ACCOUNT_BUNDLES, 1,
			      err);
}

static void refund(struct broker *broker, uint32_t uid)
{
	struct account *account = accounts_get(&broker->accounts, uid);

	assert(account); /* it was charged, so it is there */
	account_refund(account, ACCOUNT_BUNDLES, 1);
}

/* A record with its name; 0 if the catalog is full. */
static uint32_t make_record(struct broker *broker, const char *name)
{
	struct catalog *catalog = &broker->catalog;
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

int bundle_begin(struct broker *broker, struct session *session,
		 const struct bundle_begin_request *request, uint64_t *ret_id,
		 struct error *err)
{
	struct catalog *catalog = &broker->catalog;
	struct session_record *owner = session_record(session);
	struct access_class access;
	struct bundle_record *record;
	uint32_t bundle;
	int r;

	r = check_place(broker, session, request->name, request->flags, err);
	if (r < 0)
		return r;
	r = slot_resolve_access(session, &request->access, &access, err);
	if (r < 0)
		return r;
	r = charge(broker, owner->uid, err);
	if (r < 0)
		return r;
	bundle = make_record(broker, request->name);
	if (!bundle) {
		refund(broker, owner->uid);
		return error_set(err, -ENOSPC,
				 "the catalog has no room for one more bundle "
				 "(%u fit); remove some",
				 catalog_capacity(SECTION_BUNDLE));
	}
	/* An empty chunk of the record's last user may still be on its way
	 * out; its pool is of another access class. */
	pool_forget_bundle(&broker->pools, bundle);
	record = catalog_bundle(catalog, bundle);
	record->id = catalog->header->next_bundle_id;
	record->born_ms = now_ms();
	record->ttl_ms = request->ttl_ms;
	record->loader = session->index;
	record->flags = request->flags;
	record->access = access;
	record->device = request->device;
	record->owner_uid = owner->uid;
	record->manifest_size = request->size_hint; /* until it is one */
	record->next = owner->first_bundle;
	catalog_set(catalog, catalog->header->next_bundle_id, record->id + 1);
	catalog_set(catalog, owner->first_bundle, bundle);
	point("bundle.begun");
	*ret_id = record->id;
	return 0;
}

void bundle_add_member(struct broker *broker, uint32_t bundle, uint32_t slot)
{
	struct catalog *catalog = &broker->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);
	struct slot_record *member = catalog_slot(catalog, slot);
	uint64_t size = pool_block_size(member->size, &record->device);

	catalog_set(catalog, member->bundle, bundle);
	catalog_set(catalog, member->flags, (uint16_t)SLOT_FLAG_NAMED);
	catalog_list_append(catalog, &record->members, SECTION_SLOT,
			    MEMBER_LINK, slot);
	index_add(broker, slot);
	record->manifest_size -=
		size < record->manifest_size ? size : record->manifest_size;
}

uint64_t bundle_size_left(const struct broker *broker, uint32_t bundle)
{
	return catalog_bundle(&broker->catalog, bundle)->manifest_size;
}

/* --- the end of a version
 * --------------------------------------------------------- */

/* Out of its loader's chain, if it is in one. */
static void leave_loader(struct broker *broker, uint32_t bundle)
{
	struct catalog *catalog = &broker->catalog;
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

static void close_manifest(struct bundle_record *record)
{
	if (record->manifest_fd >= 0)
		close(record->manifest_fd);
	record->manifest_fd = -1;
}

static void destroy(struct broker *broker, uint32_t bundle)
{
	struct catalog *catalog = &broker->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	assert(record->state == BUNDLE_RETIRED && !record->loader);
	close_manifest(record);
	refund(broker, record->owner_uid);
	catalog_blob_release(catalog, record->name_blob, record->name_size);
	catalog_release(catalog, SECTION_BUNDLE, bundle);
	waiters_wake_room(broker);
}

/* Nothing points to it any more but its members and their holders. */
static void make_retired(struct broker *broker, uint32_t bundle)
{
	struct catalog *catalog = &broker->catalog;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	deadlines_remove(&broker->deadlines, &record->heap_position);
	if (record->state == BUNDLE_COMMITTED)
		index_remove_bundle(broker, bundle);
	leave_loader(broker, bundle);
	catalog_set(catalog, record->deadline_ms, 0);
	catalog_set(catalog, record->state, (uint32_t)BUNDLE_RETIRED);
	close_manifest(record);
	pool_forget_bundle(&broker->pools, bundle);
	point("bundle.retired");
}

static void hide_members(struct broker *broker, uint32_t bundle)
{
	const struct catalog *catalog = &broker->catalog;
	uint32_t slot = catalog_bundle(catalog, bundle)->members.first;

	for (; slot; slot = catalog_slot(catalog, slot)->bundle_link.next)
		slot_hide(broker, slot);
}

/* Settle all members; the record of a retired version goes with the last. */
static void settle_members(struct broker *broker, uint32_t bundle)
{
	const struct catalog *catalog = &broker->catalog;
	uint32_t slot = catalog_bundle(catalog, bundle)->members.first;
	uint32_t next;

	for (; slot; slot = next) {
		next = catalog_slot(catalog, slot)->bundle_link.next;
		slot_settle(broker, slot);
	}
}

/* A retired version's members, or the version itself if it has none. */
static void let_go(struct broker *broker, uint32_t bundle)
{
	if (catalog_bundle(&broker->catalog, bundle)->members.n)
		settle_members(broker, bundle);
	else
		destroy(broker, bundle);
}

void bundle_retire(struct broker *broker, uint32_t bundle)
{
	struct catalog *catalog = &broker->catalog;
	size_t n = catalog_bundle(catalog, bundle)->members.n;

	/* Only where a dead session leaves several: a request has not got so
	 * far (BUNDLE_MAX_MEMBERS in all). */
	if (catalog_journal_room(catalog) <
	    n * RETIRE_ROOM + SLOT_SETTLE_ROOM / 4)
		catalog_commit(catalog);
	make_retired(broker, bundle);
	hide_members(broker, bundle);
	let_go(broker, bundle);
}

void bundle_abort(struct broker *broker, uint32_t bundle)
{
	bundle_retire(broker, bundle);
}

void bundle_forget_member(struct broker *broker, uint32_t slot)
{
	struct catalog *catalog = &broker->catalog;
	struct slot_record *member = catalog_slot(catalog, slot);
	uint32_t bundle = member->bundle;
	struct bundle_record *record = catalog_bundle(catalog, bundle);

	catalog_list_remove(catalog, &record->members, SECTION_SLOT,
			    MEMBER_LINK, slot);
	catalog_set(catalog, member->bundle, 0);
	if (record->state == BUNDLE_RETIRED && !record->members.n)
		destroy(broker, bundle);
}

/* --- commit
 * ------------------------------------------------------------------------- */

static int check_members(const struct broker *broker, uint32_t bundle,
			 struct error *err)
{
	const struct catalog *catalog = &broker->catalog;
	uint32_t slot = catalog_bundle(catalog, bundle)->members.first;
	char name[NAME_MAX_SIZE + 1];
	int r;

	if (!slot)
		return error_set(err, -EINVAL,
				 "the bundle has no tensors; allocate some or "
				 "abort it");
	for (; slot; slot = catalog_slot(catalog, slot)->bundle_link.next) {
		slot_describe(broker, slot, NULL, name);
		r = bundle_check_name(broker, bundle, name, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* The time of its name is over. */
static void on_deadline(void *data, uint32_t bundle)
{
	struct broker *broker = data;

	bundle_retire(broker, bundle);
	catalog_commit(&broker->catalog);
}

static int set_deadline(struct broker *broker, uint32_t bundle, uint64_t at_ms,
			struct error *err)
{
	struct bundle_record *record = catalog_bundle(&broker->catalog, bundle);
	struct deadline deadline = {
		.at_ms = at_ms,
		.fn = on_deadline,
		.data = broker,
		.index = bundle,
		.position = &record->heap_position,
	};

	if (!at_ms)
		return 0;
	return deadlines_add(&broker->deadlines, &deadline, err);
}

/* The one moment: names point to the new version, not to the old one. */
static void flip(struct broker *broker, uint32_t old, uint32_t new,
		 uint64_t deadline_ms)
{
	struct catalog *catalog = &broker->catalog;
	struct bundle_record *record = catalog_bundle(catalog, new);
	uint64_t version = 1;

	if (old) {
		version = catalog_bundle(catalog, old)->version + 1;
		make_retired(broker, old);
	}
	if (!(record->flags & PUBLISH_TIED))
		leave_loader(broker, new);
	catalog_set(catalog, record->version, version);
	catalog_set(catalog, record->deadline_ms, deadline_ms);
	catalog_set(catalog, record->state, (uint32_t)BUNDLE_COMMITTED);
	index_add_bundle(broker, new);
	point("bundle.flipped");
}

/* Versions of the members are the bundle's. */
static void show_members(struct broker *broker, uint32_t bundle)
{
	struct catalog *catalog = &broker->catalog;
	const struct bundle_record *record = catalog_bundle(catalog, bundle);
	uint32_t slot = record->members.first;
	struct slot_record *member;

	for (; slot; slot = member->bundle_link.next) {
		member = catalog_slot(catalog, slot);
		catalog_set(catalog, member->version, record->version);
		slot_settle(broker, slot);
		broker->n_published++;
	}
}

static void wake(struct broker *broker, uint32_t bundle)
{
	char name[NAME_MAX_SIZE + 1];

	/* wakes those who wait for a member as well */
	bundle_name(broker, bundle, name);
	waiters_wake_name(broker, name);
}

/* What can fail, in an order that leaves nothing behind when it does. As
 * bundle_commit(). */
static int prepare(struct broker *broker, struct session *session,
		   uint32_t bundle, uint64_t deadline_ms, struct error *err)
{
	struct bundle_record *record = catalog_bundle(&broker->catalog, bundle);
	char name[NAME_MAX_SIZE + 1];
	int r;

	bundle_name(broker, bundle, name);
	r = check_place(broker, session, name, record->flags, err);
	if (r < 0)
		return r;
	r = check_members(broker, bundle, err);
	if (r < 0)
		return r;
	r = pool_seal_bundle(&broker->pools, bundle, err);
	if (r != POOL_OK)
		return r;
	point("bundle.sealed");
	r = set_deadline(broker, bundle, deadline_ms, err);
	if (r < 0)
		return r;
	if (prefix_claim(broker, name, record->owner_uid))
		return POOL_OK;
	deadlines_remove(&broker->deadlines, &record->heap_position);
	return error_set(err, -ENOSPC,
			 "no room in the catalog for the owner of \"%s\"",
			 name);
}

int bundle_commit(struct broker *broker, struct session *session,
		  uint32_t bundle, uint64_t *ret_version, struct error *err)
{
	struct bundle_record *record = catalog_bundle(&broker->catalog, bundle);
	uint64_t deadline_ms = record->ttl_ms ? now_ms() + record->ttl_ms : 0;
	char name[NAME_MAX_SIZE + 1];
	uint32_t old;
	int r;

	r = prepare(broker, session, bundle, deadline_ms, err);
	if (r < 0)
		pool_forget_unsealed(&broker->pools, bundle);
	if (r != POOL_OK)
		return r;
	bundle_name(broker, bundle, name);
	old = index_find_bundle(broker, name);
	flip(broker, old, bundle, deadline_ms);
	if (old)
		hide_members(broker, old);
	show_members(broker, bundle);
	if (old)
		let_go(broker, old);
	wake(broker, bundle);
	*ret_version = record->version;
	return 0;
}

/* --- manifest
 * ----------------------------------------------------------------------- */

/* The encoded places of all members; the caller frees. */
static int encode_places(const struct broker *broker, uint32_t bundle,
			 uint8_t **ret_bytes, size_t *ret_size,
			 struct error *err)
{
	const struct catalog *catalog = &broker->catalog;
	const struct list *members = &catalog_bundle(catalog, bundle)->members;
	struct places_reply reply = {.n_places = members->n};
	char(*names)[NAME_MAX_SIZE + 1];
	uint32_t slot = members->first;
	uint32_t i;
	int r;

	reply.places = calloc(members->n, sizeof(*reply.places));
	names = calloc(members->n, sizeof(*names));
	if (!reply.places || !names) {
		r = error_set(err, -ENOMEM, "no memory for %u places",
			      members->n);
		goto free_all;
	}
	for (i = 0; i < members->n; i++) {
		slot_place(broker, slot, names[i], &reply.places[i]);
		slot = catalog_slot(catalog, slot)->bundle_link.next;
	}
	r = places_encode(&reply, ret_bytes, ret_size, err);
free_all:
	free(reply.places);
	free(names);
	return r;
}

static int write_all(int fd, const uint8_t *bytes, size_t size,
		     struct error *err)
{
	size_t done = 0;
	ssize_t n;

	while (done < size) {
		n = pwrite(fd, bytes + done, size - done, (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno, "write a manifest");
		done += (size_t)n;
	}
	return 0;
}

/* A sealed memfd of these bytes. Its descriptor is read-only: the kernel
 * refuses to map a write-sealed one that could write, even for reading. */
static int make_memfd(const uint8_t *bytes, size_t size, int *ret_fd,
		      struct error *err)
{
	int fd, r;

	r = memfd_create_sealed("fsdpd-manifest", size, MEMFD_SEAL_SIZE, &fd,
				err);
	if (r < 0)
		return r;
	r = write_all(fd, bytes, size, err);
	if (r == 0)
		r = memfd_seal_write(fd, err);
	if (r == 0)
		r = memfd_open_readonly(fd, ret_fd, err);
	close(fd);
	return r;
}

int bundle_manifest(struct broker *broker, uint32_t bundle, int *ret_fd,
		    uint64_t *ret_size, struct error *err)
{
	struct bundle_record *record = catalog_bundle(&broker->catalog, bundle);
	uint8_t *bytes;
	size_t size;
	int fd, r;

	if (record->manifest_fd < 0) {
		r = encode_places(broker, bundle, &bytes, &size, err);
		if (r < 0)
			return error_wrap(err, r, "manifest");
		r = make_memfd(bytes, size, &fd, err);
		free(bytes);
		if (r < 0)
			return error_wrap(err, r, "manifest");
		record->manifest_fd = fd;
		record->manifest_size = size;
	}
	*ret_fd = record->manifest_fd;
	*ret_size = record->manifest_size;
	return 0;
}

int bundle_adopt_all(struct broker *broker, struct error *err)
{
	struct catalog *catalog = &broker->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_BUNDLE);
	struct bundle_record *record;
	struct account *account;
	uint32_t i;
	int r;

	for (i = 1; i <= n; i++) {
		record = catalog_bundle(catalog, i);
		if (record->state == BUNDLE_FREE)
			continue;
		record->manifest_fd = -1;
		record->manifest_size = 0;
		record->heap_position = 0;
		account = accounts_get(&broker->accounts, record->owner_uid);
		if (!account)
			return error_set(err, -ENOMEM, "no memory for uid %u",
					 record->owner_uid);
		account_charge_adopted(account, ACCOUNT_BUNDLES, 1);
		if (record->state == BUNDLE_RETIRED)
			pool_forget_bundle(&broker->pools, i);
		r = set_deadline(broker, i, record->deadline_ms, err);
		if (r < 0)
			return r;
	}
	return 0;
}
