/*
 * Adoption of slots after a restart.
 */
#pragma once

struct store;
struct error;

/* Clears the pins of all slots. Call it before adoptions that pin. */
void slot_forget_pins(struct store *store);

/*
 * Charges the accounts, stores the words, sets the deadlines, and updates every
 * state. Call it after the other adoptions (pools, ticket_adopt_all(),
 * bundle_adopt_all()) but before the holdings of dead sessions are dropped,
 * since freeing a slot refunds its charge. It sets the n_bytes of the sessions
 * in store.holdings[], too.
 */
int slot_adopt_all(struct store *store, struct error *err);
