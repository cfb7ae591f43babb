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
#include "proto/message.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;
struct session;

/* A get grants all members in one transaction, and a new grant notes up to
 * 320 bytes in the journal of 48 MiB. */
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
 * its writing is done: members have no order. POOL_WAIT: it is being sealed, as
 * pool_seal_bundle(); until then it is staged as before, and may be aborted or
 * get more members.
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

/* The sealed memfd with the encoded places of all members (shared, borrowed),
 * made when it is first asked for. */
int bundle_manifest(struct broker *broker, uint32_t bundle, int *ret_fd,
		    uint64_t *ret_size, struct error *err);

/* Its name, copied to `ret` (NAME_MAX_SIZE + 1 bytes). */
void bundle_name(const struct broker *broker, uint32_t bundle, char *ret);

/* After a restart (and pools_adopt()): deadlines and charges again, manifests
 * unmade. */
int bundle_adopt_all(struct broker *broker, struct error *err);
