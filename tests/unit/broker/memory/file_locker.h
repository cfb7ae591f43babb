/*
 * Threads that keep the lock of a file, as a hostile process can.
 */
#pragma once
#include "tests/lib/check.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A thread that writes to a file, whose lock it keeps until its bytes can be
 * read: memory that userfaultfd() does not fill is like a file of FUSE. */
struct locker {
	pthread_t thread;
	int fd, faults;
	void *bytes;
};

static inline void *write_page(void *data)
{
	struct locker *locker = data;
	ssize_t n = pwrite(locker->fd, locker->bytes, 4096, 0);

	(void)n; /* only the wait matters */
	return NULL;
}

static inline void lock_file(struct locker *locker, int fd)
{
	struct uffdio_api api = {.api = UFFD_API};
	struct uffdio_register range = {.mode = UFFDIO_REGISTER_MODE_MISSING};
	struct uffd_msg fault;

	locker->fd = fd;
	locker->faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (locker->faults < 0)
		cr_skip_test("userfaultfd: %s", strerror(errno));
	cr_assert(zero(int, ioctl(locker->faults, UFFDIO_API, &api)));
	locker->bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range.start = (uintptr_t)locker->bytes;
	range.range.len = 4096;
	cr_assert(zero(int, ioctl(locker->faults, UFFDIO_REGISTER, &range)));
	cr_assert(zero(int, pthread_create(&locker->thread, NULL, write_page,
					   locker)));
	/* The thread has the lock when it needs the bytes. */
	cr_assert(eq(i64, read(locker->faults, &fault, sizeof(fault)),
		     (int64_t)sizeof(fault)));
}

static inline void let_go(struct locker *locker)
{
	close(locker->faults);
	pthread_join(locker->thread, NULL);
	munmap(locker->bytes, 4096);
}
