/*
 * Slots after a restart.
 */
#pragma once

struct store;
struct error;

/* No slot is pinned. Call it before adoptions that pin. */
void slot_forget_pins(struct store *store);

/*
 * Charge the accounts, store the words, set the deadlines, and update every
 * state. Call it after the other adoptions (pools, ticket_adopt_all(),
 * bundle_adopt_all()) but before the holdings of dead sessions are dropped,
 * since freeing a slot refunds its charge. The n_bytes of the sessions in
 * store.holdings[] are set, too.
 */
int slot_adopt_all(struct store *store, struct error *err);
