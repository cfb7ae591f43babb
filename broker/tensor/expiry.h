/*
 * Expiry: a name that was published with a time to live ends by a deadline.
 */
#pragma once
#include <stdint.h>

struct store;
struct error;

/* Let the name expire at this time (CLOCK_BOOTTIME); slot_end_name() removes
 * the deadline. -ENOMEM: no memory. */
int expiry_set(struct store *store, uint32_t slot, uint64_t at_ms,
	       struct error *err);
