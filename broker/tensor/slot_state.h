/*
 * slot_update_state(): the state of a slot follows from its keepers (slot.h).
 *
 * Callers change keepers and then call it. Only this function, apart from
 * hiding (slot.h), stores the table word, moves slots into and out of the limbo
 * list, and frees them.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stdint.h>

struct store;

/* Returns the state that follows from the keepers; FREE if the record is
 * free. */
enum slot_state slot_state(const struct store *store, uint32_t slot);

/* With less journal space than this, slot_update_state() defers freeing. */
#define SLOT_UPDATE_ROOM (UINT32_C(27) << 20)

/*
 * Updates the word, the limbo list and the memory to match keepers and holds.
 * Frees the slot (and its block, if it was the last slot there) when it has no
 * keeper, no session holds it, and no device is using it. Returns true if it
 * was freed. When the journal is almost half full, the slot only enters limbo
 * and is collected in a later round of the loop, so that 131,072 slots can be
 * updated in one transaction however many sessions have grants of them.
 */
bool slot_update_state(struct store *store, uint32_t slot);

enum slot_use {
	SLOT_UNUSED,
	SLOT_FENCED, /* no session holds it, but devices are using it */
	SLOT_HELD,   /* granted + delta is above 0 for some session */
};
enum slot_use slot_use(const struct store *store, uint32_t slot);
bool slot_is_held(const struct store *store, uint32_t slot);

/* Ends a pin (slot_pin()) and updates the state. Returns true if the slot was
 * freed. */
bool slot_unpin(struct store *store, uint32_t slot);
