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

/*
 * Page faults of a thread lock the address space for each page anew, and before
 * the event loop if that waits for the lock, too: the kernel lets it wait for 4
 * ms. But to map or to unmap something the thread queues behind the loop. So
 * each step maps one huge page.
 */
#define POPULATE_STEP HUGE_PAGE_SIZE

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
		cause = "the machine has no memory left for it, or the broker "
			"no address space; lower memory_max or free memory";
	else if (code == -EHWPOISON || code == -EIO)
		cause = "the memory has failed in hardware; see the kernel "
			"log and replace it";
	else
		cause = strerror(-code);
	return error_set(err, code,
			 "cannot populate bytes %llu to %llu of a chunk: "
			 "%s",
			 (unsigned long long)offset, (unsigned long long)end,
			 cause);
}

/* Writes zeros to [offset, end). That takes half of the CPU time of page faults
 * and leaves the address space alone. */
static int write_zeros(int fd, uint64_t offset, uint64_t end)
{
	static uint8_t zeros[LAYOUT_PAGE_SIZE];
	uint64_t size;
	ssize_t n;

	for (; offset < end; offset += (uint64_t)n) {
		size = end - offset;
		if (size > sizeof(zeros))
			size = sizeof(zeros);
		n = pwrite(fd, zeros, size, (off_t)offset);
		if (n < 0)
			return -errno;
	}
	return 0;
}

/* Lets page faults allocate [offset, end), which is within one step. */
static int fault_in(int fd, uint64_t offset, uint64_t end)
{
	uint64_t start = round_down(offset, POPULATE_STEP);
	uint8_t *at;
	int r;

	r = memfd_map_range(fd, start, POPULATE_STEP, true, (void **)&at, NULL);
	if (r < 0)
		return r;
	if (madvise(at + (offset - start), end - offset, MADV_POPULATE_WRITE) <
	    0)
		r = -errno;
	munmap(at, POPULATE_STEP);
	return r;
}

static int populate_step(int fd, uint64_t offset, uint64_t end,
			 enum huge_pages huge_pages, struct error *err)
{
	int r = failpoint_fail("chunk.populate");

	if (r == 0 && huge_pages == HUGE_PAGES_NEVER)
		r = write_zeros(fd, offset, end);
	else if (r == 0)
		r = fault_in(fd, offset, end);
	/* the kernel does not support MADV_POPULATE_WRITE */
	if (r == -EINVAL)
		r = write_zeros(fd, offset, end);
	if (r < 0)
		return explain_populate(err, r, offset, end);
	return 0;
}

int chunk_populate(int fd, uint64_t offset, uint64_t size,
		   enum huge_pages huge_pages, struct error *err)
{
	const uint64_t end = offset + size;
	uint64_t stop;
	int r;

	assert(offset <= INT64_MAX && size <= INT64_MAX - offset);
	for (; offset < end; offset = stop) {
		stop = round_down(offset, POPULATE_STEP) + POPULATE_STEP;
		if (stop > end)
			stop = end;
		r = populate_step(fd, offset, stop, huge_pages, err);
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
