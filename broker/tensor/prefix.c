/*
 * Records of first components are in hash chains. Those that are not used are
 * also in a list, in the order in which they became unused; one deadline serves
 * the first of the list.
 *
 * A component with a configured owner has a record, too, so that its names are
 * counted if a later configuration does not assign it.
 */
#include "broker/tensor/prefix.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/name.h"
#include <assert.h>
#include <errno.h>
#include <xxhash.h>

#define IDLE_LINK offsetof(struct prefix_record, idle_link)
/* The maximum number of records that one round of the loop ends. */
#define ENDED_AT_ONCE 64

static const char *name_of(const struct store *store,
			   const struct prefix_record *record)
{
	return catalog_blob(&store->catalog, record->name_blob);
}

static uint32_t *bucket(const struct store *store, const char *name,
			size_t size)
{
	uint64_t seed = store->catalog.header->hash_seed;

	return catalog_bucket(&store->catalog, HASH_PREFIX,
			      XXH3_64bits_withSeed(name, size, seed));
}

uint32_t prefix_find(const struct store *store, const char *name, size_t size)
{
	const struct prefix_record *record;
	uint32_t prefix = *bucket(store, name, size);

	for (; prefix; prefix = record->hash_next) {
		record = catalog_prefix(&store->catalog, prefix);
		if (record->name_size == size &&
		    !memcmp(name_of(store, record), name, size))
			return prefix;
	}
	return 0;
}

/* --- owners -------------------------------------------------------------- */

static bool configured_owner(const struct store *store, const char *name,
			     size_t size, uint32_t *ret_uid)
{
	const struct config *config = &store->base->config;
	size_t i;

	for (i = 0; i < config->n_prefixes; i++) {
		if (strlen(config->prefixes[i].name) != size ||
		    memcmp(config->prefixes[i].name, name, size))
			continue;
		*ret_uid = config->prefixes[i].uid;
		return true;
	}
	return false;
}

bool prefix_is_configured(const struct store *store,
			  const struct prefix_record *record)
{
	uint32_t uid;

	return configured_owner(store, name_of(store, record),
				record->name_size, &uid);
}

bool prefix_owner(const struct store *store, const char *name,
		  uint32_t *ret_uid)
{
	size_t size = name_prefix_size(name);
	uint32_t prefix;

	if (configured_owner(store, name, size, ret_uid))
		return true;
	prefix = prefix_find(store, name, size);
	if (prefix)
		*ret_uid = catalog_prefix(&store->catalog, prefix)->uid;
	return prefix;
}

static int explain_quota(const struct store *store,
			 const struct account *account, const char *name,
			 struct error *err)
{
	return error_set(
		err, -EDQUOT,
		"\"%.*s\" would be a new first component of names, and uid %u "
		"owns %llu of at most %llu: remove all names and bundles below "
		"one (fsdpctl prefixes lists them), which frees it after %llu "
		"s, or have quota_prefixes raised",
		(int)name_prefix_size(name), name, account->uid,
		(unsigned long long)account->used[ACCOUNT_PREFIXES],
		(unsigned long long)account_limit(&store->base->accounts,
						  account, ACCOUNT_PREFIXES),
		(unsigned long long)store->base->config.prefix_grace_ms / 1000);
}

/* Checks that the account can be charged for a claim, and that the catalog has
 * a free record. */
static int check_claim(struct store *store, const char *name, uint32_t uid,
		       struct error *err)
{
	struct account *account = accounts_get(&store->base->accounts, uid);

	if (!account)
		return error_nomem(err, "uid %u", uid);
	if (!account_left(&store->base->accounts, account, ACCOUNT_PREFIXES))
		return explain_quota(store, account, name, err);
	return catalog_check_room(&store->catalog, SECTION_PREFIX, 1,
				  "first components of names", err);
}

int prefix_check(struct store *store, const char *name, uint32_t uid,
		 struct error *err)
{
	uint32_t owner;

	return prefix_owner(store, name, &owner)
		       ? prefix_check_owner(store, name, uid, err)
		       : check_claim(store, name, uid, err);
}

int prefix_check_owner(const struct store *store, const char *name,
		       uint32_t uid, struct error *err)
{
	uint32_t owner;

	if (!prefix_owner(store, name, &owner) || owner == uid || uid == 0)
		return 0;
	return error_set(err, -EPERM,
			 "names that begin with \"%.*s\" belong to uid %u, "
			 "not to uid %u; use another first component",
			 (int)name_prefix_size(name), name, owner, uid);
}

