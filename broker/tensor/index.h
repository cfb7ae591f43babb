/*
 * The name index: the slot that each name shows.
 *
 * Names are in one hash table in the catalog. A chain may have several slots
 * with the same name while a bundle is staged or an old version drains, but at
 * most one of them is *shown*: a named slot outside bundles, or a member of the
 * committed version of its bundle. So a bundle is replaced by a change of
 * bundle_record.state (of both versions, in one transaction), not by one change
 * for each tensor.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;

/* Returns the slot that `name` shows, or 0. */
uint32_t index_find(const struct store *store, const char *name);
/* Does the same for up to MESSAGE_MAX_ITEMS names; their cache misses
 * overlap. */
void index_find_many(const struct store *store, const char *const *names,
		     uint32_t n, uint32_t *ret);

/* Returns whether a name shows this slot. */
bool index_shows(const struct store *store, uint32_t slot);

/* Returns the slot of that name in this version of a bundle, or 0. */
uint32_t index_find_member(const struct store *store, const char *name,
			   uint32_t bundle);

/* Returns another slot in the index that has the name of `slot`: the first one,
 * or the one after `after` if it is not 0. Returns 0 if there is no further
 * one. */
uint32_t index_next_alike(const struct store *store, uint32_t slot,
			  uint32_t after);

/* index_add() adds a slot to the index, and index_remove() removes it, by the
 * name in its blob. */
void index_add(struct store *store, uint32_t slot);
void index_remove(struct store *store, uint32_t slot);

/* Returns the committed bundle of that name ("llama/"), or 0. */
uint32_t index_find_bundle(const struct store *store, const char *name);
void index_add_bundle(struct store *store, uint32_t bundle);
void index_remove_bundle(struct store *store, uint32_t bundle);

/* Returns the committed bundle that contains the name `name`, or 0. */
uint32_t index_enclosing_bundle(const struct store *store, const char *name);

/* Returns a committed bundle whose name is longer than `name` and begins with
 * it, or 0. */
uint32_t index_bundle_below(const struct store *store, const char *name);
