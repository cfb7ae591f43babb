/*
 * Grants: the broker's part of what a session holds of a slot.
 *
 * holds = granted + delta; delta is the client's, in its ref-counter file
 * (shm/refs.h). A session that is not connected after a restart of the broker
 * has no mapped file: its grants count as held until it reconnects or its
 * process ends.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;

/* The grant of (session, slot), 0 if there is none. */
uint32_t grant_find(const struct broker *broker, uint32_t session,
		    uint32_t slot);

/* Add `n` (may be negative) to the session's granted count; makes the record.
 * False: the catalog is full (then nothing changed). */
bool grant_add(struct broker *broker, uint32_t session, uint32_t slot,
	       int32_t n);

/* granted + delta of one grant, 0 if that is negative; INT64_MAX if the
 * session's file is not known (yet). */
int64_t grant_holds(const struct broker *broker, uint32_t grant);

/* Forget one grant; the caller settles the slot. */
void grant_drop(struct broker *broker, uint32_t grant);

/* Forget all grants of a slot: it is being freed. */
void grant_drop_slot(struct broker *broker, uint32_t slot);

/*
 * Drop what a dead session held, settling each slot: commits in steps when
 * the journal fills. Gives how many slots were freed.
 */
uint32_t grant_drop_session(struct broker *broker, uint32_t session);
