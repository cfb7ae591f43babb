/*
 * Leases: a session gets all members of a bundle version at once.
 *
 * A get of a bundle is one transaction, but may be for 131,072 grants, each of
 * which costs some 100 to 300 ns. So the get only records that the session has
 * a lease of the version, and replies; then a chore grants the members in the
 * order of their list:
 *
 *   get:     lease = (version, first member, n)          commit, reply
 *   step:    grant members, lease = (.., next member, n - some)    commit
 *   end:     lease = 0                                   commit
 *
 * While a version is leased, it keeps all its members (slot.h), whatever
 * happens to its name: the members that are still to be granted are held by the
 * lease, and those already granted are counted as usual. If the client releases
 * a member before it is granted, its count is below 0 until then. When the last
 * lease of a version that is no longer visible has ended, the states of all its
 * members are updated, since clients do not ring again for members
 * that they released meanwhile.
 *
 * A session with a lease makes no requests: its connection is not read, so that
 * every request finds the grants that the session was promised. (Requests that
 * it sent before it got the reply do not depend on the lease.) It acquires and
 * releases without requests, as usual.
 *
 * Each step is one transaction. A broker that adopts the catalog finds a lease
 * and makes the missing grants; the reply of the get was recorded together with
 * the lease, so the get is not run again. When the session ends, the lease is
 * dropped before its grants. tests/model/grant.pml models leases.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct holdings;

/* Grants all members of a version to the session, which has no lease and enough
 * capacity for the grants: a few at once, and the others in later steps. */
void lease_begin(struct holdings *holdings, uint32_t bundle);

/* Returns whether the session has a lease with grants still to make. */
bool lease_is_open(const struct holdings *holdings);

/* Writes the key under which requests wait for the end of the lease. */
#define LEASE_KEY_SIZE 24
void lease_key(const struct holdings *holdings, char ret[LEASE_KEY_SIZE]);

/* Drops the remaining grants of a session that has ended. */
void lease_end_session(struct holdings *holdings);

/* Makes the missing grants after a restart, when the sessions are adopted. The
 * states of slots are updated later, by slot_adopt_all(). */
void lease_adopt_all(struct store *store);
