/*
 * A kernel with pages of 64 KiB, for LD_PRELOAD. It refuses the arguments that
 * such a kernel refuses, and rounds as it does. It intercepts the calls of our
 * programs and their libraries. It does not intercept those of libc itself
 * (malloc, threads, the loader), and need not, because libc knows the page
 * size. Criterion has an arena at an address that an earlier process had; its
 * calls are not changed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/mman.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE      UINT64_C(65536)
#define REAL_PAGE UINT64_C(4096)
#define PUBLIC    __attribute__((visibility("default")))

/* Returns whether the call is one of Criterion's. */
#define IS_FOREIGN() is_foreign(__builtin_return_address(0))

static int is_foreign(const void *caller)
{
	Dl_info info;

	return dladdr(caller, &info) && info.dli_fname &&
	       strstr(info.dli_fname, "libcriterion");
}

static int is_whole(uint64_t at)
{
	return at % PAGE == 0;
}

static uint64_t page_up(uint64_t size)
{
	return (size + PAGE - 1) & ~(PAGE - 1);
}

static int refuse(void)
{
	errno = EINVAL;
	return -1;
}

/* --- mappings ------------------------------------------------------------ */

static void *sys_mmap(uint64_t at, uint64_t size, int protection, int flags,
		      int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, size, protection, flags, fd,
			       offset);
}

/* Finds an aligned place for a mapping that may be anywhere, and reserves it by
 * a mapping without rights. */
static uint64_t reserve(uint64_t hint, uint64_t size)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	uint64_t at, aligned;
	void *got;

	if (hint != 0 && is_whole(hint)) {
		got = sys_mmap(hint, size, PROT_NONE,
			       flags | MAP_FIXED_NOREPLACE, -1, 0);
		if (got != MAP_FAILED)
			return (uint64_t)(uintptr_t)got;
	}
	got = sys_mmap(0, size + PAGE, PROT_NONE, flags, -1, 0);
	if (got == MAP_FAILED)
		return 0;
	at = (uint64_t)(uintptr_t)got;
	aligned = page_up(at);
	if (aligned > at)
		syscall(SYS_munmap, at, aligned - at);
	if (aligned + size < at + size + PAGE)
		syscall(SYS_munmap, aligned + size, at + PAGE - aligned);
	return aligned;
}

PUBLIC void *mmap(void *hint, size_t size, int protection, int flags, int fd,
		  off_t offset)
{
	uint64_t at = (uint64_t)(uintptr_t)hint, whole = page_up(size);
	int saved;
	void *got;

	if (IS_FOREIGN())
		return sys_mmap(at, size, protection, flags, fd, offset);
	if (!is_whole((uint64_t)offset) || whole < size ||
	    ((flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) && !is_whole(at))) {
		errno = whole < size ? ENOMEM : EINVAL;
		return MAP_FAILED;
	}
	if (size == 0 || (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)))
		return sys_mmap(at, whole, protection, flags, fd, offset);
	at = reserve(at, whole);
	if (at == 0)
		return MAP_FAILED;
	got = sys_mmap(at, whole, protection, flags | MAP_FIXED, fd, offset);
	if (got != MAP_FAILED)
		return got;
	saved = errno;
	syscall(SYS_munmap, at, whole);
	errno = saved;
	return got;
}

PUBLIC int munmap(void *at, size_t size)
{
	if (IS_FOREIGN())
		return (int)syscall(SYS_munmap, at, size);
	if (!is_whole((uintptr_t)at))
		return refuse();
	return (int)syscall(SYS_munmap, at, page_up(size));
}

PUBLIC void *mremap(void *at, size_t old_size, size_t new_size, int flags, ...)
{
	void *to = NULL;
	va_list rest;

	if (flags & MREMAP_FIXED) {
		va_start(rest, flags);
		to = va_arg(rest, void *);
		va_end(rest);
	}
	if (IS_FOREIGN())
		return (void *)syscall(SYS_mremap, at, old_size, new_size,
				       flags, to);
	/* If the mapping may move to any address, that address may be
	 * misaligned. */
	if (!is_whole((uintptr_t)at) || !is_whole((uintptr_t)to) ||
	    (flags & (MREMAP_MAYMOVE | MREMAP_FIXED)) == MREMAP_MAYMOVE) {
		refuse();
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mremap, at, page_up(old_size),
			       page_up(new_size), flags, to);
}

/* These functions take a range of memory. It must begin at a page, and its end
 * is rounded up to one. */
PUBLIC int mprotect(void *at, size_t size, int protection)
{
	if (IS_FOREIGN())
		return (int)syscall(SYS_mprotect, at, size, protection);
	if (!is_whole((uintptr_t)at))
		return refuse();
	return (int)syscall(SYS_mprotect, at, page_up(size), protection);
}

PUBLIC int madvise(void *at, size_t size, int advice)
{
	if (IS_FOREIGN())
		return (int)syscall(SYS_madvise, at, size, advice);
	if (!is_whole((uintptr_t)at))
		return refuse();
	return (int)syscall(SYS_madvise, at, page_up(size), advice);
}

PUBLIC int msync(void *at, size_t size, int flags)
{
	if (IS_FOREIGN())
		return (int)syscall(SYS_msync, at, size, flags);
	if (!is_whole((uintptr_t)at))
		return refuse();
	return (int)syscall(SYS_msync, at, page_up(size), flags);
}

/* --- files --------------------------------------------------------------- */

/* If only a part of a page is punched, that part is filled with zeros, and the
 * page stays. */
static int zero(int fd, uint64_t from, uint64_t to)
{
	static const char zeros[PAGE];

	while (from < to) {
		uint64_t size = to - from < PAGE ? to - from : PAGE;

		if (pwrite(fd, zeros, size, (off_t)from) < 0)
			return -1;
		from += size;
	}
	return 0;
}

PUBLIC int fallocate(int fd, int mode, off_t offset, off_t size)
{
	uint64_t from = (uint64_t)offset, to = from + (uint64_t)size;
	uint64_t first = page_up(from), last = to & ~(PAGE - 1);

	if (!(mode & FALLOC_FL_PUNCH_HOLE) || offset < 0 || size <= 0 ||
	    (is_whole(from) && is_whole(to)))
		return (int)syscall(SYS_fallocate, fd, mode, offset, size);
	if (first >= last)
		return zero(fd, from, to);
	if (zero(fd, from, first) < 0 || zero(fd, last, to) < 0)
		return -1;
	return (int)syscall(SYS_fallocate, fd, mode, first, last - first);
}

/* --- what the page is said to be ----------------------------------------- */

PUBLIC int getpagesize(void)
{
	return IS_FOREIGN() ? (int)REAL_PAGE : (int)PAGE;
}

PUBLIC unsigned long getauxval(unsigned long type)
{
	static unsigned long (*real)(unsigned long);

	if (type == AT_PAGESZ && !IS_FOREIGN())
		return PAGE;
	if (!real)
		real = (unsigned long (*)(unsigned long))(uintptr_t)dlsym(
			RTLD_NEXT, "getauxval");
	return real(type);
}

PUBLIC long sysconf(int name)
{
	static long (*real)(int);

	if (name == _SC_PAGESIZE && !IS_FOREIGN())
		return PAGE;
	if (!real)
		real = (long (*)(int))(uintptr_t)dlsym(RTLD_NEXT, "sysconf");
	if (name == _SC_PHYS_PAGES || name == _SC_AVPHYS_PAGES)
		return real(name) / (long)(PAGE / REAL_PAGE);
	return real(name);
}
