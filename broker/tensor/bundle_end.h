/*
 * Bundles: the end of a version.
 */
#pragma once
#include <stdint.h>

struct store;

/* Ends a staged version because it is aborted or its loader died. (A committed
 * version that is tied to a dead session is in its chain, too; for that version
 * this is the same as bundle_retire().) */
void bundle_abort(struct store *store, uint32_t bundle);

/* Ends the name of a committed version, which was removed or has expired, or
 * whose session has ended. */
void bundle_retire(struct store *store, uint32_t bundle);

/* Retires the oldest kept versions of a name until `n` are left. */
void bundle_trim_kept(struct store *store, const char *name, uint32_t n);

/* Ends a lease. With the last lease of a version that is no longer visible, the
 * states of its members are updated. */
void bundle_unlease(struct store *store, uint32_t bundle);

/*
 * Makes a replaced version a kept one, in place of bundle_make_retired(): no
 * name shows it any more, but sessions can still get it by its number.
 */
void bundle_make_kept(struct store *store, uint32_t bundle);

/*
 * The three steps of bundle_retire(), for a commit, which needs another order
 * (bundle_commit.c). After bundle_make_retired() only members and their holders
 * refer to the version. bundle_hide_members() makes their words LIMBO.
 * bundle_update_members() updates their states, many of them later.
 */
void bundle_make_retired(struct store *store, uint32_t bundle);
void bundle_hide_members(struct store *store, uint32_t bundle);
void bundle_update_members(struct store *store, uint32_t bundle);
/* Updates the members of a retired version, or frees a version without
 * members. */
void bundle_drop_retired(struct store *store, uint32_t bundle);