/* --- expiry -------------------------------------------------------------- */

static void destroy(struct store *store, uint32_t prefix)
{
	struct catalog *catalog = &store->catalog;
	struct prefix_record *record = catalog_prefix(catalog, prefix);

	if (!prefix_is_configured(store, record))
		accounts_refund(&store->base->accounts, record->uid,
				ACCOUNT_PREFIXES, 1);
	catalog_chain_remove(
		catalog, SECTION_PREFIX,
		bucket(store, name_of(store, record), record->name_size),
		prefix);
	catalog_list_remove(catalog, &catalog->header->idle_prefixes,
			    SECTION_PREFIX, IDLE_LINK, prefix);
	catalog_blob_release(catalog, record->name_blob, record->name_size);
	catalog_release(catalog, SECTION_PREFIX, prefix);
}

static void on_idle(void *data, uint32_t index);

/* Returns when the first unused component expires. */
static uint64_t next_end_ms(const struct store *store)
{
	uint32_t first = store->catalog.header->idle_prefixes.first;

	return catalog_prefix(&store->catalog, first)->idle_ms +
	       store->base->config.prefix_grace_ms;
}

static void plan_end(struct store *store)
{
	struct deadline deadline = {
		.fn = on_idle,
		.data = store,
		.position = &store->prefix_position,
	};

	if (store->prefix_position ||
	    !store->catalog.header->idle_prefixes.first)
		return;
	deadline.at_ms = next_end_ms(store);
	/* If memory runs out, the next component that becomes unused
	 * tries again. */
	(void)deadlines_add(&store->base->deadlines, &deadline, NULL);
}

static void on_idle(void *data, uint32_t index)
{
	struct store *store = data;
	struct list *idle = &store->catalog.header->idle_prefixes;

	(void)index;
	for (int n = 0;
	     n < ENDED_AT_ONCE && idle->first && next_end_ms(store) <= now_ms();
	     n++)
		destroy(store, idle->first);
	catalog_commit(&store->catalog);
	plan_end(store);
}

static void begin_idle(struct store *store, uint32_t prefix)
{
	struct catalog *catalog = &store->catalog;

	catalog_set(catalog, catalog_prefix(catalog, prefix)->idle_ms,
		    now_ms());
	catalog_list_append(catalog, &catalog->header->idle_prefixes,
			    SECTION_PREFIX, IDLE_LINK, prefix);
	plan_end(store);
}

/* --- use ----------------------------------------------------------------- */

static bool is_idle(const struct prefix_record *record)
{
	return record->n_names == 0 && record->n_bundles == 0;
}

uint64_t prefix_left_ms(const struct store *store,
			const struct prefix_record *record)
{
	uint64_t end_ms = record->idle_ms + store->base->config.prefix_grace_ms;
	uint64_t now = now_ms();

	if (!is_idle(record))
		return 0;
	return end_ms > now ? end_ms - now : 1;
}

static uint32_t *counter(struct prefix_record *record, const char *name,
			 size_t size)
{
	return name[size - 1] == '/' ? &record->n_bundles : &record->n_names;
}

/* Returns the record of the first component of `name`, which has no final 0,
 * since it may be in the catalog. */
static struct prefix_record *record_of(const struct store *store,
				       const char *name, size_t size,
				       uint32_t *ret_prefix)
{
	const char *end = memchr(name, '/', size);

	*ret_prefix =
		prefix_find(store, name, end ? (size_t)(end - name) : size);
	assert(*ret_prefix); /* it was claimed and is in use */
	return catalog_prefix(&store->catalog, *ret_prefix);
}

void prefix_use(struct store *store, const char *name, size_t size)
{
	struct catalog *catalog = &store->catalog;
	uint32_t prefix;
	struct prefix_record *record = record_of(store, name, size, &prefix);
	uint32_t *n = counter(record, name, size);

	if (is_idle(record))
		catalog_list_remove(catalog, &catalog->header->idle_prefixes,
				    SECTION_PREFIX, IDLE_LINK, prefix);
	catalog_set(catalog, *n, *n + 1);
}

void prefix_end_use(struct store *store, const char *name, size_t size)
{
	struct catalog *catalog = &store->catalog;
	uint32_t prefix;
	struct prefix_record *record = record_of(store, name, size, &prefix);
	uint32_t *n = counter(record, name, size);

	assert(*n > 0);
	catalog_set(catalog, *n, *n - 1);
	if (is_idle(record))
		begin_idle(store, prefix);
}

