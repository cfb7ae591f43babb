/*
 * Clocks that jump, for LD_PRELOAD. FAKECLOCK names a file of two numbers of
 * nanoseconds, by which CLOCK_REALTIME and CLOCK_BOOTTIME are ahead. The first
 * may jump in both directions, as when the time is set; the second only
 * forward, as after a suspend. CLOCK_MONOTONIC does not jump on any machine, so
 * it does not jump here.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static _Atomic int64_t *offsets; /* NULL if clocks do not jump */

__attribute__((constructor)) static void open_offsets(void)
{
	const char *path = getenv("FAKECLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *at;

	if (fd < 0)
		return;
	at = mmap(NULL, 2 * sizeof(*offsets), PROT_READ, MAP_SHARED, fd, 0);
	(void)close(fd);
	if (at != MAP_FAILED)
		offsets = at;
}

static int64_t offset_of(clockid_t clock)
{
	if (!offsets)
		return 0;
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
		return atomic_load(&offsets[0]);
	return clock == CLOCK_BOOTTIME ? atomic_load(&offsets[1]) : 0;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
							 struct timespec *ret)
{
	int64_t offset = offset_of(clock), ns;

	if (syscall(SYS_clock_gettime, clock, ret) < 0)
		return -1;
	ns = ret->tv_nsec + offset % SECOND;
	ret->tv_sec += offset / SECOND;
	if (ns < 0 || ns >= SECOND)
		ret->tv_sec += ns < 0 ? -1 : 1;
	ret->tv_nsec = ns < 0 ? ns + SECOND : ns % SECOND;
	return 0;
}
