/*
 * Chunks: the memory objects that contain tensors, as the broker uses them.
 *
 * A chunk is one memfd with a size in whole pages of 2 MiB. The broker never
 * reads its contents. It maps a range only to populate it with huge pages where
 * the kernel allows them, because MADV_POPULATE_WRITE after MADV_HUGEPAGE is
 * the only way to get these there (write() and fallocate() give none). All
 * functions here except chunk_create() can take milliseconds, so they must not
 * be called from the thread of the event loop.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

enum huge_pages {
	HUGE_PAGES_NEVER,  /* the kernel gives none to shared memory */
	HUGE_PAGES_ADVISE, /* the kernel gives them after MADV_HUGEPAGE */
	HUGE_PAGES_ALWAYS,
};

/* Rounds up to whole huge pages. */
uint64_t chunk_round(uint64_t size);

/* Rounds up to whole pages of any machine, which is the unit of pinning. */
uint64_t chunk_page_up(uint64_t size);

/* Makes a chunk for arenas (`is_bundle` is false; it is fully sealed) or for
 * one bundle (`is_bundle` is true; F_SEAL_WRITE can still be added). `ret_fd`
 * is read-write. */
int chunk_create(uint64_t size, bool is_bundle, int *ret_fd, struct error *err);

/* Allocates the pages of [offset, offset + size), which has no contents yet:
 * zeros may replace them. */
int chunk_populate(int fd, uint64_t offset, uint64_t size,
		   enum huge_pages huge_pages, struct error *err);

/* Returns the whole huge pages within [offset, offset + size) to the kernel. */
int chunk_punch(int fd, uint64_t offset, uint64_t size, struct error *err);

/* Returns the setting in /sys/kernel/mm/transparent_hugepage for pages of 2
 * MiB. */
enum huge_pages huge_pages_state(void);

/*
 * Does the same with the contents of three files there: shmem_enabled,
 * hpage_pmd_size (the page size that the first one is about: 512 MiB on a
 * kernel with pages of 64 KiB), and hugepages-2048kB/shmem_enabled. "" means
 * that the kernel has no such file.
 */
enum huge_pages huge_pages_parse(const char *all, const char *pmd_size,
				 const char *own);
