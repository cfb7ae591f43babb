/*
 * What begins and ends with the name of a slot: its entry in the index, its
 * deadline and tie, whether it may be evicted, and the count of clashes with
 * members of bundles that are still staged.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;

/* The name shows the slot from now on. The record has the name, its flags and
 * whatever else ends with it. The caller then calls slot_update_state(). */
void slot_begin_name(struct store *store, uint32_t slot);

/* The name no longer shows the slot (it was removed, replaced or has expired,
 * or its session ended): remove it from the index and undo deadline and tie.
 * The caller then calls slot_update_state(). */
void slot_end_name(struct store *store, uint32_t slot);
/* The same, for a reason of which watchers are told. */
void slot_drop_name(struct store *store, uint32_t slot, enum name_event why);
