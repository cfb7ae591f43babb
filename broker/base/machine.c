#include "broker/base/machine.h"
#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int machine_memory(uint64_t *ret, struct error *err)
{
	long pages = sysconf(_SC_PHYS_PAGES);
	long page_size = sysconf(_SC_PAGESIZE);

	if (pages <= 0 || page_size <= 0)
		return error_set(
			err, -EIO,
			"cannot read how much memory the machine has: "
			"sysconf() does not tell; check /proc/meminfo");
	*ret = (uint64_t)pages * (uint64_t)page_size;
	return 0;
}

/* Reads the first number in a file. Returns false if there is no such file, or
 * no number ("max"). */
static bool read_number(const char *path, uint64_t *ret)
{
	FILE *file = fopen(path, "re");
	bool is_read;

	if (!file)
		return false;
	is_read = fscanf(file, "%" SCNu64, ret) == 1;
	fclose(file);
	return is_read;
}

/* Returns the smallest limit from `path` (of a cgroup, below `root`) up to
 * `root`. */
static uint64_t cgroup_limit(const char *root, char *path, const char *file)
{
	uint64_t limit = UINT64_MAX;

	for (;;) {
		char name[512];
		char *slash = strrchr(path, '/');
		uint64_t number;

		snprintf(name, sizeof(name), "%s%s/%s", root, path, file);
		if (read_number(name, &number) && number < limit)
			limit = number;
		if (!slash)
			return limit;
		*slash = '\0';
	}
}

uint64_t machine_memory_limit(void)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	uint64_t limit = UINT64_MAX;
	char line[512];

	if (!file)
		return limit;
	while (fgets(line, sizeof(line), file)) {
		char *controllers = strchr(line, ':');
		char *path = controllers ? strchr(controllers + 1, ':') : NULL;
		uint64_t found = UINT64_MAX;

		if (!path)
			continue;
		*path++ = '\0';
		controllers++;
		path[strcspn(path, "\n")] = '\0';
		if (!*controllers)
			found = cgroup_limit("/sys/fs/cgroup", path,
					     "memory.max");
		else if (strcmp(controllers, "memory") == 0)
			found = cgroup_limit("/sys/fs/cgroup/memory", path,
					     "memory.limit_in_bytes");
		if (found < limit)
			limit = found;
	}
	fclose(file);
	return limit;
}
