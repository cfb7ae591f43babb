/*
 * Manifests: the sealed memfd with the encoded places of all members of a
 * version, which every get of the version receives.
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
	/* The caller parks the request, which is woken by wake_uid() of the
	 * bundle's owner, and calls again. */
	MANIFEST_WAIT = 1,
};

/* Makes the manifest of this version. When it is complete, the bundle record
 * has its descriptor (shared, borrowed). Returns enum manifest_outcome, or a
 * negative errno if the manifest cannot be made now. */
int manifest_make(struct store *store, uint32_t bundle, struct error *err);

/* Drops the manifest because it is outdated or no longer needed. */
void manifest_drop(struct store *store, uint32_t bundle);

/* Lets the copying skip a member that is being freed. */
void manifest_forget_member(struct store *store, uint32_t slot);
