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

/* The caller has looked up the device. */
int bundle_begin(struct store *store, struct holdings *holdings,
		 const struct bundle_begin_request *request, uint64_t *ret_id,
		 struct error *err);

/* Make a new slot a member of a staged version, by the name it was
 * made with. */
void bundle_add_member(struct store *store, uint32_t bundle, uint32_t slot);

/* Bytes that the loader announced and has not allocated yet; 0: unknown. */
uint64_t bundle_size_left(const struct store *store, uint32_t bundle);

/* -EEXIST if a tensor outside the bundle has this name. */
int bundle_check_name(const struct store *store, uint32_t bundle,
		      const char *name, struct error *err);

/*
 * Seal the memory, switch the names, and release the old version. For memory on
 * a device, the loader states with the commit that its writing is finished:
 * members have no ready fence. POOL_WAIT: the memory is being sealed and the
 * manifest made; park, to be woken by wake_uid() of the session's user,
 * and ask again. Until it is committed, the version stays staged, and may be
 * aborted or get more members.
 */
int bundle_commit(struct store *store, struct holdings *holdings,
		  uint32_t bundle, uint64_t *ret_version, struct error *err);

/* End a staged version: it is aborted, or its loader died. (For a committed
 * version, which is in a dead session's chain if it is tied to it, this is the
 * same as bundle_retire().) */
void bundle_abort(struct store *store, uint32_t bundle);

/* End the name of a committed version: it was removed, has expired, or the
 * session it is tied to has ended. */
void bundle_retire(struct store *store, uint32_t bundle);

/* Called when a member slot is freed; the record is freed with the last one. */
void bundle_forget_member(struct store *store, uint32_t slot);

/* Keep all members of a version while a session is being granted them. */
void bundle_lease(struct store *store, uint32_t bundle);
void bundle_unlease(struct store *store, uint32_t bundle);

/* A tensor outside bundles got this name (1) or loses it (-1). At the call the
 * slot is in the index. */
void bundle_note_name(struct store *store, uint32_t slot, int change);

/* Called before the broker closes, when no thread is working. */
void bundle_drop_manifests(struct store *store);

/* The bundle's name, copied to `ret` (NAME_MAX_SIZE + 1 bytes). */
void bundle_name(const struct store *store, uint32_t bundle, char *ret);

/* After a restart (and pools_adopt()): set deadlines and charge accounts again.
 * Manifests are made again when they are needed. */
int bundle_adopt_all(struct store *store, struct error *err);
