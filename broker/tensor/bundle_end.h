/*
 * The end of a version of a bundle.
 */
#pragma once
#include <stdint.h>

struct store;

/* End a staged version: it is aborted, or its loader died. (For a committed
 * version, which is in a dead session's chain if it is tied to it, this is the
 * same as bundle_retire().) */
void bundle_abort(struct store *store, uint32_t bundle);

/* End the name of a committed version: it was removed, has expired, or the
 * session it is tied to has ended. */
void bundle_retire(struct store *store, uint32_t bundle);

/* Retire the oldest kept versions of a name until `n` are left. */
void bundle_trim_kept(struct store *store, const char *name, uint32_t n);

/* End a lease. With the last one of a version that is no longer visible, the
 * states of its members are updated. */
void bundle_unlease(struct store *store, uint32_t bundle);

/*
 * Instead of bundle_make_retired(): no name shows the version any more, but it
 * can still be got by its number.
 */
void bundle_make_kept(struct store *store, uint32_t bundle);

/*
 * The parts of it, which a commit does in another order (bundle_commit.c):
 * from the first on only members and their holders refer to the version; then
 * the words of its members become LIMBO, their states are updated (many of them
 * later), and a version without members is freed.
 */
void bundle_make_retired(struct store *store, uint32_t bundle);
void bundle_hide_members(struct store *store, uint32_t bundle);
void bundle_update_members(struct store *store, uint32_t bundle);
/* Update the members of a retired version, or free a version without members.
 */
void bundle_let_go(struct store *store, uint32_t bundle);