static int explain_full(const char *name, struct error *err)
{
	return error_set(err, -ENOSPC,
			 "the catalog has no room for the owner of \"%s\"; "
			 "remove all names below another first component",
			 name);
}

/* Makes a record that is not used yet. Returns 0 if the catalog is full. */
static uint32_t make(struct store *store, const char *name, uint32_t uid)
{
	struct catalog *catalog = &store->catalog;
	size_t size = name_prefix_size(name);
	uint32_t *head = bucket(store, name, size);
	uint64_t blob = catalog_blob_alloc(catalog, size);
	struct prefix_record *record;
	uint32_t prefix;

	if (!blob)
		return 0;
	prefix = catalog_alloc(catalog, SECTION_PREFIX);
	if (!prefix) {
		catalog_blob_release(catalog, blob, size);
		return 0;
	}
	memcpy(catalog_blob(catalog, blob), name, size);
	record = catalog_prefix(catalog, prefix);
	record->name_blob = blob;
	record->name_size = (uint32_t)size;
	record->uid = uid;
	record->hash_next = *head;
	catalog_set(catalog, *head, prefix);
	begin_idle(store, prefix);
	return prefix;
}

static int make_charged(struct store *store, const char *name, uint32_t uid,
			struct error *err)
{
	struct account *account = accounts_get(&store->base->accounts, uid);

	if (!account)
		return error_nomem(err, "uid %u", uid);
	if (account_charge(&store->base->accounts, account, ACCOUNT_PREFIXES, 1,
			   NULL) < 0)
		return explain_quota(store, account, name, err);
	if (make(store, name, uid))
		return 0;
	account_refund(account, ACCOUNT_PREFIXES, 1);
	return explain_full(name, err);
}

int prefix_claim(struct store *store, const char *name, uint32_t uid,
		 struct error *err)
{
	size_t size = name_prefix_size(name);

	if (prefix_find(store, name, size))
		return 0;
	if (!configured_owner(store, name, size, &uid))
		return make_charged(store, name, uid, err);
	return make(store, name, uid) ? 0 : explain_full(name, err);
}

void prefix_unclaim(struct store *store, const char *name)
{
	uint32_t prefix = prefix_find(store, name, name_prefix_size(name));

	assert(prefix);
	destroy(store, prefix);
}

/* Returns whether the record exists and its user is charged for it. */
static bool is_charged(const struct store *store,
		       const struct prefix_record *record)
{
	return record->name_size && !prefix_is_configured(store, record);
}

static int make_accounts(struct store *store, struct error *err)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_PREFIX);

	for (uint32_t i = 1; i <= n; i++) {
		const struct prefix_record *record = catalog_prefix(catalog, i);

		if (record->name_size &&
		    !accounts_get(&store->base->accounts, record->uid))
			return error_nomem(err, "uid %u", record->uid);
	}
	return 0;
}

/* make_accounts() has made an account for each owner, so no charge fails. */
static void charge_all(struct store *store)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_PREFIX);

	for (uint32_t i = 1; i <= n; i++) {
		const struct prefix_record *record = catalog_prefix(catalog, i);

		if (is_charged(store, record))
			(void)accounts_charge_adopted(
				&store->base->accounts, record->uid,
				ACCOUNT_PREFIXES, 1, NULL);
	}
}

static void refund_all(struct store *store)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_PREFIX);

	for (uint32_t i = 1; i <= n; i++) {
		const struct prefix_record *record = catalog_prefix(catalog, i);

		if (is_charged(store, record))
			accounts_refund(&store->base->accounts, record->uid,
					ACCOUNT_PREFIXES, 1);
	}
}

int prefix_adopt_all(struct store *store, struct error *err)
{
	int r = make_accounts(store, err);

	if (r < 0)
		return r;
	charge_all(store);
	plan_end(store);
	return 0;
}

int prefix_reconfigure(struct store *store, const struct config *next,
		       struct error *err)
{
	int r = make_accounts(store, err);

	if (r < 0)
		return r;
	refund_all(store);
	store->base->config = *next;
	charge_all(store);
	/* The first deadline may be sooner with the new configuration. */
	deadlines_remove(&store->base->deadlines, &store->prefix_position);
	plan_end(store);
	return 0;
}
