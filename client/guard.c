/*
 * The page that the kernel wipes at a fork.
 */
#include "client/guard.h"
#include "proto/error.h"
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

int guard_open(struct guard *ret, struct error *err)
{
	void *page = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED)
		return error_errno(err, -errno,
				   "cannot map the page of the fork check");
	if (madvise(page, page_size(), MADV_WIPEONFORK) < 0) {
		int r = -errno;

		(void)munmap(page, page_size());
		return error_errno(
			err, r,
			"cannot set MADV_WIPEONFORK for the fork check");
	}
	ret->word = page;
	atomic_store_explicit(ret->word, 1, memory_order_relaxed);
	return 0;
}

void guard_close(struct guard *guard)
{
	if (guard->word)
		(void)munmap(guard->word, page_size());
	*guard = GUARD_NULL;
}
