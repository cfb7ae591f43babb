/*
 * Grants: the broker's part of what a session holds of a slot.
 *
 * holds = granted + delta; delta is the client's, in its ref-counter file
 * (shm/refs.h). A session that is not connected after a restart of the broker
 * has no mapped file: its grants count as held until it reconnects or its
 * process ends.
 *
 * The count of (session, slot) runs on when the slot is freed and used for
 * another tensor: the client never resets its delta, so at rest granted is
 * -delta, not 0. A grant therefore outlives the slot's generation: freeing
 * unlinks it from the slot and keeps the record (unless granted is 0); the
 * next grant goes on from the old number. Only grants of the slot's present
 * generation count as holds, so a client that scribbles over an entry it was
 * granted long ago pins nobody else's memory. A record whose granted is 0 is
 * kept while its slot lives: the client may acquire again at any time.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;
struct session;

/* The grant of (session, slot), 0 if there is none. */
uint32_t grant_find(const struct broker *broker, uint32_t session,
		    uint32_t slot);

/* Add `n` (may be negative) to the session's granted count; makes the record.
 * False: the catalog is full (then nothing changed). */
bool grant_add(struct broker *broker, uint32_t session, uint32_t slot,
	       int32_t n);

/* May the session have `n` more grants? It has them charged to its uid as
 * they are made, and with the first in each page of its ref-counter file that
 * page, until it ends. -ENOSPC, -EDQUOT. */
int grant_check_room(const struct session *session, uint32_t n,
		     struct error *err);

/* granted + delta of one grant, 0 if that is negative; INT64_MAX if the
 * session's file is not known (yet). */
int64_t grant_holds(const struct broker *broker, uint32_t grant);

/* Is it more than 0? For lists: costs a system call, but makes no page of the
 * session's file. */
bool grant_peek_is_held(const struct broker *broker, uint32_t grant);

/* Does work that the session has given a device still use the slot? Only where
 * it holds it no more. */
bool grant_is_fenced(const struct broker *broker, uint32_t grant);

/* After a restart: pages are charged for the grants that there are. */
void grant_adopt_all(struct broker *broker);

/* Forget one grant; the caller settles the slot. */
void grant_drop(struct broker *broker, uint32_t grant);

/* Unlink all grants of a slot that is being freed; records whose granted is
 * 0 are released, the others wait for the next generation. */
void grant_drop_slot(struct broker *broker, uint32_t slot);

/* Drop what a dead session held, settling each slot, and take one from `*left`
 * for each: there may be more if that is 0. Commits in steps. */
void grant_drop_session(struct broker *broker, uint32_t session,
			uint32_t *left);
