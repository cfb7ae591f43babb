/*
 * Chunks: the memory objects that contain tensors, as the broker uses them.
 *
 * A chunk is one memfd with a size in whole 2 MiB pages. The broker never reads
 * its contents; it maps a range only while it populates it, because
 * MADV_POPULATE_WRITE after MADV_HUGEPAGE is the only way to get huge pages
 * where the kernel allows them (fallocate never yields any). All functions here
 * except chunk_create() can take milliseconds: call them from threads other
 * than the loop's.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;

/* Round up to whole huge pages. */
uint64_t chunk_round(uint64_t size);

/* Round up to whole pages of any machine, the unit of pinning. */
uint64_t chunk_page_up(uint64_t size);

/* A chunk for arenas (`is_bundle` false: fully sealed) or for one bundle (true:
 * F_SEAL_WRITE can still be added). Gives its read-write descriptor. */
int chunk_create(uint64_t size, bool is_bundle, int *ret_fd, struct error *err);

/* Allocate the pages of [offset, offset + size). */
int chunk_populate(int fd, uint64_t offset, uint64_t size, struct error *err);

/* Return the whole huge pages within [offset, offset + size) to the kernel. */
int chunk_punch(int fd, uint64_t offset, uint64_t size, struct error *err);

enum huge_pages {
	HUGE_PAGES_NEVER,  /* the kernel grants none to shared memory */
	HUGE_PAGES_ADVISE, /* ours are granted */
	HUGE_PAGES_ALWAYS,
};

/* The contents of /sys/kernel/mm/transparent_hugepage about pages of 2 MiB. */
enum huge_pages huge_pages_state(void);

/*
 * The same from three texts there: shmem_enabled, hpage_pmd_size (the page size
 * that the first is about: 512 MiB on a kernel with pages of 64 KiB), and
 * hugepages-2048kB/shmem_enabled. "": the kernel has no such file.
 */
enum huge_pages huge_pages_parse(const char *all, const char *pmd_size,
				 const char *own);
