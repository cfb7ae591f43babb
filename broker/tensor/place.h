/*
 * Places: what a client has to know of a slot to use it.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;

/* Fill a place. Its `name` points to `name_buffer` (NAME_MAX_SIZE + 1 bytes, at
 * least as long-lived as the place), or is "" if that is NULL. */
void slot_place(const struct store *store, uint32_t slot, char *name_buffer,
		struct tensor_place *ret);
