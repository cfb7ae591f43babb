/*
 * Places: the data that a client needs to use a slot.
 */
#pragma once
#include "proto/message.h"
#include <stdint.h>

struct store;

/* Fills a place. Its `name` points to `name_buffer` (NAME_MAX_SIZE + 1 bytes,
 * which must live as long as the place), or is "" if that is NULL. */
void slot_place(const struct store *store, uint32_t slot, char *name_buffer,
		struct tensor_place *ret);
