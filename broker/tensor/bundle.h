/*
 * Bundles: many tensors that are published and replaced as one.
 *
 * Each version is a record with its members and its own chunks. Members are in
 * the name index from the start, but become visible only when the version is
 * COMMITTED. Old members go to LIMBO before new ones become PUBLISHED, so no
 * reader sees a mixture of both, not even a reader that looks only at the state
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
	uint32_t n_leases; /* sessions that have a lease (lease.h) */
	struct chore sweep;
	uint32_t next_swept; /* the member that the sweep visits next */
	/* the owner's, whose n_going counts the sweep; NULL */
	struct account *account;
	struct chore copying;
	struct manifest_work *manifest; /* is being made, or has failed; NULL */
	uint64_t manifest_size;         /* size of the record's manifest */
	/* The member whose name a tensor outside the bundle last got or lost;
	 * 0: there is none. */
	uint32_t last_clash;
};

#define BUNDLE_MAX_MEMBERS 131072u

/* Returns the record of the bundle with this id, if this session stages it.
 * Otherwise returns 0 and sets `err`. */
uint32_t bundle_find_staged(const struct store *store,
			    const struct holdings *holdings, uint64_t id,
			    struct error *err);

/* Makes a new slot a member of a staged version, under the name of the slot. */
void bundle_add_member(struct store *store, uint32_t bundle, uint32_t slot);

/* Returns the bytes that the loader announced and has not allocated yet; 0:
 * they are unknown. */
uint64_t bundle_size_left(const struct store *store, uint32_t bundle);

/* Checks that no tensor outside the bundle has this name (-EEXIST). */
int bundle_check_name(const struct store *store, uint32_t bundle,
		      const char *name, struct error *err);

/* Removes a member slot that is being freed. The record is freed with the last
 * one. */
void bundle_forget_member(struct store *store, uint32_t slot);

/* Keeps all members of a version while a session is being granted them, until
 * bundle_unlease() (bundle_end.h). */
void bundle_lease(struct store *store, uint32_t bundle);

/* Returns whether the version keeps its members although no name shows them. */
bool bundle_keeps(const struct store *store, uint32_t bundle);

/* Returns the first record after `at` with this name and enum bundle_state, or
 * 0. */
uint32_t bundle_next(const struct store *store, const char *name,
		     uint32_t state, uint32_t at);

/* Returns the committed or kept version with this number, or 0. */
uint32_t bundle_find_version(const struct store *store, const char *name,
			     uint64_t version);

/* Returns the number of kept versions of a name, and the oldest of them (0:
 * there is none). */
uint32_t bundle_count_kept(const struct store *store, const char *name,
			   uint32_t *ret_oldest);

/* Removes the version from its loader's chain, if it is in one. */
void bundle_leave_loader(struct store *store, uint32_t bundle);

/* Stops the sweep of the version's members, if it is in progress
 * (bundle_end.c). */
void bundle_end_sweep(struct store *store, uint32_t bundle);

/* Frees the record of a retired version without members. */
void bundle_destroy(struct store *store, uint32_t bundle);

/* Drops all manifests. It is called before the broker closes, when no thread is
 * working. */
void bundle_drop_manifests(struct store *store);

/* Copies the bundle's name to `ret` (NAME_MAX_SIZE + 1 bytes). */
void bundle_name(const struct store *store, uint32_t bundle, char *ret);
