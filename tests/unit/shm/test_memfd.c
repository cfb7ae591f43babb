/*
 * Tests sealed memory files: what other processes can do to them, and which
 * files we refuse to map.
 */
#include "proto/error.h"
#include "shm/memfd.h"
#include "tests/lib/check.h"
#include "tests/unit/fds_fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE (HUGE_PAGE_SIZE * 2)

static int make(enum memfd_seals seals)
{
	int fd = -1;

	cr_assert(
		zero(int, memfd_create_sealed("test", SIZE, seals, &fd, NULL)));
	return fd;
}

Test(memfd, a_new_file_cannot_change_its_size)
{
	int fd = make(MEMFD_SEAL_SIZE);
	struct stat status;

	cr_expect(eq(int, ftruncate(fd, SIZE / 2), -1));
	cr_expect(eq(int, ftruncate(fd, SIZE * 2), -1));
	cr_assert(zero(int, fstat(fd, &status)));
	cr_expect(eq(long, status.st_size, (long)SIZE));
	cr_expect(eq(int, status.st_mode & 07777, 0600));
	cr_expect(eq(int, fcntl(fd, F_GETFD), FD_CLOEXEC));
	close(fd);
}

Test(memfd, a_fully_sealed_file_accepts_no_more_seals)
{
	int fd = make(MEMFD_SEAL_CLOSED);

	cr_expect(eq(int, memfd_seal_write(fd, NULL), -EPERM));
	close(fd);
}

Test(memfd, a_file_of_no_size_is_refused)
{
	struct error err = ERROR_NULL;
	int n = count_fds(), fd = -1;

	cr_expect(eq(int,
		     memfd_create_sealed("test", 0, MEMFD_SEAL_SIZE, &fd, &err),
		     -EINVAL));
	cr_expect(eq(int, fd, -1));
	cr_expect(ne(str, err.msg, ""));
	cr_expect(eq(int,
		     memfd_create_sealed("test", UINT64_MAX, MEMFD_SEAL_SIZE,
					 &fd, NULL),
		     -EINVAL));
	cr_expect(eq(int, count_fds(), n));
}

Test(memfd, a_read_only_descriptor_cannot_be_mapped_writable)
{
	int fd = make(MEMFD_SEAL_SIZE), readonly_fd = -1;
	char *ours;
	void *at;

	cr_assert(zero(int, memfd_open_readonly(fd, &readonly_fd, NULL)));
	cr_expect(eq(int, memfd_map(readonly_fd, SIZE, true, &at, NULL),
		     -EACCES));
	cr_assert(zero(int, memfd_map(fd, SIZE, true, (void **)&ours, NULL)));
	ours[SIZE - 1] = 'x';
	cr_assert(zero(int, memfd_map(readonly_fd, SIZE, false, &at, NULL)));
	cr_expect(eq(chr, ((char *)at)[SIZE - 1], 'x'));
	cr_expect(eq(int, mprotect(at, SIZE, PROT_READ | PROT_WRITE), -1));
	munmap(at, SIZE);
	munmap(ours, SIZE);
	close(readonly_fd);
	close(fd);
}

Test(memfd, a_closed_descriptor_cannot_be_reopened)
{
	struct error err = ERROR_NULL;
	int fd = make(MEMFD_SEAL_SIZE), readonly_fd = -1;

	close(fd);
	cr_expect(
		eq(int, memfd_open_readonly(fd, &readonly_fd, &err), -ENOENT));
	cr_expect(eq(int, readonly_fd, -1));
	cr_expect(eq(int, err.code, -ENOENT));
}

/* Under tests/fakes/large_pages.c the page size of the fake must apply. */
Test(memfd, the_kernel_maps_whole_pages_only)
{
	const char *wanted = getenv("FSDP_TEST_PAGE_SIZE");
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = make(MEMFD_SEAL_SIZE);
	char *at;

	if (wanted)
		cr_assert(eq(sz, page, strtoul(wanted, NULL, 10)));
	cr_assert(le(sz, page, LAYOUT_PAGE_SIZE));
	cr_expect(
		eq(ptr,
		   mmap(NULL, page, PROT_READ, MAP_SHARED, fd, (off_t)page / 2),
		   MAP_FAILED));
	at = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, (off_t)page);
	cr_assert(ne(ptr, at, MAP_FAILED));
	cr_expect(zero(sz, (uintptr_t)at % page));
	cr_expect(eq(int, at[page - 1], 0));
	cr_expect(eq(int, madvise(at + page / 2, 1, MADV_DONTDUMP), -1));
	cr_expect(eq(int, mprotect(at + page / 2, 1, PROT_NONE), -1));
	cr_expect(eq(int, munmap(at + page / 2, 1), -1));
	cr_expect(zero(int, munmap(at, 1)));
	close(fd);
}

/* A range within a page is zeroed, but the page stays. */
Test(memfd, a_hole_has_whole_pages)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = make(MEMFD_SEAL_SIZE);
	struct stat status;
	char bytes[2] = "";

	cr_assert(zero(int, fallocate(fd, 0, 0, (off_t)(4 * page))));
	cr_assert(eq(long, pwrite(fd, "xy", 2, (off_t)(page / 2 - 1)), 2));
	cr_assert(zero(int,
		       fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 (off_t)(page / 2), (off_t)(3 * page))));
	cr_assert(zero(int, fstat(fd, &status)));
	cr_expect(eq(long, status.st_blocks * 512, 2 * (long)page));
	cr_assert(eq(long, pread(fd, bytes, 2, (off_t)(page / 2 - 1)), 2));
	cr_expect(eq(chr, bytes[0], 'x'));
	cr_expect(zero(chr, bytes[1]));
	close(fd);
}

