/*
 * Tickets: 128 secret bits that keep a slot until they are redeemed n times
 * or their deadline passes.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct broker;
struct error;

#define TICKET_MAX_TTL_MS (UINT64_C(24) * 3600 * 1000)
#define TICKET_MAX_USES   1000000u

/* Who makes a ticket. */
struct ticket_maker {
	uint32_t uid, pid;
};

/*
 * A new one; the slot is kept by it from now on. Charges the maker's uid,
 * until it is used up, expired or revoked. -EINVAL: uses or time out of range.
 */
int ticket_make(struct broker *broker, uint32_t slot, struct ticket_maker maker,
		uint32_t n_uses, uint64_t ttl_ms, uint8_t ret_id[TICKET_SIZE],
		struct error *err);

/* The record, or 0. Compares in constant time. */
uint32_t ticket_find(const struct broker *broker,
		     const uint8_t id[TICKET_SIZE]);

/*
 * The half of a ticket that may be shown: its first 8 bytes, big-endian. The
 * other 64 bits stay secret, so nobody redeems it by this.
 */
uint64_t ticket_shown(const uint8_t id[TICKET_SIZE]);
/* The record of a ticket that is shown so, or 0. */
uint32_t ticket_find_shown(const struct broker *broker, uint64_t shown);

/* One use; forgets the ticket with the last one. The caller settles the slot.
 */
void ticket_use(struct broker *broker, uint32_t ticket);

/* Forget it (deadline, revoked); settles the slot. */
void ticket_expire(struct broker *broker, uint32_t ticket);

/* Forget all tickets of a slot; the caller settles it. */
void ticket_end_slot(struct broker *broker, uint32_t slot);

/* After a restart: deadlines again. */
int ticket_adopt_all(struct broker *broker, struct error *err);
