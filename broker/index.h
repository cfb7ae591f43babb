/*
 * The name index: which slot a name shows.
 *
 * Names hang in one hash chain in the catalog. Several slots with the same
 * name may be in a chain while a bundle is staged or an old version drains;
 * one at most is *shown*: a named slot outside bundles, or a member of the
 * committed version of its bundle. So replacing a bundle is one store to
 * bundle_record.state (well, one journaled pair) and not one per tensor.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;

/* The slot that `name` shows, or 0. */
uint32_t index_find(const struct broker *broker, const char *name);
/* The same for up to MESSAGE_MAX_ITEMS, whose cache misses overlap. */
void index_find_many(const struct broker *broker, const char *const *names,
		     uint32_t n, uint32_t *ret);

/* Does the name index show this slot? */
bool index_shows(const struct broker *broker, uint32_t slot);

/* The slot of that name in this version of a bundle, or 0. */
uint32_t index_find_member(const struct broker *broker, const char *name,
			   uint32_t bundle);

/* Another slot that hangs in the index by the name of `slot`, the first or the
 * one after `after`; 0: no more. */
uint32_t index_next_alike(const struct broker *broker, uint32_t slot,
			  uint32_t after);

/* Hang in / take out by the name in the slot's blob. */
void index_add(struct broker *broker, uint32_t slot);
void index_remove(struct broker *broker, uint32_t slot);

/* The committed bundle of that name ("llama/"), or 0. */
uint32_t index_find_bundle(const struct broker *broker, const char *name);
void index_add_bundle(struct broker *broker, uint32_t bundle);
void index_remove_bundle(struct broker *broker, uint32_t bundle);

/* The committed bundle that `name` would lie in, or 0. */
uint32_t index_enclosing_bundle(const struct broker *broker, const char *name);

/* A committed bundle whose name begins with `name` and goes on, or 0. */
uint32_t index_bundle_below(const struct broker *broker, const char *name);