Test(memfd, a_mapping_starts_at_a_huge_page_and_has_no_excess)
{
	int fd = make(MEMFD_SEAL_SIZE);
	void *at, *small;

	cr_assert(zero(int, memfd_map(fd, SIZE, false, &at, NULL)));
	cr_expect(zero(ulong, (unsigned long)at % HUGE_PAGE_SIZE));
	/* The pages around the map were released. */
	cr_expect(eq(int,
		     msync((char *)at + SIZE - LAYOUT_PAGE_SIZE,
			   LAYOUT_PAGE_SIZE, MS_ASYNC),
		     0));
	cr_assert(zero(int,
		       memfd_map(fd, LAYOUT_PAGE_SIZE, false, &small, NULL)));
	cr_expect(zero(ulong, (unsigned long)small % HUGE_PAGE_SIZE));
	cr_expect(zero(int, munmap(small, LAYOUT_PAGE_SIZE)));
	cr_expect(zero(int, munmap(at, SIZE)));
	cr_expect(eq(int, memfd_map(fd, 0, false, &at, NULL), -EINVAL));
	cr_expect(eq(int, memfd_map(fd, 4096, false, &at, NULL), -EINVAL));
	close(fd);
}

Test(memfd, a_mapped_range_is_at_its_offset)
{
	int fd = make(MEMFD_SEAL_SIZE);
	char *all, *part;

	cr_assert(zero(int, memfd_map(fd, SIZE, true, (void **)&all, NULL)));
	cr_assert(zero(int, memfd_map_range(fd, HUGE_PAGE_SIZE, HUGE_PAGE_SIZE,
					    true, (void **)&part, NULL)));
	part[7] = 'y';
	cr_expect(eq(chr, all[HUGE_PAGE_SIZE + 7], 'y'));
	munmap(part, HUGE_PAGE_SIZE);
	munmap(all, SIZE);
	close(fd);
}

Test(memfd, writes_can_be_sealed_once_no_writable_mapping_exists)
{
	struct error err = ERROR_NULL;
	int fd = make(MEMFD_SEAL_SIZE);
	void *at;

	cr_assert(zero(int, memfd_map(fd, SIZE, true, &at, NULL)));
	cr_expect(eq(int, memfd_seal_write(fd, &err), -EBUSY));
	cr_expect(ne(ptr, strstr(err.msg, "writable"), NULL));
	munmap(at, SIZE);
	cr_expect(zero(int, memfd_seal_write(fd, NULL)));
	cr_expect(eq(int, memfd_map(fd, SIZE, true, &at, NULL), -EPERM));
	cr_expect(eq(int, memfd_seal_write(fd, NULL), -EPERM));
	close(fd);
}

Test(memfd, a_check_gives_the_inode_of_a_good_file)
{
	int fd = make(MEMFD_SEAL_SIZE);
	uint64_t inode = 0;
	struct stat status;

	cr_expect(zero(int, memfd_check(fd, SIZE, &inode, NULL)));
	cr_assert(zero(int, fstat(fd, &status)));
	cr_expect(eq(u64, inode, (uint64_t)status.st_ino));
	cr_expect(zero(int, memfd_check(fd, SIZE, NULL, NULL)));
	close(fd);
}

Test(memfd, unsealed_and_foreign_descriptors_are_refused)
{
	int good = make(MEMFD_SEAL_SIZE), unsealed, pipes[2], file;
	char path[] = "/tmp/fsdp-memfd-XXXXXX";
	uint64_t inode = 77;

	unsealed = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	cr_assert(zero(int, ftruncate(unsealed, SIZE)));
	cr_assert(zero(int, pipe(pipes)));
	file = mkstemp(path);
	cr_assert(zero(int, ftruncate(file, SIZE)));
	cr_expect(eq(int, memfd_check(good, SIZE * 2, &inode, NULL), -EINVAL));
	cr_expect(eq(int, memfd_check(good, SIZE / 2, &inode, NULL), -EINVAL));
	cr_expect(eq(int, memfd_check(unsealed, SIZE, &inode, NULL), -EPERM));
	cr_assert(zero(int, fcntl(unsealed, F_ADD_SEALS, F_SEAL_GROW)));
	cr_expect(eq(int, memfd_check(unsealed, SIZE, &inode, NULL), -EPERM));
	cr_expect(lt(int, memfd_check(pipes[0], SIZE, &inode, NULL), 0));
	cr_expect(lt(int, memfd_check(file, SIZE, &inode, NULL), 0));
	cr_expect(eq(int, memfd_check(-1, SIZE, &inode, NULL), -EBADF));
	cr_expect(eq(u64, inode, 77));
	unlink(path);
}

#ifdef FSDP_TEST_POINTS
Test(memfd, creation_is_retried_without_a_flag_that_the_kernel_lacks)
{
	int fd;

	setenv("FSDP_FAIL_AT", "memfd.create:1:22", 1);
	fd = make(MEMFD_SEAL_CLOSED);
	cr_expect(zero(int, memfd_check(fd, SIZE, NULL, NULL)));
	close(fd);
}

Test(memfd, a_failed_mapping_leaves_the_pointer_unchanged)
{
	struct error err = ERROR_NULL;
	int fd = make(MEMFD_SEAL_SIZE);
	void *at = NULL;

	setenv("FSDP_FAIL_AT", "memfd.map:1:12", 1);
	cr_expect(eq(int, memfd_map(fd, SIZE, false, &at, &err), -ENOMEM));
	cr_expect(eq(ptr, at, NULL));
	cr_expect(ne(ptr, strstr(err.msg, "read-only"), NULL));
	close(fd);
}
#endif
