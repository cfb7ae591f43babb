/*
 * Reserved addresses, and VMM's mappings there. The caller of each function
 * holds the process's lock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Finds the reservation that contains an address. */
bool reservation_find(uint64_t address, uint64_t *ret_address,
		      uint64_t *ret_size);
unsigned int reservation_count(void);
