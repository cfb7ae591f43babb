/*
 * Sealed memory files, for chunks, the state table and ref-counter files.
 *
 * All have mode 0600 and are owned by the creator's uid, so that the kernel
 * does not let other users open them again through /proc.
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

/* Makes a sealed memfd of `size` bytes without pages. `ret_fd` is
 * read-write. */
int memfd_create_sealed(const char *name, uint64_t size, enum memfd_seals seals,
			int *ret_fd, struct error *err);

/* Opens a second, read-only descriptor of the same memory through /proc. */
int memfd_open_readonly(int fd, int *ret_fd, struct error *err);

/*
 * Checks a memfd from another process before it is mapped: its size must be
 * sealed and be exactly `size` bytes. `ret_inode` may be NULL.
 */
int memfd_check(int fd, uint64_t size, uint64_t *ret_inode, struct error *err);

/* Adds F_SEAL_WRITE and F_SEAL_SEAL. Returns -EBUSY if a process has it mapped
 * writable. */
int memfd_seal_write(int fd, struct error *err);

/*
 * Maps [0, size) shared, at an address aligned to 2 MiB, with the advice to use
 * huge pages. `size` is a multiple of LAYOUT_PAGE_SIZE. The caller unmaps it
 * with munmap().
 */
int memfd_map(int fd, uint64_t size, bool is_writable, void **ret,
	      struct error *err);

/* Does the same for [offset, offset + size). `offset` is a multiple of the huge
 * page size. */
int memfd_map_range(int fd, uint64_t offset, uint64_t size, bool is_writable,
		    void **ret, struct error *err);
