/*
 * Sealed memory files, for chunks, the state table and ref-counter files.
 *
 * All are created with mode 0600 and owned by the creator's uid, so that the
 * kernel refuses to let other users reopen them through /proc.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

#define HUGE_PAGE_SIZE (UINT64_C(2) << 20)

/* Linux maps files in pages of 4, 16 or 64 KiB. Every part of a file that is
 * mapped or pinned separately begins and ends at a multiple of the largest of
 * these, so that files have the same layout on every machine. */
#define LAYOUT_PAGE_SIZE (UINT64_C(64) << 10)
#define LAYOUT_PAGE_UP(size)                                                   \
	(((size) + LAYOUT_PAGE_SIZE - 1) & ~(LAYOUT_PAGE_SIZE - 1))

enum memfd_seals {
	MEMFD_SEAL_SIZE = 1,   /* F_SEAL_SHRINK | F_SEAL_GROW */
	MEMFD_SEAL_CLOSED = 2, /* also F_SEAL_SEAL: no seal can be added */
};

/* A memfd of `size` bytes (a hole), sealed; gives its read-write fd. */
int memfd_create_sealed(const char *name, uint64_t size, enum memfd_seals seals,
			int *ret_fd, struct error *err);

/* A second, read-only descriptor of the same memory (through /proc). */
int memfd_open_readonly(int fd, int *ret_fd, struct error *err);

/*
 * Check a memfd from another process before it is mapped: its size must be
 * sealed and be exactly `size` bytes. Gives its inode (may be NULL).
 */
int memfd_check(int fd, uint64_t size, uint64_t *ret_inode, struct error *err);

/* Add F_SEAL_WRITE | F_SEAL_SEAL. -EBUSY: a process has it mapped writable. */
int memfd_seal_write(int fd, struct error *err);

/*
 * Map [0, size) shared, at an address aligned to 2 MiB and with advice to use
 * huge pages. `size` is a multiple of LAYOUT_PAGE_SIZE. Unmap with munmap().
 */
int memfd_map(int fd, uint64_t size, bool is_writable, void **ret,
	      struct error *err);

/* The same for [offset, offset + size), `offset` in whole huge pages. */
int memfd_map_range(int fd, uint64_t offset, uint64_t size, bool is_writable,
		    void **ret, struct error *err);
