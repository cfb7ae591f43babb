/*
 * The name index: which slot a name shows.
 *
 * Names are in one hash table in the catalog. A chain may have several slots
 * with the same name while a bundle is staged or an old version drains, but at
 * most one of them is *shown*: a named slot outside bundles, or a member of the
 * committed version of its bundle. Replacing a bundle is thus a change of
 * bundle_record.state (of both versions, in one transaction) and not one change
 * per tensor.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;

/* The slot that `name` shows, or 0. */
uint32_t index_find(const struct store *store, const char *name);
/* The same for up to MESSAGE_MAX_ITEMS names, with overlapping cache misses. */
void index_find_many(const struct store *store, const char *const *names,
		     uint32_t n, uint32_t *ret);

/* Does a name show this slot? */
bool index_shows(const struct store *store, uint32_t slot);

/* The slot of that name in this version of a bundle, or 0. */
uint32_t index_find_member(const struct store *store, const char *name,
			   uint32_t bundle);

/* Another slot in the index with the name of `slot`: the first, or the one
 * after `after`; 0: no more. */
uint32_t index_next_alike(const struct store *store, uint32_t slot,
			  uint32_t after);

/* Add a slot to the index, or remove it, by the name in its blob. */
void index_add(struct store *store, uint32_t slot);
void index_remove(struct store *store, uint32_t slot);

/* The committed bundle of that name ("llama/"), or 0. */
uint32_t index_find_bundle(const struct store *store, const char *name);
void index_add_bundle(struct store *store, uint32_t bundle);
void index_remove_bundle(struct store *store, uint32_t bundle);

/* The committed bundle that contains the name `name`, or 0. */
uint32_t index_enclosing_bundle(const struct store *store, const char *name);

/* A committed bundle whose name is longer than `name` and begins with it,
 * or 0. */
uint32_t index_bundle_below(const struct store *store, const char *name);
