/* The files that drivers open at their start. */
#include "tests/fakes/cuda/openings.h"
#include "tests/fakes/cuda/settings.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
	const char *path;
	int flags;
} openings[] = {
	{"/dev/nvidiactl", O_RDWR},
	{"/dev/nvidia0", O_RDWR},
	{"/dev/nvidia-uvm", O_RDWR},
	{"/dev/nvidia-uvm-tools", O_RDWR},
	{"/dev/nvidia-caps-imex-channels/channel0", O_RDWR},
	{"/proc/driver/nvidia/params", O_RDONLY},
	{"/proc/driver/nvidia/gpus", O_RDONLY},
	{"/proc/devices", O_RDONLY},
	{"/proc/modules", O_RDONLY},
	{"/proc/self/maps", O_RDONLY},
	{"/proc/self/status", O_RDONLY},
	{"/proc/cpuinfo", O_RDONLY},
	{"/proc/meminfo", O_RDONLY},
	{"/proc/sys/vm/mmap_min_addr", O_RDONLY},
	{"/sys/devices/system/cpu", O_RDONLY},
	{"/sys/devices/system/node", O_RDONLY},
	{"/sys/bus/pci/devices", O_RDONLY},
	{"/sys/module/nvidia/version", O_RDONLY},
	{"/usr/share/nvidia", O_RDONLY},
	{"/etc/ld.so.cache", O_RDONLY},
	{"/etc/nvidia", O_RDONLY},
};

/* A file that the machine does not have is not refused. */
static bool is_refused(int fd)
{
	if (fd >= 0)
		close(fd);
	return fd < 0 && errno != ENOENT && errno != ENXIO && errno != ENODEV;
}

/* Makes a file for this process alone, as in /tmp. */
static bool may_make_file(const char *folder)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/fake-cuda-XXXXXX", folder);
	fd = mkstemp(path);
	if (fd >= 0)
		unlink(path);
	return !is_refused(fd);
}

/* Makes the cache of compiled kernels. */
static bool may_make_cache(const char *home)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/.nv", home);
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return false;
	return may_make_file(path);
}

bool openings_are_allowed(void)
{
	const char *home = settings()->home;
	bool is_allowed = true;

	if (!home)
		return true;
	for (size_t i = 0; i < sizeof(openings) / sizeof(*openings); i++) {
		const char *path = openings[i].path;

		if (!is_refused(open(path, openings[i].flags | O_CLOEXEC)))
			continue;
		fprintf(stderr, "fake CUDA driver: %s: %m\n", path);
		is_allowed = false;
	}
	return is_allowed && may_make_file("/tmp") &&
	       may_make_file("/dev/shm") && may_make_cache(home);
}
