/*
 * Lets the broker's clocks jump (tests/fakes/clock.c).
 */
#include "tests/chaos/storm.h"
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)
#define DAY_S  86400

static char offsets[] = "/tmp/fsdp-clock-XXXXXX";

/* A sanitizer has to be loaded first. */
static bool is_sanitized(void)
{
#ifdef __SANITIZE_ADDRESS__
	return true;
#else
	return false;
#endif
}

static void preload(void)
{
	char path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 32);

	must(n > 0);
	path[n] = '\0';
	strcpy(strrchr(path, '/') + 1, "fakes/libfake_clock.so");
	must(access(path, R_OK) == 0);
	setenv("LD_PRELOAD", path, 1);
	setenv("FAKECLOCK", offsets, 1);
}

void clock_prepare(struct storm *storm)
{
	const size_t size = 2 * sizeof(*storm->clock);
	int fd;

	if (is_sanitized())
		return;
	fd = mkstemp(offsets);
	must(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	storm->clock =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(storm->clock != MAP_FAILED);
	close(fd);
	preload();
}

void clock_finish(struct storm *storm)
{
	unsetenv("LD_PRELOAD");
	unsetenv("FAKECLOCK");
	if (!storm->clock)
		return;
	(void)unlink(offsets);
	munmap((void *)storm->clock, 2 * sizeof(*storm->clock));
}

/* Act as if a user set the time, or as if the machine was suspended for some
 * seconds. */
void jump_clocks(struct storm *storm)
{
	int64_t days = (int64_t)draw(&storm->chance, 2 * DAY_S) - DAY_S;

	if (!storm->clock)
		return;
	storm->tally.jumps++;
	if (draw(&storm->chance, 2))
		atomic_store(&storm->clock[0], days * (int64_t)SECOND);
	else
		atomic_fetch_add(&storm->clock[1],
				 draw(&storm->chance, 10) * (int64_t)SECOND);
}
