/*
 * Tickets: 128 secret bits that keep a slot until they have been redeemed n
 * times or have expired.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;
struct error;

#define TICKET_MAX_TTL_MS (UINT64_C(24) * 3600 * 1000)
#define TICKET_MAX_USES   1000000u

/* The process that makes a ticket. */
struct ticket_maker {
	uint32_t uid, pid;
};

/*
 * Makes a ticket, which keeps the slot from now on. The maker's uid is charged
 * until the ticket is used up, expired or revoked. -EINVAL: the number of uses
 * or the time is out of range.
 */
int ticket_make(struct store *store, uint32_t slot, struct ticket_maker maker,
		uint32_t n_uses, uint64_t ttl_ms, uint8_t ret_id[TICKET_SIZE],
		struct error *err);

/* Returns the record of the ticket, or 0. Compares in constant time. */
uint32_t ticket_find(const struct store *store, const uint8_t id[TICKET_SIZE]);

/*
 * Returns the public half of a ticket: its first 8 bytes, big-endian. The other
 * 64 bits stay secret, so this half is not enough to redeem the ticket.
 */
uint64_t ticket_shown(const uint8_t id[TICKET_SIZE]);
/* Returns the record of the ticket with this public half, or 0. */
uint32_t ticket_find_shown(const struct store *store, uint64_t shown);

/* Uses the ticket once; the last use ends it. The caller updates the slot's
 * state. */
void ticket_use(struct store *store, uint32_t ticket);

/* Ends a ticket that has expired or was revoked, and updates the slot's
 * state. */
void ticket_expire(struct store *store, uint32_t ticket);

/* Ends all tickets of a slot. The caller updates the slot's state. */
void ticket_end_slot(struct store *store, uint32_t slot);

/* Sets the deadlines again after a restart. */
int ticket_adopt_all(struct store *store, struct error *err);
