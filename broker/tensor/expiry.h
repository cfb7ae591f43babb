/*
 * Expiry: a deadline ends a name that was published with a time to live.
 */
#pragma once
#include <stdint.h>

struct store;
struct error;

/* Lets the name expire at this time (CLOCK_BOOTTIME); slot_end_name() removes
 * the deadline. -ENOMEM. */
int expiry_set(struct store *store, uint32_t slot, uint64_t at_ms,
	       struct error *err);
