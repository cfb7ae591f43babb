/*
 * Leases: all members of a version granted at once.
 *
 * A get of a bundle is one transaction, but it may be for 131,072 grants, each
 * of which costs some 100 to 300 ns. So it notes only that the session has a
 * lease of the version, and is answered; a chore makes a grant of each member
 * then, in the order of their list:
 *
 *   get:     lease = (version, first member, n)          commit, answer
 *   step:    grant members, lease = (.., next member, n - some)    commit
 *   end:     lease = none                                commit
 *
 * While a version is leased, it keeps all its members (slot.h), whatever
 * becomes of its name: what a session's lease has still to grant is held, and
 * what it has granted is counted as ever. A member that its holder lets go of
 * before it is granted has a count below 0 until then. When the last lease of a
 * version that is shown no more has ended, all its members are settled, since
 * those that were let go meanwhile ring no more.
 *
 * Whoever has a lease makes no requests meanwhile: its connection is not read,
 * so no verb finds it without a grant that it was told of. (Requests that it
 * sent before its get was answered know nothing of the lease.) It acquires and
 * releases without requests as ever.
 *
 * Each step is one transaction. A broker that adopts the catalog finds a lease
 * and makes the grants that are missing; the outcome of the get was recorded
 * with the lease, so the get is not run again. When the session ends, the lease
 * goes before its grants do. tests/model/grant.pml has leases.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;
struct session;

/* Grant all members of a version to the session, which has no lease and room
 * for the grants; a few at once, many by and by. */
void lease_begin(struct session *session, uint32_t bundle);

/* Does the session still wait for grants? */
bool lease_is_open(const struct session *session);

/* A request can wait for the end of it under this key. */
#define LEASE_KEY_SIZE 24
void lease_key(const struct session *session, char ret[LEASE_KEY_SIZE]);

/* The session is over, so its open grants are dropped. */
void lease_end_session(struct session *session);

/* After a restart, when sessions are there: make the grants. Nothing is settled
 * here; slot_adopt_all() does it. */
void lease_adopt_all(struct broker *broker);
