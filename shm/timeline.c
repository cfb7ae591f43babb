/*
 * Makes and maps timeline files, and accesses their counters from the CPU.
 *
 * A device writes a counter (cuStreamWriteValue64) after a fence over all
 * earlier work of its stream. So an acquire load that sees the value also sees
 * the data, as far as the CPU can see it. The client can write any value, but a
 * wrong value about its own work only harms processes that use its data anyway.
 */
#include "shm/timeline.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define TIMELINES_MAGIC UINT64_C(0x324d495450445346) /* "FSDPTIM2" */

_Static_assert(TIMELINE_SIZE == LAYOUT_PAGE_SIZE, "devices pin one page");
_Static_assert(TIMELINES *TIMELINE_STRIDE <= TIMELINE_SIZE, "all fit");
_Static_assert(TIMELINE_STRIDE % sizeof(_Atomic uint64_t) == 0, "aligned");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "a counter is 8 bytes");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "counters are shared by processes");

static _Atomic uint64_t *word(const struct timelines *timelines, uint32_t i)
{
	return (_Atomic uint64_t *)((uint8_t *)timelines->pages +
				    (size_t)i * TIMELINE_STRIDE);
}

/* The mapping is not inherited by forked children, because a child must not
 * signal as its parent. */
static int map(struct timelines *timelines, struct error *err)
{
	int protection = PROT_READ | (timelines->is_writable ? PROT_WRITE : 0);
	int r = failpoint_fail("memfd.map");
	void *at;

	if (r < 0)
		return error_errno(err, r, "cannot map a timeline file");
	at = mmap(NULL, TIMELINE_SIZE, protection, MAP_SHARED, timelines->fd,
		  0);
	if (at == MAP_FAILED)
		return error_errno(err, -errno, "cannot map a timeline file %s",
				   timelines->is_writable ? "writable"
							  : "read-only");
	if (madvise(at, TIMELINE_SIZE, MADV_DONTFORK) < 0) {
		r = -errno;
		munmap(at, TIMELINE_SIZE);
		return error_errno(err, r,
				   "cannot keep a timeline file from forked "
				   "processes");
	}
	timelines->pages = at;
	return 0;
}

int timelines_create(struct timelines *ret, struct error *err)
{
	struct timelines timelines = {.fd = -1, .is_writable = true};
	int r;

	r = memfd_create_sealed("fsdp-timelines", TIMELINE_SIZE,
				MEMFD_SEAL_CLOSED, &timelines.fd, err);
	if (r < 0)
		return r;
	r = map(&timelines, err);
	if (r < 0) {
		timelines_close(&timelines);
		return r;
	}
	*word(&timelines, 0) = TIMELINES_MAGIC;
	*ret = timelines;
	return 0;
}

static int check(int fd, struct error *err)
{
	uint64_t magic = 0;
	ssize_t n;
	int r, seals;

	r = memfd_check(fd, TIMELINE_SIZE, NULL, err);
	if (r < 0)
		return error_wrap(err, r, "cannot use the timeline file");
	/* Our files have F_SEAL_SEAL, so that no process can add a seal against
	 * writes later. */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SEAL))
		return error_set(err, -EPERM,
				 "the timeline file can still be sealed, so "
				 "fsdpd did not make it");
	n = pread(fd, &magic, sizeof(magic), 0);
	if (n < 0)
		return error_errno(err, -errno, "cannot read a timeline file");
	if (n != sizeof(magic) || magic != TIMELINES_MAGIC)
		return error_set(err, -EPROTO,
				 "the file is not a timeline file, or has "
				 "another layout: install broker and library "
				 "of the same version");
	return 0;
}

int timelines_open(struct timelines *ret, int fd, bool is_writable,
		   struct error *err)
{
	struct timelines timelines = {.fd = fd, .is_writable = is_writable};
	int r;

	r = check(fd, err);
	if (r == 0)
		r = map(&timelines, err);
	if (r < 0) {
		timelines_close(&timelines);
		return r;
	}
	*ret = timelines;
	return 0;
}

void timelines_close(struct timelines *timelines)
{
	if (timelines->pages)
		munmap(timelines->pages, TIMELINE_SIZE);
	if (timelines->fd >= 0)
		close(timelines->fd);
	*timelines = TIMELINES_NULL;
}

uint64_t timelines_load(const struct timelines *timelines, uint32_t timeline)
{
	uint32_t i = timeline % TIMELINES;

	/* position 0 is the header */
	if (i == 0)
		return TIMELINE_POISON;
	/* acquire: what was done before the write is visible after this load */
	return atomic_load_explicit(word(timelines, i), memory_order_acquire);
}

void timelines_poison(struct timelines *timelines)
{
	/* release: a process that is woken sees what was recorded about the
	 * death before (that its tensors are tainted) */
	for (uint32_t i = 1; i < TIMELINES; i++)
		atomic_store_explicit(word(timelines, i), TIMELINE_POISON,
				      memory_order_release);
}
