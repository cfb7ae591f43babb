/*
 * First components of names, and their owners.
 *
 * The first user of a first component owns it, from its first name or bundle
 * until `prefix_grace_ms` after the last one has ended, so that a name between
 * two versions keeps its owner. The owner's account is charged for it. The
 * configuration ([prefixes]) can assign permanent owners, which are not
 * charged. Visible names (outside bundles) and visible bundles are counted in
 * the catalog, in the transactions that show and end them.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;
struct error;
struct store;

/*
 * prefix_check() checks that `uid` may use names with this first component, and
 * changes nothing. Root may use any. After a successful check, prefix_claim()
 * records the owner; it fails if the catalog is full, or if earlier claims of
 * the same request have used up the quota. A claim without a name expires as
 * any other. prefix_unclaim() undoes a claim of the same request.
 */
int prefix_check(struct store *store, const char *name, uint32_t uid,
		 struct error *err);
int prefix_claim(struct store *store, const char *name, uint32_t uid,
		 struct error *err);
void prefix_unclaim(struct store *store, const char *name);
/* Does the same as prefix_check() for something that needs no owner. */
int prefix_check_owner(const struct store *store, const char *name,
		       uint32_t uid, struct error *err);

/* Finds the owner of the first component. Returns false if it has none. */
bool prefix_owner(const struct store *store, const char *name,
		  uint32_t *ret_uid);

/* prefix_use() records that a name of `size` bytes (or a bundle, with a '/' at
 * its end) has become visible, and prefix_end_use() that it has ended. Its
 * first component was claimed. */
void prefix_use(struct store *store, const char *name, size_t size);
void prefix_end_use(struct store *store, const char *name, size_t size);

/* Returns the record of this first component, or 0. */
uint32_t prefix_find(const struct store *store, const char *name, size_t size);

/*
 * Replaces the configuration by `next`. This may change the owners of first
 * components; the new owners are then charged. On -ENOMEM nothing has changed.
 */
int prefix_reconfigure(struct store *store, const struct config *next,
		       struct error *err);

/* Returns whether the configuration assigns an owner to the first component. */
bool prefix_is_configured(const struct store *store,
			  const struct prefix_record *record);

/* Returns how long the first component keeps its owner without further use; 0:
 * it is in use. */
uint64_t prefix_left_ms(const struct store *store,
			const struct prefix_record *record);

/* Charges the owners, and sets the deadline of unused components. Call it after
 * a restart. */
int prefix_adopt_all(struct store *store, struct error *err);
