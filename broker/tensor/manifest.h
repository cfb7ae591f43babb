/*
 * Manifests: the sealed memfd that holds the encoded places of all members of a
 * version, and that every get of the version receives.
 *
 * The loop copies the members' descriptions, in steps; a thread encodes the
 * copies, writes them and seals the file. At most one manifest of each user is
 * made at a time. Making it does not change the catalog.
 */
#pragma once
#include <stdint.h>

struct store;
struct error;

enum manifest_outcome {
	MANIFEST_OK = 0,
	/* Park, to be woken by wake_uid() of the bundle's owner, and
	 * ask again. */
	MANIFEST_WAIT = 1,
};

/* Have the manifest of this version made. Once it is made, the bundle record
 * has its descriptor (shared, borrowed). Negative: it cannot be made now. */
int manifest_make(struct store *store, uint32_t bundle, struct error *err);

/* Drop the manifest because it is outdated or no longer needed. */
void manifest_drop(struct store *store, uint32_t bundle);

/* Called when a member is freed. */
void manifest_forget_member(struct store *store, uint32_t slot);
