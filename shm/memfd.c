/*
 * Makes and maps sealed memory files.
 *
 * Two steps make a memfd safe to share. Seals prevent that a process removes
 * pages under a mapping, which would be a SIGBUS for the others. Mode 0600
 * prevents that a process with a read-only descriptor opens the memfd again
 * through /proc for writing, since a new memfd has mode 0777.
 */
#include "shm/memfd.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Headers before Linux 6.3 do not have it. */
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define SEALS_SIZE (F_SEAL_SHRINK | F_SEAL_GROW)

static int create(const char *name, unsigned int flags)
{
	int fd = failpoint_fail("memfd.create");

	if (fd < 0)
		return fd;
	fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

/* Sets size, mode and seals of a new file. */
static int prepare(int fd, const char *name, uint64_t size,
		   enum memfd_seals seals, struct error *err)
{
	int wanted = SEALS_SIZE;

	if (seals == MEMFD_SEAL_CLOSED)
		wanted |= F_SEAL_SEAL;
	if (ftruncate(fd, (off_t)size) < 0)
		return error_errno(
			err, -errno,
			"cannot give memfd %s its size of %llu bytes", name,
			(unsigned long long)size);
	if (fchmod(fd, 0600) < 0)
		return error_errno(err, -errno,
				   "cannot set the mode of memfd %s", name);
	if (fcntl(fd, F_ADD_SEALS, wanted) < 0)
		return error_errno(err, -errno, "cannot seal memfd %s", name);
	return 0;
}

int memfd_create_sealed(const char *name, uint64_t size, enum memfd_seals seals,
			int *ret_fd, struct error *err)
{
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	int fd, r;

	if (size == 0 || size > INT64_MAX)
		return error_set(err, -EINVAL,
				 "memfd %s cannot have a size of %llu bytes",
				 name, (unsigned long long)size);
	/* With vm.memfd_noexec=2 the kernel refuses files without this flag.
	 * Older kernels do not know the flag. */
	fd = create(name, flags | MFD_NOEXEC_SEAL);
	if (fd == -EINVAL)
		fd = create(name, flags);
	if (fd < 0)
		return error_errno(err, fd, "cannot create memfd %s", name);
	r = prepare(fd, name, size, seals, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

int memfd_open_readonly(int fd, int *ret_fd, struct error *err)
{
	char path[32];
	int readonly_fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	readonly_fd = failpoint_fail("memfd.readonly");
	if (readonly_fd == 0) {
		readonly_fd = open(path, O_RDONLY | O_CLOEXEC);
		if (readonly_fd < 0)
			readonly_fd = -errno;
	}
	if (readonly_fd < 0)
		return error_errno(
			err, readonly_fd,
			"cannot open a memfd read-only as %s (is /proc "
			"mounted?)",
			path);
	*ret_fd = readonly_fd;
	return 0;
}

int memfd_check(int fd, uint64_t size, uint64_t *ret_inode, struct error *err)
{
	struct stat status;
	int seals;

	/* This must come before fstat(), which can block for ever on a network
	 * file system. It fails on all files but memory files. */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0)
		return error_errno(err, -errno,
				   "the descriptor is not a memory file");
	if ((seals & SEALS_SIZE) != SEALS_SIZE)
		return error_set(err, -EPERM,
				 "the memory file is not sealed against "
				 "changes of its size (seals 0x%x)",
				 (unsigned int)seals);
	if (fstat(fd, &status) < 0)
		return error_errno(err, -errno, "cannot inspect a memory file");
	if (!S_ISREG(status.st_mode) || status.st_size < 0 ||
	    (uint64_t)status.st_size != size)
		return error_set(err, -EINVAL,
				 "the memory file has %lld bytes instead of "
				 "%llu",
				 (long long)status.st_size,
				 (unsigned long long)size);
	if (ret_inode)
		*ret_inode = status.st_ino;
	return 0;
}

int memfd_seal_write(int fd, struct error *err)
{
	int r;

	if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) == 0)
		return 0;
	r = -errno;
	if (r == -EBUSY)
		return error_set(err, r,
				 "the memory is still mapped writable "
				 "somewhere; unmap it first");
	return error_errno(err, r, "cannot seal memory against writes");
}

/*
 * Reserves address space of `size` bytes that starts at a multiple of 2 MiB.
 * The kernel aligns to pages only, so this reserves more and returns the rest.
 */
static void *reserve(uint64_t size)
{
	uint64_t whole = size + HUGE_PAGE_SIZE, before;
	uint8_t *at, *aligned;

	at = mmap(NULL, whole, PROT_NONE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return MAP_FAILED;
	before = -(uintptr_t)at & (HUGE_PAGE_SIZE - 1);
	aligned = at + before;
	if (before > 0)
		munmap(at, before);
	munmap(aligned + size, HUGE_PAGE_SIZE - before);
	return aligned;
}

static int map(int fd, uint64_t offset, uint64_t size, int protection,
	       void **ret)
{
	void *at, *mapped;
	int r = failpoint_fail("memfd.map");

	if (r < 0)
		return r;
	at = reserve(size);
	if (at == MAP_FAILED)
		return -errno;
	mapped = mmap(at, size, protection, MAP_SHARED | MAP_FIXED, fd,
		      (off_t)offset);
	if (mapped == MAP_FAILED) {
		r = -errno;
		munmap(at, size);
		return r;
	}
	*ret = mapped;
	return 0;
}

int memfd_map_range(int fd, uint64_t offset, uint64_t size, bool is_writable,
		    void **ret, struct error *err)
{
	int r;

	assert(offset % HUGE_PAGE_SIZE == 0);
	/* reserve() unmaps address space after `size` bytes, in whole pages */
	if (size == 0 || size % LAYOUT_PAGE_SIZE != 0 ||
	    size > INT64_MAX - HUGE_PAGE_SIZE)
		return error_set(err, -EINVAL,
				 "cannot map %llu bytes of a memory file: the "
				 "size is not a multiple of 64 KiB",
				 (unsigned long long)size);
	r = map(fd, offset, size, PROT_READ | (is_writable ? PROT_WRITE : 0),
		ret);
	if (r < 0)
		return error_errno(err, r,
				   "cannot map %llu bytes of a memory file %s",
				   (unsigned long long)size,
				   is_writable ? "writable" : "read-only");
	/* this fails on kernels without huge pages, which is not an error */
	(void)madvise(*ret, size, MADV_HUGEPAGE);
	/* keep whole models out of the core dump of a reader */
	(void)madvise(*ret, size, MADV_DONTDUMP);
	return 0;
}

int memfd_map(int fd, uint64_t size, bool is_writable, void **ret,
	      struct error *err)
{
	return memfd_map_range(fd, 0, size, is_writable, ret, err);
}
