/*
 * Addresses of this process: ranges of its address space that are kept for
 * device memory. They are random, so that no two processes have the same one
 * by chance, and are not given out again soon.
 *
 * All functions: with the process's lock. Addresses and sizes are multiples of
 * the page size.
 */
#pragma once
#include <stdint.h>
#include <sys/types.h>

/* Up to whole pages. */
uint64_t address_round(uint64_t size);
/* A range that nobody can touch; 0: there is none. `alignment`: a power of
 * two, at least a page. */
uint64_t address_reserve(uint64_t size, uint64_t alignment);
void address_release(uint64_t address, uint64_t size);

/* Put a file's memory there, as device memory. 0 or -1. */
int address_back(uint64_t address, uint64_t size, int fd, off_t offset,
		 int protection);
/* Nobody can touch it again. */
void address_clear(uint64_t address, uint64_t size);
/* Put the same memory there as at `host` has, as device memory: -1 where the
 * kernel cannot (it is private, or not one mapping). */
int address_alias(uint64_t address, void *host, uint64_t size, int protection);
