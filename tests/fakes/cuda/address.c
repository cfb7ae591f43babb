/* This file reserves and backs addresses. */
#include "tests/fakes/cuda/address.h"
#include "tests/fakes/cuda/guard.h"
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

/* Ranges lie at most this far below the place that the kernel would choose.
 * More would leave the range that ThreadSanitizer allows. */
#define SPREAD (UINT64_C(1) << 38)
#define TRIES  64
/* A released range stays reserved until this many more were released. Each
 * costs one of the kernel's 65,530 mappings. */
#define N_RELEASED 256

static struct range {
	uint64_t address, size;
} released[N_RELEASED];
static unsigned int next_released;

uint64_t address_round(uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

	return (size + page - 1) & ~(page - 1);
}

static void *map(uint64_t hint, uint64_t size, int flags)
{
	return mmap((void *)(uintptr_t)hint, size, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

/* Returns the place that the kernel would choose. Random ranges are below
 * it. */
static uint64_t find_top(uint64_t size)
{
	void *at = map(0, size, 0);

	if (at == MAP_FAILED)
		return 0;
	munmap(at, size);
	return (uintptr_t)at;
}

uint64_t address_reserve(uint64_t size, uint64_t alignment)
{
	uint64_t top = find_top(size);
	uint64_t random, hint;
	void *at;

	if (!top)
		return 0;
	for (int i = 0; i < TRIES; i++) {
		if (getrandom(&random, sizeof(random), 0) != sizeof(random))
			return 0;
		hint = (top - random % SPREAD) & ~(alignment - 1);
		at = map(hint, size, MAP_FIXED_NOREPLACE);
		if (at == (void *)(uintptr_t)hint)
			return hint;
		if (at != MAP_FAILED)
			munmap(at, size);
	}
	return 0;
}

void address_release(uint64_t address, uint64_t size)
{
	struct range *range = &released[next_released++ % N_RELEASED];

	address_clear(address, size);
	if (range->size)
		munmap((void *)(uintptr_t)range->address, range->size);
	*range = (struct range){address, size};
}

/* As with all device memory, forked children do not inherit it, and core files
 * do not contain it. */
static int protect(uint64_t address, uint64_t size, int protection)
{
	void *at = (void *)(uintptr_t)address;

	if (guard_protect(at, size, protection) < 0 ||
	    madvise(at, size, MADV_DONTFORK) < 0 ||
	    madvise(at, size, MADV_DONTDUMP) < 0) {
		address_clear(address, size);
		return -1;
	}
	return 0;
}

int address_back(uint64_t address, uint64_t size, int fd, off_t offset,
		 int protection)
{
	void *at = mmap((void *)(uintptr_t)address, size, PROT_NONE,
			MAP_SHARED | MAP_FIXED, fd, offset);

	return at == MAP_FAILED ? -1 : protect(address, size, protection);
}

void address_clear(uint64_t address, uint64_t size)
{
	map(address, size, MAP_FIXED);
}

int address_alias(uint64_t address, void *host, uint64_t size, int protection)
{
	/* With an old size of 0 the old mapping stays, and the new one is a
	 * second mapping. */
	void *at = mremap(host, 0, size, MREMAP_MAYMOVE | MREMAP_FIXED,
			  (void *)(uintptr_t)address);

	return at == MAP_FAILED ? -1 : protect(address, size, protection);
}
