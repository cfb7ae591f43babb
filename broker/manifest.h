/*
 * Manifests: the sealed memfd with the encoded places of all members of a
 * version, which every get of it is sent.
 *
 * The loop copies what it says of each member, in steps; a thread encodes the
 * copies, writes them and seals the file. One manifest of each user at a time
 * is made so. Making it changes nothing in the catalog.
 */
#pragma once
#include <stdint.h>

struct broker;
struct error;

enum manifest_outcome {
	MANIFEST_OK = 0,
	MANIFEST_WAIT = 1, /* park, to be woken by waiters_wake_uid() of the
			      bundle's owner, and ask again */
};

/* Have the manifest of this version made. When it is, it lies in the record
 * (shared, borrowed). Negative: it cannot be made just now. */
int manifest_make(struct broker *broker, uint32_t bundle, struct error *err);

/* It would not be right any more, or nobody will want it. */
void manifest_drop(struct broker *broker, uint32_t bundle);

/* Called when a member is freed. */
void manifest_forget_member(struct broker *broker, uint32_t slot);
