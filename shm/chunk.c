/*
 * Makes, populates and punches chunks.
 *
 * The choice of the system calls matters, because the kernel gives huge pages
 * only to a mapping that asked for them, and frees memory only in pages of the
 * size that it gave.
 */
#include "shm/chunk.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SETTINGS     "/sys/kernel/mm/transparent_hugepage"
#define SETTING_SIZE 128

/* Populating holds the mmap lock of the process. With steps of this size the
 * event loop waits for the lock for some milliseconds at most, not for
 * seconds. */
#define POPULATE_STEP (8 * HUGE_PAGE_SIZE)

static uint64_t round_up(uint64_t size, uint64_t unit)
{
	return (size + unit - 1) & ~(unit - 1);
}

static uint64_t round_down(uint64_t size, uint64_t unit)
{
	return size & ~(unit - 1);
}

uint64_t chunk_round(uint64_t size)
{
	return round_up(size, HUGE_PAGE_SIZE);
}

uint64_t chunk_page_up(uint64_t size)
{
	return LAYOUT_PAGE_UP(size);
}

int chunk_create(uint64_t size, bool is_bundle, int *ret_fd, struct error *err)
{
	enum memfd_seals seals =
		is_bundle ? MEMFD_SEAL_SIZE : MEMFD_SEAL_CLOSED;

	assert(size % HUGE_PAGE_SIZE == 0);
	return memfd_create_sealed(is_bundle ? "fsdp-bundle" : "fsdp-chunk",
				   size, seals, ret_fd, err);
}

static int explain_populate(struct error *err, int code, uint64_t offset,
			    uint64_t end)
{
	const char *cause;

	if (code == -ENOMEM || code == -ENOSPC)
		cause = "the machine has no memory left for it; lower "
			"memory_max or free memory";
	else if (code == -EHWPOISON)
		cause = "the memory has failed in hardware; see the kernel "
			"log and replace it";
	else if (code == -EFAULT)
		cause = "they are past the end of the chunk";
	else
		cause = strerror(-code);
	return error_set(err, code,
			 "cannot populate bytes %llu to %llu of a chunk: "
			 "%s",
			 (unsigned long long)offset, (unsigned long long)end,
			 cause);
}

static int populate_fallback(int fd, uint64_t offset, uint64_t size)
{
	while (fallocate(fd, 0, (off_t)offset, (off_t)size) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

/* Populates [offset, end), which is within one step. */
static int populate_step(int fd, uint64_t offset, uint64_t end,
			 struct error *err)
{
	uint64_t start = round_down(offset, HUGE_PAGE_SIZE);
	uint64_t size = round_up(end, HUGE_PAGE_SIZE) - start;
	void *at;
	int r;

	r = memfd_map_range(fd, start, size, true, &at, err);
	if (r < 0)
		return error_wrap(err, r, "cannot populate a chunk");
	r = failpoint_fail("chunk.populate");
	if (r == 0 && madvise((uint8_t *)at + (offset - start), end - offset,
			      MADV_POPULATE_WRITE) < 0)
		r = -errno;
	munmap(at, size);
	/* the kernel or the memory does not support MADV_POPULATE_WRITE */
	if (r == -EINVAL)
		r = populate_fallback(fd, offset, end - offset);
	if (r < 0)
		return explain_populate(err, r, offset, end);
	return 0;
}

int chunk_populate(int fd, uint64_t offset, uint64_t size, struct error *err)
{
	/* Use the page size of the machine, because larger pages would waste
	 * memory. */
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t end, stop;
	int r;

	assert(offset <= INT64_MAX && size <= INT64_MAX - offset);
	end = round_up(offset + size, page);
	offset = round_down(offset, page);
	for (; offset < end; offset = stop) {
		stop = round_down(offset, POPULATE_STEP) + POPULATE_STEP;
		if (stop > end)
			stop = end;
		r = populate_step(fd, offset, stop, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int chunk_punch(int fd, uint64_t offset, uint64_t size, struct error *err)
{
	uint64_t start, end;
	int r;

	assert(offset <= INT64_MAX && size <= INT64_MAX - offset);
	start = round_up(offset, HUGE_PAGE_SIZE);
	end = round_down(offset + size, HUGE_PAGE_SIZE);
	if (start >= end)
		return 0;
	r = failpoint_fail("chunk.punch");
	while (r == 0 &&
	       fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
			 (off_t)start, (off_t)(end - start)) < 0)
		if (errno != EINTR)
			r = -errno;
	if (r < 0)
		return error_errno(
			err, r,
			"cannot give bytes %llu to %llu of a chunk back",
			(unsigned long long)start, (unsigned long long)end);
	return 0;
}

/* Returns "" if the setting cannot be read. */
static void read_setting(const char *path, char ret[SETTING_SIZE])
{
	ssize_t n = -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		n = read(fd, ret, SETTING_SIZE - 1);
		close(fd);
	}
	ret[n > 0 ? n : 0] = '\0';
}

enum huge_pages huge_pages_parse(const char *all, const char *pmd_size,
				 const char *own)
{
	const char *text = own;

	/* Without a setting of their own, pages of 2 MiB follow shmem_enabled
	 * if page-table entries (PMD) have that size; otherwise they are
	 * off. */
	if (strstr(own, "[inherit]") || strstr(all, "[deny]") ||
	    strstr(all, "[force]") ||
	    (!*own && strtoull(pmd_size, NULL, 10) == HUGE_PAGE_SIZE))
		text = all;
	if (strstr(text, "[advise]"))
		return HUGE_PAGES_ADVISE;
	if (strstr(text, "[always]") || strstr(text, "[within_size]") ||
	    strstr(text, "[force]"))
		return HUGE_PAGES_ALWAYS;
	return HUGE_PAGES_NEVER;
}

enum huge_pages huge_pages_state(void)
{
	char all[SETTING_SIZE], pmd_size[SETTING_SIZE], own[SETTING_SIZE];

	read_setting(SETTINGS "/shmem_enabled", all);
	read_setting(SETTINGS "/hpage_pmd_size", pmd_size);
	read_setting(SETTINGS "/hugepages-2048kB/shmem_enabled", own);
	return huge_pages_parse(all, pmd_size, own);
}
