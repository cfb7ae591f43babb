/*
 * Grants: the broker's half of a session's count of holds on a slot.
 *
 * holds = granted + delta, where delta is the client's half, in its ref-counter
 * file (shm/refs.h). A session that has not reconnected after a restart of the
 * broker has no mapped file: its grants count as held until it reconnects or
 * its process exits.
 *
 * The count of (session, slot) continues when the slot is freed and used for
 * another tensor: the client never resets its delta, so at rest granted is
 * -delta, not 0. A grant therefore outlives the slot's generation: freeing
 * unlinks it from the slot and keeps the record (unless granted is 0), and the
 * next grant continues from the old number. Only grants of the slot's present
 * generation count as holds, so a client that overwrites the entry of an old
 * grant cannot keep the memory of other clients in use. A record whose granted
 * is 0 is kept while its slot exists, because the client may acquire again at
 * any time.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct store;
struct error;
struct holdings;
struct refs_peek;

/* Finds the grant of (session, slot). Returns 0 if there is none. */
uint32_t grant_find(const struct store *store, uint32_t session, uint32_t slot);

/* Adds `n`, which may be negative, to the session's granted count, and makes
 * the record if there is none. Returns false if the catalog is full; then
 * nothing has changed. */
bool grant_add(struct store *store, uint32_t session, uint32_t slot, int32_t n);

/* Checks that the session may get `n` more grants. Each grant is charged to its
 * uid when it is made, and so is each page of its ref-counter file with the
 * first grant in it; the pages stay charged until the session ends. -ENOSPC,
 * -EDQUOT. */
int grant_check_room(const struct holdings *holdings, uint32_t n,
		     struct error *err);

/* Returns granted + delta of one grant: 0 if the sum is negative, and INT64_MAX
 * if the session's file is not mapped (yet). */
int64_t grant_holds(const struct store *store, uint32_t grant);

/* Returns whether the number of holds is above 0. It is meant for lists: it
 * allocates no page of the session's file, but it costs a system call unless
 * `peek`, which serves one request, has the entry already. */
bool grant_peek_is_held(const struct store *store, uint32_t grant,
			struct refs_peek *peek);

/* Returns whether work that the session gave to a device still uses the slot.
 * The result is only valid once the session no longer holds the slot. */
bool grant_is_fenced(const struct store *store, uint32_t grant);

/* Charges the pages that the existing grants use. Call it after a restart. */
void grant_adopt_all(struct store *store);

/* Drops one grant. Returns true if the grant was of the slot's present
 * generation: then the caller updates the slot's state. */
bool grant_drop(struct store *store, uint32_t grant);

/* Unlinks all grants of a slot that is being freed. Records whose granted is 0
 * are released; the others stay for the next generation. */
void grant_drop_slot(struct store *store, uint32_t slot);
