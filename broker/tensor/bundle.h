/*
 * Bundles: many tensors published and replaced as one.
 *
 * Each version is a record with its members and its own chunks. Members are in
 * the name index from the start, but become visible only when the version is
 * COMMITTED. Old members go to LIMBO before new ones become PUBLISHED, so that
 * no reader sees a mixture of both, not even one that only reads the state
 * table.
 */
#pragma once
#include "broker/tensor/chore.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct account;
struct store;
struct error;
struct manifest_work;
struct holdings;

/* The volatile part of a version; indexed by the record. */
struct bundle {
	uint32_t n_leases; /* sessions with a lease: see lease.h */
	struct chore sweep;
	uint32_t next_swept;     /* member that the sweep visits next */
	struct account *account; /* to which the sweep returns memory; NULL */
	struct chore copying;
	struct manifest_work *manifest; /* being made, or failed; NULL */
	uint64_t manifest_size;         /* of the manifest in the record */
	/* Member whose name a tensor outside the bundle last got or lost;
	 * 0: none. */
	uint32_t last_clash;
};

#define BUNDLE_MAX_MEMBERS 131072u

/* Record of the bundle with this number, if this session stages it; else 0 with
 * `err` set. */
uint32_t bundle_find_staged(const struct store *store,
			    const struct holdings *holdings, uint64_t id,
			    struct error *err);

/* Make a new slot a member of a staged version, by the name it was
 * made with. */
void bundle_add_member(struct store *store, uint32_t bundle, uint32_t slot);

/* Bytes that the loader announced and has not allocated yet; 0: unknown. */
uint64_t bundle_size_left(const struct store *store, uint32_t bundle);

/* -EEXIST if a tensor outside the bundle has this name. */
int bundle_check_name(const struct store *store, uint32_t bundle,
		      const char *name, struct error *err);

/* Called when a member slot is freed; the record is freed with the last one. */
void bundle_forget_member(struct store *store, uint32_t slot);

/* Keep all members of a version while a session is being granted them;
 * bundle_unlease() (bundle_end.h) ends that. */
void bundle_lease(struct store *store, uint32_t bundle);

/* Does the version keep its members although no name shows them? */
bool bundle_keeps(const struct store *store, uint32_t bundle);

/* The committed or kept version of this number, or 0. */
uint32_t bundle_find_version(const struct store *store, const char *name,
			     uint64_t version);

/* The kept versions of a name: their number, and the oldest (0: none). */
uint32_t bundle_count_kept(const struct store *store, const char *name,
			   uint32_t *ret_oldest);

/* Remove the version from its loader's chain, if it is in one. */
void bundle_leave_loader(struct store *store, uint32_t bundle);

/* Stop the sweep of its members, if it is in progress (bundle_end.c). */
void bundle_end_sweep(struct store *store, uint32_t bundle);

/* Free the record of a retired version without members. */
void bundle_destroy(struct store *store, uint32_t bundle);

/* Called before the broker closes, when no thread is working. */
void bundle_drop_manifests(struct store *store);

/* The bundle's name, copied to `ret` (NAME_MAX_SIZE + 1 bytes). */
void bundle_name(const struct store *store, uint32_t bundle, char *ret);
