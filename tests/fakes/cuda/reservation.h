/*
 * Reserved addresses, and what VMM maps there.
 *
 * All functions: with the process's lock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* The reservation that an address is in. */
bool reservation_find(uint64_t address, uint64_t *ret_address,
		      uint64_t *ret_size);
unsigned int reservation_count(void);
