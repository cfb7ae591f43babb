/*
 * First components of names, and their owners.
 *
 * The first user of a first component owns it, from its first name or bundle
 * until `prefix_grace_ms` after the last one has ended, so that a name between
 * two versions keeps its owner. The owner's account is charged for it. The
 * configuration ([prefixes]) can assign permanent owners, who are not charged.
 * Visible names (outside bundles) and visible bundles are counted in the
 * catalog, in the transactions that show and end them.
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
 * May `uid` use names with this first component? Root may use any.
 * prefix_check() changes nothing; after it succeeded, prefix_claim() records
 * the owner (false: the catalog is full). A claim without a name expires like
 * any other. prefix_unclaim() undoes a claim of the same request.
 */
int prefix_check(struct store *store, const char *name, uint32_t uid,
		 struct error *err);
bool prefix_claim(struct store *store, const char *name, uint32_t uid);
void prefix_unclaim(struct store *store, const char *name);

/* Find the owner of the first component; false if it has none. */
bool prefix_owner(const struct store *store, const char *name,
		  uint32_t *ret_uid);

/* A name of `size` bytes (or a bundle, with a '/' at its end) becomes visible,
 * or ends. Its first component was claimed. */
void prefix_use(struct store *store, const char *name, size_t size);
void prefix_end_use(struct store *store, const char *name, size_t size);

/* The record of this first component, or 0. */
uint32_t prefix_find(const struct store *store, const char *name, size_t size);

/*
 * Replace the configuration by `next`. This may change the owners of first
 * components, and the components are charged to their new owners. On -ENOMEM
 * nothing has changed.
 */
int prefix_reconfigure(struct store *store, const struct config *next,
		       struct error *err);

/* Does the configuration assign an owner? */
bool prefix_is_configured(const struct store *store,
			  const struct prefix_record *record);

/* How long it keeps its owner without further use; 0: it is in use. */
uint64_t prefix_left_ms(const struct store *store,
			const struct prefix_record *record);

/* After a restart: charge the owners, and set the deadline of
 * unused components. */
int prefix_adopt_all(struct store *store, struct error *err);
