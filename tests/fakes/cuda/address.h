/*
 * Addresses of this process: ranges of its address space that are reserved for
 * device memory. They are random and not reused soon. With an H200's driver two
 * processes often have the same address. Here they have different ones, so that
 * a process faults if it uses an address of another process, or one that was
 * unmapped.
 *
 * The caller of each function holds the process's lock. Addresses and sizes are
 * multiples of the page size.
 */
#pragma once
#include <stdint.h>
#include <sys/types.h>

/* Returns the size rounded up to whole pages. */
uint64_t address_round(uint64_t size);
/* Reserves a range without access. Returns 0 if there is none. `alignment` must
 * be a power of two, and at least a page. */
uint64_t address_reserve(uint64_t size, uint64_t alignment);
void address_release(uint64_t address, uint64_t size);

/* Maps a file's memory there, as device memory. Returns 0 or -1. */
int address_back(uint64_t address, uint64_t size, int fd, off_t offset,
		 int protection);
/* Removes the memory, so that the range has no access again. */
void address_clear(uint64_t address, uint64_t size);
/* Maps the memory of `host` there a second time, as device memory. Returns -1
 * if the kernel cannot do that (the memory is private, or not one mapping). */
int address_alias(uint64_t address, void *host, uint64_t size, int protection);
