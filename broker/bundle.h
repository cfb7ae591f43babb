/*
 * Bundles: many tensors published and replaced as one.
 *
 * Each version is a record with its members and its own chunks. Members hang
 * in the name index from the start; nobody is shown them until the version is
 * COMMITTED. Old members go to LIMBO before new ones become PUBLISHED, so that
 * no moment has a mixture of both, also for readers that only look at the
 * state table.
 */
#pragma once
#include "broker/chore.h"
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct account;
struct broker;
struct error;
struct manifest_work;
struct session;

/* What is known of a version beyond its record; indexed by the record. */
struct bundle {
	uint32_t n_leases; /* of sessions: see lease.h */
	struct chore sweep;
	uint32_t next_swept;     /* member that the sweep settles next */
	struct account *account; /* to which the sweep gives back; NULL */
	struct chore copying;
	struct manifest_work *manifest; /* being made, or failed; NULL */
	uint64_t manifest_size;         /* of that in the record */
	uint32_t last_clash; /* member whose name a tensor outside has got, or
				has lost; 0: none */
};

#define BUNDLE_MAX_MEMBERS 131072u

/* Record of the bundle with this number, staged by this session; 0: none,
 * `err` says so. */
uint32_t bundle_find_staged(const struct broker *broker,
			    const struct session *session, uint64_t id,
			    struct error *err);

/* The device was looked for. */
int bundle_begin(struct broker *broker, struct session *session,
		 const struct bundle_begin_request *request, uint64_t *ret_id,
		 struct error *err);

/* A new slot becomes a member of a staged version, by the name it was made
 * with. */
void bundle_add_member(struct broker *broker, uint32_t bundle, uint32_t slot);

/* What its loader said it would still allocate, bytes; 0: unknown. */
uint64_t bundle_size_left(const struct broker *broker, uint32_t bundle);

/* -EEXIST if something outside of the bundle shows this name. */
int bundle_check_name(const struct broker *broker, uint32_t bundle,
		      const char *name, struct error *err);

/*
 * Seal, flip, let the old version go. On a device the loader says with it that
 * its writing is done: members have no order. POOL_WAIT: its memory is being
 * sealed and its manifest made: park, to be woken by waiters_wake_uid() of the
 * session's user, and ask again. Until it is committed it is staged as before,
 * and may be aborted or get more members.
 */
int bundle_commit(struct broker *broker, struct session *session,
		  uint32_t bundle, uint64_t *ret_version, struct error *err);

/* A staged version goes: abort, or its loader died. (A committed one that is
 * in a dead session's chain because it is tied to it: the same as retire.) */
void bundle_abort(struct broker *broker, uint32_t bundle);

/* A committed version loses its name: removed, expired, tied session gone. */
void bundle_retire(struct broker *broker, uint32_t bundle);

/* Called when a member slot is freed; the record goes with the last one. */
void bundle_forget_member(struct broker *broker, uint32_t slot);

/* A session gets all members by and by, and all of them stay until it has. */
void bundle_lease(struct broker *broker, uint32_t bundle);
void bundle_unlease(struct broker *broker, uint32_t bundle);

/* A tensor outside of bundles has got this name (1) or loses it (-1); it hangs
 * in the index. */
void bundle_note_name(struct broker *broker, uint32_t slot, int change);

/* Before the broker closes, when no thread works any more. */
void bundle_drop_manifests(struct broker *broker);

/* Its name, copied to `ret` (NAME_MAX_SIZE + 1 bytes). */
void bundle_name(const struct broker *broker, uint32_t bundle, char *ret);

/* After a restart (and pools_adopt()): deadlines and charges again, manifests
 * unmade. */
int bundle_adopt_all(struct broker *broker, struct error *err);
