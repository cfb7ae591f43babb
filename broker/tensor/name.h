/*
 * Names of slots: all that begins and ends with a name, which is its entry in
 * the index, its deadline and tie, whether it may be evicted, and the count of
 * clashes with members of bundles that are still staged.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;

/* Makes the name show the slot. The record already has the name, its flags, its
 * deadline and its tie. The caller then calls slot_update_state(). */
void slot_begin_name(struct store *store, uint32_t slot);

/* Ends the name of the slot, which was removed, replaced or has expired, or
 * whose session has ended: removes it from the index, and removes its deadline
 * and tie. The caller then calls slot_update_state(). */
void slot_end_name(struct store *store, uint32_t slot);
/* Does the same, and notes the event `why` for watchers. */
void slot_drop_name(struct store *store, uint32_t slot, enum name_event why);
